"""Records one reset or step: times every hook, and notes which versions it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    TensorDictBase,
    is_non_tensor,
    is_tensor_collection,
)
from torch import Tensor

from tdx.core.envs.failures import noted_key
from tdx.core.tracing.traces import Direction, Hook, Kind, Place, StageTrace, ValueVersion, Versions
from tdx.foundation.errors import ChainError, EnvError, TdxError, Where, get_first_line
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import (
    Structure,
    flat_entries,
    note_structure,
    plain_entries,
    read,
    restore_structure,
    unstack_parts,
)
from tdx.foundation.torch_internals import in_place_count, version_of
from tdx.specs.violations import get_entry


class LeafReader:
    """Reads the leaves of TensorDicts, so that an unchanged entry is the same object.

    A lazy stack returns a new tensor for each read. This class returns the same one for the same
    parts.
    """

    __slots__ = ("_stacks",)

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, ...], tuple[list[Any], Any]] = {}

    def of(self, tensordict: TensorDictBase) -> dict[NestedKey, Any]:
        """Return the leaves by key, without copies and without ``next``."""
        leaves: dict[NestedKey, Any] = {}
        self._collect(tensordict, (), leaves)
        return leaves

    def _collect(
        self, level: TensorDictBase, outer: tuple[str, ...], leaves: dict[NestedKey, Any]
    ) -> None:
        if isinstance(level, LazyStackedTensorDict):
            self._collect_stack(level, outer, leaves)
            return
        for name, value in level.items():
            if type(value) is Tensor:
                leaves[(*outer, name) if outer else name] = value
            elif is_tensor_collection(value) and not is_non_tensor(value):
                if outer or name != "next":
                    self._collect(value, (*outer, name), leaves)
            else:
                leaves[(*outer, name) if outer else name] = value

    def _collect_stack(
        self, level: LazyStackedTensorDict, outer: tuple[str, ...], leaves: dict[NestedKey, Any]
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
            leaves[names if len(names) > 1 else names[0]] = known[1]


Outcome = Literal["returned", "raised", "settled"]
CallEntries = dict[NestedKey, Any]
Overwritten = dict[Direction, CallEntries]
"""Entries that a call wrote in place, by direction."""
Call = tuple[Place, Direction, int, Outcome, CallEntries, tuple[NestedKey, ...], Overwritten]
"""Place, direction of its versions, nanoseconds, outcome, what it wrote, what it dropped, and what
it wrote in place. A plain tuple, because each hook of each step appends one."""


class _Lost(NamedTuple):
    """Value of a version that was overwritten before there was a copy."""

    value: Tensor


class BuiltFields(NamedTuple):
    """Result of :meth:`CallLog.build`; see :class:`~tdx.core.tracing.traces.StepTrace`."""

    given: Versions
    stages: tuple[StageTrace, ...]
    tensordict: TensorDictBase


class CallLog:
    """The calls of one ``reset`` or ``step``, in order."""

    __slots__ = ("calls", "given", "hook", "kept", "result")
    result: Structure

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.given: CallEntries = {}
        self.calls: list[Call] = []
        self.kept: Place | None = None

    def keep(self, tensor: Tensor, copy: Tensor | None) -> None:
        """Replace a tensor that was overwritten by a copy of its old value, if there is one."""
        value = _Lost(tensor) if copy is None else copy
        groups = [self.given]
        for call in self.calls:
            groups += (call[4], *call[6].values())
        for entries in groups:
            for key, entry in entries.items():
                if entry is tensor:
                    entries[key] = value

    def build(self) -> BuiltFields:
        """Return the versions and the stages."""
        return _Builder(self).build()


class _Builder:
    """Numbers the versions of a log."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._lanes: dict[Direction, dict[NestedKey, ValueVersion]]
        self._lanes = {"forward": {}, "inverse": {}}
        self._stages: list[StageTrace] = []

    def build(self) -> BuiltFields:
        given = self._write("inverse", self._log.given, "given")
        for call in self._log.calls:
            self._add(*call)
        tensordict = restore_structure(self._log.result)
        if self._log.kept is not None:
            after = read(tensordict, "next") if self._log.hook == "step" else tensordict
            # The known entries that changed after the last call.
            entries, current = dict(after.items()), self._lanes["forward"]
            changed = {
                key: value
                for key, value in entries.items()
                if key in current and current[key].value is not value
            }
            dropped = tuple(key for key in current if key not in entries)
            self._add(self._log.kept, "forward", 0, "settled", changed, dropped, {})
        return BuiltFields(given, tuple(self._stages), tensordict)

    def _add(
        self,
        place: Place,
        lane: Direction,
        took: int,
        outcome: Outcome,
        entries: CallEntries,
        dropped: tuple[NestedKey, ...],
        over: Overwritten,
    ) -> None:
        reads = () if outcome == "settled" else self._reads(place, lane)
        written = self._write(lane, entries, place.kind)
        others: Direction = "inverse" if lane == "forward" else "forward"
        if lane in over:
            overwritten = self._write(lane, over[lane], place.kind, in_place=True)
            written |= {} if outcome == "raised" else overwritten
        if others in over:
            overwritten = self._write(others, over[others], place.kind, in_place=True)
            self._append(place, others, 0, (), overwritten, (), tuple(overwritten))
        for key in dropped:
            del self._lanes[lane][key]
        if outcome == "settled":
            if written or dropped:
                self._append(place, lane, 0, (), written, dropped, ())
            return
        declares = place.declares
        undeclared = tuple([key for key in written if not declares(key, lane)])
        self._append(place, lane, took, reads, written, dropped, undeclared)

    def _append(
        self,
        place: Place,
        lane: Direction,
        took: int,
        reads: tuple[ValueVersion, ...],
        written: dict[NestedKey, ValueVersion],
        dropped: tuple[NestedKey, ...],
        undeclared: tuple[NestedKey, ...],
    ) -> None:
        hook = self._log.hook
        trace = StageTrace(
            place.kind,
            place.index,
            place.name,
            lane,
            hook,
            took,
            reads,
            written,
            dropped,
            undeclared,
        )
        self._stages.append(trace)

    def _write(
        self, lane: Direction, entries: CallEntries, kind: Kind, *, in_place: bool = False
    ) -> dict[NestedKey, ValueVersion]:
        """Add new versions of entries."""
        current = self._lanes[lane]
        written = {}
        for key, value in entries.items():
            known = current.get(key)
            if kind in ("stage", "kept"):
                number = int(kind == "stage") if known is None else known.number + 1
            else:
                # Inputs of the chain have number 0, also if they replace those of an earlier step.
                number = 0 if known is None else known.number
            is_lost = type(value) is _Lost
            kept = value.value if is_lost else value
            version = ValueVersion(key, number, lane, kept, in_place, is_lost)
            written[key] = current[key] = version
        return written

    def _reads(self, place: Place, lane: Direction) -> tuple[ValueVersion, ...]:
        """Return the versions of the keys that a place declares to read."""
        inverse = self._lanes["inverse"]
        near = self._lanes["forward"] if lane == "forward" and place.kind == "stage" else inverse
        versions = [near.get(key) or inverse.get(key) for key in place.reads[lane]]
        return tuple([version for version in versions if version is not None])


