"""Records one reset or step: times every hook, and notes which versions it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tensordict import LazyStackedTensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from tdx.core.envs.failures import noted_key
from tdx.core.envs.spec_violations import get_entry
from tdx.core.tracing.traces import Direction, Hook, Kind, Place, StageTrace, ValueVersion
from tdx.errors import ChainError, EnvError, TdxError, Where, get_first_line
from tdx.keys import NestedKey
from tdx.tensordicts import flat_entries, read, unstack_parts


class Leaves:
    """Reads the leaves of TensorDicts, so that an unchanged entry is the same object.

    A lazy stack returns a new tensor for each read. This class returns the same one for the same
    parts.
    """

    __slots__ = ("_stacks",)

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, ...], tuple[list[Any], Any]] = {}

    def of(self, tensordict: TensorDictBase) -> dict[NestedKey, Any]:
        """Return the leaves by key, without copies and without ``next``."""
        found: dict[NestedKey, Any] = {}
        flat = flat_entries(tensordict)
        if flat is None:
            self._collect(tensordict, (), found)
        else:
            found.update(flat)
        return found

    def _collect(
        self, level: TensorDictBase, outer: tuple[str, ...], found: dict[NestedKey, Any]
    ) -> None:
        if isinstance(level, LazyStackedTensorDict):
            self._collect_stack(level, outer, found)
            return
        for name, value in level.items():
            if type(value) is Tensor:
                found[(*outer, name) if outer else name] = value
            elif is_tensor_collection(value) and not getattr(type(value), "_is_non_tensor", False):
                if outer or name != "next":
                    self._collect(value, (*outer, name), found)
            else:
                found[(*outer, name) if outer else name] = value

    def _collect_stack(
        self, level: LazyStackedTensorDict, outer: tuple[str, ...], found: dict[NestedKey, Any]
    ) -> None:
        for key in level.keys(True, True):
            parts = (key,) if isinstance(key, str) else tuple(key)
            if not outer and parts[0] == "next":
                continue
            rows = [read(row, key) for row in unstack_parts(level)]
            token = tuple(map(id, rows))
            known = self._stacks.get(token)
            if known is None:
                # The rows are kept as well, because the id of a deleted object may be used again.
                known = self._stacks[token] = (rows, get_entry(level, key))
            names = (*outer, *parts)
            found[names if len(names) > 1 else names[0]] = known[1]


def in_place_count(value: Any) -> int | None:
    """Return how often a tensor was written in place; ``None`` if torch does not count it."""
    if not isinstance(value, Tensor):
        return None
    try:
        return value._version
    except RuntimeError:
        # Tensors created in inference mode have no counter.
        return None


Clock = Callable[[], int]
OnLoss = Callable[[Any, Any], None]


class Probe(Protocol):
    """Called right before and after each hook, for measurements of another kind."""

    def before(self, place: Place, direction: Direction, hook: Hook) -> None: ...

    def after(self, place: Place, direction: Direction, hook: Hook) -> None: ...


class _Lane:
    """The current versions in one direction."""

    __slots__ = ("counts", "current", "name", "uncopied")

    def __init__(self, name: Direction) -> None:
        self.name = name
        self.current: dict[NestedKey, ValueVersion] = {}
        self.counts: dict[NestedKey, tuple[Tensor, int]] = {}
        self.uncopied: dict[NestedKey, Tensor] = {}

    def add(self, key: NestedKey, value: Any, kind: Kind, in_place: bool) -> ValueVersion:
        known = self.current.get(key)
        if kind in ("stage", "kept"):
            number = int(kind == "stage") if known is None else known.number + 1
        else:
            # Inputs of the chain have number 0, also if they replace those of an earlier step.
            number = 0 if known is None else known.number
        version = ValueVersion(key, number, self.name, value, in_place)
        self.current[key] = version
        count = in_place_count(value)
        if count is None:
            self._forget(key)
        else:
            self.counts[key] = (value, count)
            self.uncopied[key] = value
        return version

    def drop(self, key: NestedKey) -> None:
        del self.current[key]
        self._forget(key)

    def _forget(self, key: NestedKey) -> None:
        self.counts.pop(key, None)
        self.uncopied.pop(key, None)


class Recorder:
    """The record of one reset or step while it runs.

    Args:
        clock: Returns nanoseconds.
        phase: ``reset`` or ``step``.
        doing: What is running, for messages.
        values: If True, keep versions; otherwise times only.
        probe: Called around each hook.
        on_in_place: Called with a tensor that was written in place, and a copy of its old value.
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
        self._copies: dict[int, tuple[Tensor, Tensor, int]] = {}
        self._given: dict[NestedKey, ValueVersion] = {}
        self._lanes: dict[Direction, _Lane] = {
            "forward": _Lane("forward"),
            "inverse": _Lane("inverse"),
        }

    def begin(self, tensordict: TensorDictBase | None) -> dict[NestedKey, ValueVersion]:
        """Record the input before the first hook runs."""
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
        """Call a hook and return its result; record its time and what it wrote.

        Raises:
            TdxError: The hook raised; the error names the place.
        """
        clock, probe = self._clock, self._probe
        entered = clock()
        if self._values and not place.pure:
            self._protect()
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
            over = self._overwritten()
            if over:
                self._in_place(place, lane, over)
            self.stages.append(
                StageTrace(place.kind, place.index, place.name, lane.name, self._hook, took, reads)
            )
            located = to_located_error(error, place, direction, self._doing)
            # An error raised from itself would lose its cause.
            raise located from (error.__cause__ if located is error else error)
        end = clock()
        if probe is not None:
            probe.after(place, direction, self._hook)
        self._note(place, lane, end - start, reads, result)
        self.overhead_ns += clock() - entered - (end - start)
        return result

    def settle(
        self, place: Place, direction: Direction, result: Any, *, known_only: bool = False
    ) -> None:
        """Record what was written outside of any hook.

        Args:
            place: The place to attribute it to.
            direction: Direction of the versions.
            result: The current entries, ``[*B]``.
            known_only: If True, skip keys that did not exist before.
        """
        entered = self._clock()
        if self._values and isinstance(result, TensorDictBase):
            lane = self._lanes[direction]
            now = self._leaves.of(result)
            if known_only:
                now = {key: value for key, value in now.items() if key in lane.current}
            written, dropped = self._changes(place, lane, now)
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
        self.overhead_ns += self._clock() - entered

    def _reads(self, place: Place, direction: Direction) -> tuple[ValueVersion, ...]:
        """Return the versions of the keys that a place declares to read."""
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

    def _protect(self) -> None:
        """Copy the tensors that a hook could overwrite and that have no copy yet."""
        copies = self._copies
        for lane in self._lanes.values():
            if not lane.uncopied:
                continue
            for tensor in lane.uncopied.values():
                known = copies.get(id(tensor))
                if known is None or known[2] != tensor._version:
                    copies[id(tensor)] = (tensor, tensor.clone(), tensor._version)
            lane.uncopied.clear()

    def _note(
        self,
        place: Place,
        lane: _Lane,
        took: int,
        reads: tuple[ValueVersion, ...],
        result: Any,
    ) -> None:
        written: dict[NestedKey, ValueVersion] = {}
        dropped: tuple[NestedKey, ...] = ()
        undeclared: tuple[NestedKey, ...] = ()
        if self._values and isinstance(result, TensorDictBase):
            written, dropped = self._changes(place, lane, self._leaves.of(result))
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
        self, place: Place, lane: _Lane, now: dict[NestedKey, Any]
    ) -> tuple[dict[NestedKey, ValueVersion], tuple[NestedKey, ...]]:
        """Return what the entries ``now`` add to the lane, and the keys that they lack."""
        over = self._overwritten()
        current = lane.current
        written: dict[NestedKey, ValueVersion] = {}
        for key, value in now.items():
            known = current.get(key)
            if known is None or known.value is not value:
                written[key] = lane.add(key, value, place.kind, False)
        if over:
            written.update(self._in_place(place, lane, over))
        if len(now) == len(current):
            return written, ()
        dropped = tuple([key for key in current if key not in now])
        for key in dropped:
            lane.drop(key)
        return written, dropped

    def _overwritten(self) -> list[tuple[_Lane, NestedKey, Tensor]]:
        """Return the tensors that were written in place since their version was recorded."""
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
    ) -> dict[NestedKey, ValueVersion]:
        """Return new versions of overwritten tensors, and keep the values of the old ones."""
        place.pure = False
        tensors = {id(tensor): tensor for _, _, tensor in over}.values()
        # A tensor that a hook overwrote and then replaced is not current any more.
        over = [each for each in over if self._is_current(*each)]
        for tensor in tensors:
            _, copy, _ = self._copies.pop(id(tensor), (tensor, None, 0))
            for version in (*self._given.values(), *self._versions()):
                if version.value is tensor:
                    keep_value(version, copy)
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

    def _versions(self) -> Iterator[ValueVersion]:
        for stage in self.stages:
            yield from stage.written.values()


