"""Times every hook of one step, and notes what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.tracing.blame import blamed
from tdx.core.tracing.leaves import Leaves, in_place_count
from tdx.core.tracing.places import Place
from tdx.core.tracing.traces import Direction, Hook, Kind, StageTrace, ValueVersion
from tdx.keys import NestedKey

Clock = Callable[[], int]
OnLoss = Callable[[Any, Any], None]


class Probe(Protocol):
    """Called right before and after each hook, for measurements of another kind."""

    def before(self, place: Place, direction: Direction, hook: Hook) -> None: ...

    def after(self, place: Place, direction: Direction, hook: Hook) -> None: ...


class _Lane:
    """What is there at this point on the way in, or on the way out."""

    __slots__ = ("counts", "current", "name")

    def __init__(self, name: Direction) -> None:
        self.name = name
        self.current: dict[NestedKey, ValueVersion] = {}
        self.counts: dict[NestedKey, tuple[Tensor, int]] = {}

    def add(self, key: NestedKey, value: Any, kind: Kind, in_place: bool) -> ValueVersion:
        known = self.current.get(key)
        if kind in ("stage", "kept"):
            number = int(kind == "stage") if known is None else known.number + 1
        else:
            # What the chain is given is number 0, also in the place of a step before's.
            number = 0 if known is None else known.number
        version = ValueVersion(key, number, self.name, value, in_place)
        self.current[key] = version
        count = in_place_count(value)
        if count is None:
            self.counts.pop(key, None)
        else:
            self.counts[key] = (value, count)
        return version


class Recorder:
    """The record of one reset or step while it runs.

    Args:
        clock: gives nanoseconds.
        phase: whether it is a reset or a step.
        doing: what is going on, for messages.
        values: whether versions are kept, or times only.
        probe: called around each hook.
        on_in_place: called with a tensor that was written in place, and a copy of what it was.
    """

    def __init__(
        self,
        clock: Clock,
        phase: Hook,
        doing: str,
        values: bool,
        probe: Probe | None,
        on_in_place: OnLoss,
    ) -> None:
        self.stages: list[StageTrace] = []
        self.overhead_ns = 0
        self._clock, self._hook, self._doing, self._values = clock, phase, doing, values
        self._probe, self._on_in_place = probe, on_in_place
        self._leaves = Leaves()
        self._given: dict[NestedKey, ValueVersion] = {}
        self._lanes: dict[Direction, _Lane] = {
            "forward": _Lane("forward"),
            "inverse": _Lane("inverse"),
        }

    def begin(self, tensordict: TensorDictBase | None) -> dict[NestedKey, ValueVersion]:
        """Note what goes in before anything has happened."""
        lane = self._lanes["inverse"]
        if self._values and tensordict is not None:
            for key, value in self._leaves.of(tensordict).items():
                lane.add(key, value, "given", False)
        self._given = dict(lane.current)
        return self._given

    def call(
        self,
        place: Place,
        direction: Direction,
        function: Callable[..., TensorDictBase],
        *arguments: Any,
    ) -> Any:
        """What the hook returns; its time and what it wrote are noted.

        Raises:
            TdxError: the hook raised; the error says where.
        """
        clock, probe = self._clock, self._probe
        begun = clock()
        kept = self._copies() if self._values and not place.pure else {}
        lane = self._lanes["inverse" if place.kind in ("policy", "given") else direction]
        reads = self._reads(place, direction) if self._values else ()
        if probe is not None:
            probe.before(place, direction, self._hook)
        start = clock()
        try:
            result = function(*arguments)
        except Exception as error:
            took = clock() - start
            if probe is not None:
                probe.after(place, direction, self._hook)
            over = self._written_over()
            if over:
                self._in_place(place, lane, over, kept)
            self.stages.append(
                StageTrace(place.kind, place.index, place.name, lane.name, self._hook, took, reads)
            )
            found = blamed(error, place, direction, self._doing)
            # An error raised from itself would lose the cause that it has.
            raise found from (error.__cause__ if found is error else error)
        end = clock()
        if probe is not None:
            probe.after(place, direction, self._hook)
        self._note(place, lane, end - start, reads, result, kept)
        self.overhead_ns += clock() - begun - (end - start)
        return result

    def settle(
        self, place: Place, direction: Direction, result: Any, *, known_only: bool = False
    ) -> None:
        """Note what was written outside of any hook; nothing where nothing was.

        Args:
            place: who is said to have written it.
            direction: on the way in, or on the way out.
            result: what is there now, ``[*B]``.
            known_only: whether keys that were not there before are passed over.
        """
        begun = self._clock()
        if self._values and isinstance(result, TensorDictBase):
            lane = self._lanes[direction]
            if known_only:
                result = result.select(*lane.current, strict=False)
            written, dropped = self._changes(place, lane, result, {})
            if written or dropped:
                trace = StageTrace(
                    place.kind,
                    place.index,
                    place.name,
                    direction,
                    self._hook,
                    0,
                    (),
                    written,
                    dropped,
                )
                self.stages.append(trace)
        self.overhead_ns += self._clock() - begun

    def _reads(self, place: Place, direction: Direction) -> tuple[ValueVersion, ...]:
        """The versions that the place is about to read, of the keys that it declares."""
        inverse = self._lanes["inverse"].current
        near = inverse
        if direction == "forward" and place.kind == "stage":
            near = self._lanes["forward"].current
        found = []
        for key in place.reads[direction]:
            version = near.get(key) or inverse.get(key)
            if version is not None:
                found.append(version)
        return tuple(found)

    def _copies(self) -> dict[int, Tensor]:
        """Copies of all tensors that a hook could write over, by the id of each."""
        return {
            id(version.value): version.value.clone()
            for lane in self._lanes.values()
            for version in lane.current.values()
            if isinstance(version.value, Tensor)
        }

    def _note(
        self,
        place: Place,
        lane: _Lane,
        took: int,
        reads: tuple[ValueVersion, ...],
        result: Any,
        kept: dict[int, Tensor],
    ) -> None:
        written: dict[NestedKey, ValueVersion] = {}
        dropped: tuple[NestedKey, ...] = ()
        undeclared: tuple[NestedKey, ...] = ()
        if self._values and isinstance(result, TensorDictBase):
            written, dropped = self._changes(place, lane, result, kept)
            declares, name = place.declares, lane.name
            undeclared = tuple([key for key in written if not declares(key, name)])
        self.stages.append(
            StageTrace(
                place.kind,
                place.index,
                place.name,
                lane.name,
                self._hook,
                took,
                reads,
                written,
                dropped,
                undeclared,
            )
        )

    def _changes(
        self, place: Place, lane: _Lane, result: TensorDictBase, kept: dict[int, Tensor]
    ) -> tuple[dict[NestedKey, ValueVersion], tuple[NestedKey, ...]]:
        """What is new in ``result`` against what was there in the lane before."""
        over = self._written_over()
        now, current = self._leaves.of(result), lane.current
        written: dict[NestedKey, ValueVersion] = {}
        for key, value in now.items():
            known = current.get(key)
            if known is None or known.value is not value:
                written[key] = lane.add(key, value, place.kind, False)
        if over:
            written.update(self._in_place(place, lane, over, kept))
        if len(now) == len(current):
            return written, ()
        dropped = tuple([key for key in current if key not in now])
        for key in dropped:
            del current[key]
            lane.counts.pop(key, None)
        return written, dropped

    def _written_over(self) -> list[tuple[_Lane, NestedKey, Tensor]]:
        """What holds other numbers now than when it was made a version."""
        found = []
        for lane in self._lanes.values():
            for key, (tensor, count) in lane.counts.items():
                if tensor._version != count:
                    found.append((lane, key, tensor))
        return found

    def _in_place(
        self,
        place: Place,
        lane: _Lane,
        over: list[tuple[_Lane, NestedKey, Tensor]],
        kept: dict[int, Tensor],
    ) -> dict[NestedKey, ValueVersion]:
        """New versions of what was written over, with the earlier ones saved."""
        place.pure = False
        tensors = {id(tensor): tensor for _, _, tensor in over}.values()
        # What a hook has written over and then replaced is there no longer.
        over = [each for each in over if self._is_current(*each)]
        for tensor in tensors:
            copy = kept.get(id(tensor))
            for version in (*self._given.values(), *self._made()):
                if version.value is tensor:
                    save(version, copy)
            self._on_in_place(tensor, copy)
        mine: dict[NestedKey, ValueVersion] = {}
        others: dict[NestedKey, ValueVersion] = {}
        for owner, key, tensor in over:
            target = mine if owner is lane else others
            target[key] = owner.add(key, tensor, place.kind, True)
        if others:
            name: Direction = "inverse" if lane.name == "forward" else "forward"
            self.stages.append(
                StageTrace(
                    place.kind,
                    place.index,
                    place.name,
                    name,
                    self._hook,
                    0,
                    (),
                    others,
                    (),
                    tuple(others),
                )
            )
        return mine

    @staticmethod
    def _is_current(lane: _Lane, key: NestedKey, tensor: Tensor) -> bool:
        known = lane.current.get(key)
        return known is not None and known.value is tensor

    def _made(self) -> Iterator[ValueVersion]:
        for stage in self.stages:
            yield from stage.written.values()


def save(version: ValueVersion, copy: Tensor | None) -> None:
    """Give a version the value that it had, where there is a copy of that."""
    # A trace is frozen for those who read it; this is the one place that mends it.
    if copy is None:
        object.__setattr__(version, "lost", True)
    else:
        object.__setattr__(version, "value", copy)
