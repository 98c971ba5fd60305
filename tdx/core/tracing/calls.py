"""What a recorder stores while a reset or step runs, and the stages that are built from it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.tracing.traces import (
    Direction,
    Hook,
    Kind,
    Place,
    StageTrace,
    ValueVersion,
    Versions,
)
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import Structure, read, restore_structure

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
    """The calls of one reset or step, in order.

    Args:
        hook: ``reset`` or ``step``.
    """

    __slots__ = ("calls", "given", "hook", "kept", "result")
    result: Structure

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.given: CallEntries = {}
        self.calls: list[Call] = []
        self.kept: Place | None = None

    def keep(self, tensor: Tensor, copy: Tensor | None) -> None:
        """Replace a tensor that was overwritten by a copy of its old value.

        Args:
            tensor: The tensor.
            copy: Its old value. ``None``: it is lost.
        """
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