def keep_value(version: ValueVersion, copy: Tensor | None) -> None:
    """Set a version to its old value, if there is a copy; mark it as lost otherwise."""
    # Traces are frozen for their readers; this is the only place that changes one.
    if copy is None:
        object.__setattr__(version, "lost", True)
    else:
        object.__setattr__(version, "value", copy)


def to_located_error(error: Exception, place: Place, direction: Direction, phase: str) -> TdxError:
    """Return an error of tdx that names the place that raised it, and the step.

    Args:
        error: What was raised.
        place: The place that was called.
        direction: Direction of the call.
        phase: What was running: ``step 3``.
    """
    is_stage = place.kind == "stage"
    during = f"the inverse of {phase}" if is_stage and direction == "inverse" else phase
    if isinstance(error, TdxError):
        error.message = f"{error.message}, in {during}"
        return error.at(stage=place.index, transform=place.name) if is_stage else error
    what = f"raised {type(error).__name__} in {during}: {get_first_line(error)}"
    if is_stage:
        where = Where(stage=place.index, transform=place.name, key=noted_key(error))
        return ChainError(
            f"it {what}", where=where, hint="correct the stage; --debug shows the traceback"
        )
    if place.kind == "env":
        return EnvError(
            f"the env {what}",
            where=Where(env=place.name),
            hint="correct the env; --debug shows the traceback",
        )
    return ChainError(f"the policy {place.name} {what}", hint="correct the policy")