Clock = Callable[[], int]
OnLoss = Callable[[Tensor, Tensor | None], None]
Copies = dict[int, tuple[Tensor, int, Tensor]]
"""A tensor, how often it was written in place, and a copy of its value then; by id."""


class Probe(Protocol):
    """Called right before and after each hook, for measurements of another kind."""

    def before(self, place: Place, direction: Direction, hook: Hook) -> None: ...

    def after(self, place: Place, direction: Direction, hook: Hook) -> None: ...


_MISSING: Any = object()
_NOTHING: tuple[CallEntries, tuple[NestedKey, ...], Overwritten] = {}, (), {}


class Recorder:
    """The record of one reset or step while it runs.

    It stores what each call wrote, and no more: the stages are built from its :class:`CallLog` when
    a trace is read. ``values`` keeps versions, not just times. ``on_in_place`` is called with a
    tensor that was written in place, and a copy of its old value; ``earlier`` has those of the
    previous step.
    """

    def __init__(
        self,
        clock: Clock,
        phase: Hook,
        doing: str,
        values: bool,
        probe: Probe | None,
        on_in_place: OnLoss,
        earlier: Copies,
    ) -> None:
        self.log = CallLog(phase)
        self.copies: Copies = {}
        self.overhead_ns = 0
        self.has_env = self.is_busy = False
        self._clock, self._hook, self._doing, self._values = clock, phase, doing, values
        self._probe, self._on_in_place, self._earlier = probe, on_in_place, earlier
        self._leaves: LeafReader | None = None
        self._forward: CallEntries = {}
        self._inverse: CallEntries = {}
        # All tensors so far, and how often each was written in place.
        self._tensors: list[Tensor] = []
        self._counts: list[int] = []
        self._protected = 0

    def begin(self, tensordict: TensorDictBase | None) -> None:
        """Record the input before the first hook runs."""
        if self._values and tensordict is not None:
            self.log.given, _ = self._changes(self._inverse, tensordict)

    def call(
        self,
        place: Place,
        direction: Direction,
        function: Callable[..., TensorDictBase],
        *arguments: Any,
    ) -> Any:
        """Call a hook and return its result; record its time and what it wrote."""
        clock, probe, kind = self._clock, self._probe, place.kind
        entered = clock()
        if not place.pure and self._protected < len(self._tensors):
            self._protect()
        lane = "inverse" if kind == "policy" or kind == "given" else direction
        if probe is not None:
            probe.before(place, direction, self._hook)
        # What a hook calls itself is a part of it.
        self.is_busy = True
        start = clock()
        try:
            result = function(*arguments)
        except Exception as error:
            took = clock() - start
            self.is_busy = False
            if probe is not None:
                probe.after(place, direction, self._hook)
            over = self._note_overwrites(place) if self._is_overwritten() else {}
            self.log.calls.append((place, lane, took, "raised", {}, (), over))
            located = to_located_error(error, place, direction, self._doing)
            # An error raised from itself would lose its cause.
            raise located from (error.__cause__ if located is error else error)
        end = clock()
        self.is_busy = False
        if probe is not None:
            probe.after(place, direction, self._hook)
        if kind == "env":
            self.has_env = True
        written, dropped, over = _NOTHING
        if self._values:
            if not place.pure and self._is_overwritten():
                over = self._note_overwrites(place)
            if type(result) is TensorDict or isinstance(result, TensorDictBase):
                current = self._forward if lane == "forward" else self._inverse
                written, dropped = self._changes(current, result)
            if over:
                over = self._remaining(over)
        took = end - start
        self.log.calls.append((place, lane, took, "returned", written, dropped, over))
        self.overhead_ns += clock() - entered - took
        return result

    def settle(self, place: Place, direction: Direction, result: Any) -> None:
        """Record what was written outside of any hook."""
        if not self._values or not isinstance(result, TensorDictBase):
            return
        entered = self._clock()
        over = self._note_overwrites(place) if self._is_overwritten() else {}
        current = self._forward if direction == "forward" else self._inverse
        written, dropped = self._changes(current, result)
        over = self._remaining(over)
        self.log.calls.append((place, direction, 0, "settled", written, dropped, over))
        self.overhead_ns += self._clock() - entered

    def finish(self, place: Place, result: TensorDictBase) -> None:
        """Record what a reset or step returned."""
        self.log.result = note_structure(result)
        if not self._values:
            return
        after = read(result, "next") if self._hook == "step" else result
        if flat_entries(after) is not None and not self._is_overwritten():
            # Nearly always unchanged, which is found out when the trace is read.
            self.log.kept = place
            return
        known = self._forward
        kept = {key: value for key, value in self._read(after).items() if key in known}
        over = self._note_overwrites(place) if self._is_overwritten() else {}
        written, dropped = self._update(known, kept)
        over = self._remaining(over)
        self.log.calls.append((place, "forward", 0, "settled", written, dropped, over))

    def _changes(
        self, current: CallEntries, tensordict: TensorDictBase
    ) -> tuple[CallEntries, tuple[NestedKey, ...]]:
        """Return what a TensorDict adds to the current entries, and the keys that it lacks."""
        entries: Any = plain_entries(tensordict)
        if entries is None:
            return self._update(current, self._read(tensordict))
        written: CallEntries = {}
        tensors, counts = self._tensors, self._counts
        for key, value in entries.items():
            if current.get(key) is not value:
                if type(value) is not Tensor:
                    return self._update(current, self._read(tensordict))
                written[key] = value
        try:
            counts += map(version_of, written.values())
            tensors += written.values()
        except RuntimeError:
            # Tensors created in inference mode have no counter.
            del counts[len(tensors) :]
            return self._update(current, entries)
        current.update(written)
        if len(entries) == len(current):
            return written, ()
        return written, self._drop(current, entries)

    def _read(self, tensordict: TensorDictBase) -> CallEntries:
        """Return all leaves, also those of nested and lazily stacked TensorDicts."""
        self._leaves = self._leaves or LeafReader()
        return self._leaves.of(tensordict)

    def _update(
        self, current: CallEntries, entries: CallEntries
    ) -> tuple[CallEntries, tuple[NestedKey, ...]]:
        """Return what any entries add to the current ones, and the keys that they lack."""
        written: CallEntries = {}
        for key, value in entries.items():
            if current.get(key, _MISSING) is not value:
                written[key] = value
                count = in_place_count(value)
                if count is not None:
                    self._counts.append(count)
                    self._tensors.append(value)
        current.update(written)
        return written, self._drop(current, entries)

    def _drop(self, current: CallEntries, entries: CallEntries) -> tuple[NestedKey, ...]:
        dropped = tuple([key for key in current if key not in entries])
        for key in dropped:
            del current[key]
        return dropped

    def _protect(self) -> None:
        """Copy the tensors that a hook could overwrite and that have no copy yet."""
        copies, earlier = self.copies, self._earlier
        for tensor in self._tensors[self._protected :]:
            name, count = id(tensor), version_of(tensor)
            known = copies.get(name) or earlier.get(name)
            if known is None or known[1] != count:
                known = tensor, count, tensor.clone()
            copies[name] = known
        self._protected = len(self._tensors)

    def _is_overwritten(self) -> bool:
        return list(map(version_of, self._tensors)) != self._counts

    def _note_overwrites(self, place: Place) -> Overwritten:
        """Keep the old values of tensors that were written in place; return their entries."""
        place.pure = False
        pairs = zip(self._tensors, self._counts, strict=True)
        changed = {id(one): one for one, count in pairs if version_of(one) != count}
        for name, tensor in changed.items():
            known = self.copies.pop(name, None)
            copy = None if known is None else known[2]
            self.log.keep(tensor, copy)
            self._on_in_place(tensor, copy)
        self._counts = list(map(version_of, self._tensors))
        self._protected = 0
        overwritten: Overwritten = {}
        lanes: tuple[tuple[Direction, CallEntries], ...]
        lanes = ("forward", self._forward), ("inverse", self._inverse)
        for lane, current in lanes:
            over = {key: value for key, value in current.items() if id(value) in changed}
            if over:
                overwritten[lane] = over
        return overwritten

    def _remaining(self, over: Overwritten) -> Overwritten:
        """Return the overwritten entries that the hook did not replace afterwards."""
        lanes = {"forward": self._forward, "inverse": self._inverse}
        remaining: Overwritten = {}
        for lane, entries in over.items():
            current = lanes[lane]
            kept = {key: value for key, value in entries.items() if current.get(key) is value}
            if kept:
                remaining[lane] = kept
        return remaining


def keep_value(version: ValueVersion, copy: Tensor | None) -> None:
    """Set a version to its old value, if there is a copy; mark it as lost otherwise."""
    # Traces are frozen for their readers; this is the only place that changes one.
    if copy is None:
        object.__setattr__(version, "lost", True)
    else:
        object.__setattr__(version, "value", copy)


def to_located_error(error: Exception, place: Place, direction: Direction, phase: str) -> TdxError:
    """Return an error of tdx that names the place that raised it, and the step."""
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
