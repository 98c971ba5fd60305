"""Repeat the rollout of an earlier session with another chain, and compare the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from tdx.compare.alignment import match_stages
from tdx.compare.codes import DifferenceKind
from tdx.compare.edits import Explanation
from tdx.compare.report import Difference, kind_of_edits
from tdx.compare.rollouts import Record, explain_records
from tdx.compare.values import (
    Change,
    compare_entries,
    compare_tensors,
    float_tolerance,
)
from tdx.foundation.errors import ArgumentError, KeyNotFoundError
from tdx.foundation.keys import format_key
from tdx.foundation.text import dtype_name
from tdx.inspection.live.histories import build_plot
from tdx.inspection.live.session import LiveSession
from tdx.inspection.live.views import ImageView, PlotView

if TYPE_CHECKING:
    from tdx.core.tracing import StepTrace

_RECORDS_BEFORE, _RECORDS_AFTER = 16, 48
"""Traces around the first difference whose values are explained."""


class Replay:
    """Repeats the resets and actions of an earlier session in a new one.

    The caller seeds both envs in the same way. ``last`` is the trace of the earlier session to stop
    at, by default its end.

    Attributes:
        differences: First trace in which the output of the chain differs, by key.
        cause: The first difference of the repeated part, at the stage that has it. ``None``: there
            is none, or :meth:`describe` was not called.
        is_branch: True if the end of the earlier session is not repeated.

    Raises:
        ArgumentError: The actions do not fit the action spec of the new session.
    """

    def __init__(self, earlier: LiveSession, session: LiveSession, last: int | None = None) -> None:
        self.earlier, self.session = earlier, session
        recording = earlier.recording
        self.total = len(recording.actions)
        self.is_branch, self._has_last_reset = last is not None, False
        if last is not None:
            at, after = recording.find(last)
            self.total, self._has_last_reset = at + 1, after == 1
        self.done = 0
        self.differences: dict[str, int] = {}
        self.cause: Difference | None = None
        action = next((action for action in recording.actions if action is not None), None)
        if action is not None:
            given, taken = (
                {key: (value.shape, value.dtype) for key, value in side.items(True, True)}
                for side in (action, session.env.full_action_spec)
            )
            if given != taken:
                raise ArgumentError(
                    "the actions of the earlier rollout do not fit the action spec of this chain",
                    hint="run it again",
                )

    @property
    def is_done(self) -> bool:
        """True if everything is repeated."""
        is_reset_due = self._has_last_reset and self.session.tracer.reset_due
        return self.done >= self.total and not is_reset_due

    @property
    def steps(self) -> int:
        """Number of steps that are repeated."""
        return sum(action is not None for action in self.earlier.recording.actions[: self.total])

    def advance(self) -> StepTrace:
        """Repeat one reset or step, or make a reset that is due before it."""
        session, tracer = self.session, self.session.tracer
        actions = self.earlier.recording.actions
        action = actions[self.done] if self.done < self.total else None
        is_given = action is not None or self.done >= self.total
        if tracer.current is not None and tracer.reset_due and is_given:
            trace = session.advance()
        elif action is None:
            self.done += 1
            trace = session.reset()
        else:
            self.done += 1
            trace = session.advance(action.clone())
        self.compare(trace)
        return trace

    def compare(self, trace: StepTrace) -> None:
        """Compare the output of the chain with the earlier session; note new differences."""
        other = self.counterpart(trace)
        if other is None:
            return
        old, new = _output_values(other), _output_values(trace)
        shared = [
            key
            for key, value in new.items()
            if key in old
            and key not in self.differences
            # Objects without an equality are other ones in each session.
            and value.__class__.__eq__ is not object.__eq__
        ]
        before, after = ({key: values[key] for key in shared} for values in (old, new))
        for key, change in compare_entries(before, after).items():
            if change is not None:
                self.differences[key] = trace.index

    def counterpart(self, trace: StepTrace) -> StepTrace | None:
        """Return the trace of the earlier session after the same resets and steps, if kept."""
        theirs = self.earlier.recording.traces
        at, after = self.session.recording.find(trace.index)
        if not 0 <= at < len(theirs) or after > 1:
            return None
        other = self.earlier.history.find(theirs[at] + after)
        return None if other is None or other.phase != trace.phase else other

    def find_earlier(self, index: int | None) -> StepTrace | None:
        """Return the counterpart of a trace. ``None``: of the latest one."""
        trace = self.session.history.find(self.session.last if index is None else index)
        return None if trace is None else self.counterpart(trace)

    def images(
        self, index: int | None = None, *, row: int | None = None, zoom: float = 1.0
    ) -> tuple[ImageView, ...]:
        """Return the images of a trace, each after that of the earlier session if they differ."""
        now = self.session.images(index, row=row, zoom=zoom)
        other = self.find_earlier(index)
        if other is None:
            return now
        before = self.earlier.images(other.index, row=row, zoom=zoom)
        names, other_names = ([(image.key, image.name) for image in side] for side in (now, before))
        images: list[ImageView] = []
        for match in match_stages(other_names, names, zip):
            if match.b is None:
                continue
            image = now[match.b]
            if match.a is not None and before[match.a].rgb != image.rgb:
                images.append(replace(before[match.a], stage=image.stage, is_earlier=True))
            images.append(image)
        return tuple(images)

    def describe(self) -> str:
        """Return how many steps were repeated, and what differs from where."""
        head = f"repeated {self.steps:,} step{'' if self.steps == 1 else 's'}"
        if self.is_branch:
            head = f"branch at step {self.steps:,}"
            if not self.differences:
                return f"{head}: continue with other actions, or edit the chain"
            head = f"{head}: the env does not repeat exactly"
        if not self.differences:
            return f"{head} with the same seed and actions: no differences"
        places = {}
        for key, at in self.differences.items():
            trace = self.session.history.find(at)
            places[key] = f"{key} from trace {at}"
            if trace is not None:
                step = trace.step + (trace.phase == "step")
                places[key] = f"{key} from {'the reset' if at == 0 else f'step {step}'}"
        self.cause = self._find_cause(min(self.differences.values()))
        word = "differs"
        if self.cause is not None and self.cause.key is not None:
            since = places.pop(self.cause.key).removeprefix(f"{self.cause.key} ")
            hint = f" (hint: {self.cause.hint})" if self.cause.hint else ""
            head = f"{head}; {self.cause.title}: {self.cause.sentence}, {since}{hint}"
            word = "also differs"
        if not places:
            return head
        more = f", {len(places) - 3} more" if len(places) > 3 else ""
        return f"{head}; {word}: {', '.join(list(places.values())[:3])}{more}"

    def _find_cause(self, first: int) -> Difference | None:
        """Return the difference at the first stage that differs in the first trace that differs."""
        window = range(first - _RECORDS_BEFORE, first + _RECORDS_AFTER)
        pairs = [
            (other, trace)
            for trace in self.session.history
            if trace.index in window and (other := self.counterpart(trace)) is not None
        ]
        at = next((pair for pair in pairs if pair[1].index == first), None)
        names = [name for name, index in self.differences.items() if index == first]
        found = (None if at is None else _first_difference(at, pairs, name) for name in names)
        causes = [cause for cause in found if cause is not None]

        def position(cause: Difference) -> int:
            return (cause.reference_stage or 0) if cause.stage is None else cause.stage

        return min(causes, key=position, default=None)

    def plot(
        self, name: str, *, row: int | None, parts: int, window: tuple[int, int] | None
    ) -> PlotView:
        """Plot a number of both sessions over the same traces, see :meth:`LiveSession.plot`."""
        series = [self.session.series(name, row)]
        try:
            series.append(self.earlier.series(name, row))
        except KeyNotFoundError:
            return self.session.plot(name, row=row, parts=parts, window=window)
        start = min(first for first, _ in series)
        end = max(first + len(numbers) for first, numbers in series)
        plots = []
        for first, numbers in series:
            padded = np.full(end - start, np.nan, dtype=np.float32)
            padded[first - start : first - start + len(numbers)] = numbers
            plots.append(build_plot(name, start, padded, parts=parts, window=window))
        # Both up to the same trace: the earlier session may have made more steps.
        last = self.session.last
        now, earlier = (
            replace(plot, latest=session.latest_number(name, row, last=last))
            for plot, session in zip(plots, (self.session, self.earlier), strict=True)
        )
        return replace(now, earlier=earlier)


def _output_values(trace: StepTrace) -> Mapping[str, Any]:
    """Return the last value of each key in the forward direction; none that was overwritten."""
    versions = {version.key: version for version in trace.versions() if version.lane == "forward"}
    return {format_key(key): version.value for key, version in versions.items() if not version.lost}


def _first_difference(
    at: tuple[StepTrace, StepTrace], pairs: Sequence[tuple[StepTrace, StepTrace]], name: str
) -> Difference | None:
    """Return the difference of a key at the first stage that differs, with its explanation.

    ``at`` is the pair of the first traces that differ, earlier session first, and ``pairs`` has the
    pairs around it.
    """
    ours, theirs = (
        [
            stage
            for stage in trace.stages
            if stage.direction == "forward" and name in map(format_key, stage.written)
        ]
        for trace in at
    )
    names, other_names = ([stage.name for stage in side] for side in (ours, theirs))
    for match in match_stages(names, other_names, zip):
        a = None if match.a is None else ours[match.a].index
        b = None if match.b is None else theirs[match.b].index
        records: list[Record] = []
        starts: list[int] = []
        changes: list[Change] = []
        for old, new in pairs:
            # A stage of one side only is compared with what it received.
            received = (
                _value_after(old, a, name, -1) if b is None else _value_after(new, b, name, -1)
            )
            reference = received if a is None else _value_after(old, a, name)
            target = received if b is None else _value_after(new, b, name)
            if reference is None or target is None:
                continue
            if new.phase == "reset":
                starts.append(len(records))
            records.append((reference, target, received))
            if (change := compare_tensors(reference, target)) is not None:
                changes.append(change)
        if not changes:
            continue
        change = max(changes, key=lambda change: change.size or 0.0)
        kind: DifferenceKind = "value"
        if change.kind == "spec" or change.kind == "dtype":
            kind = change.kind
        explanation: Explanation | None = None
        if match.b is not None and (change.kind != "dtype" or change.size is not None):
            tolerance = float_tolerance([dtype_name(records[0][0].dtype)])
            explanation = explain_records(records, starts, tolerance)
        text = change.text
        if explanation is not None:
            text = explanation.text
            kind = kind_of_edits(explanation) or kind
        if match.status == "missing":
            kind, text = "missing stage", "the new chain has no such stage"
        elif match.status == "extra":
            kind, text = "missing stage", f"the earlier chain has no such stage; {text}"
        elif match.status == "moved":
            kind, text = "order", f"the stage has moved; {text}"
        return Difference(
            kind,
            b,
            a,
            (ours[match.a or 0] if match.b is None else theirs[match.b]).name,
            name,
            text,
            change.size,
            None if explanation is None else explanation.hint,
            explanation=explanation,
            noun="earlier chain",
        )
    return None


def _value_after(trace: StepTrace, index: int | None, name: str, offset: int = 0) -> Tensor | None:
    """Return the value of a key after a stage, ``[R, ...]``; ``None`` if it is not known."""
    if index is None or (index < 0 and offset):
        return None
    versions = trace.after(index + offset)
    version = next((one for key, one in versions.items() if format_key(key) == name), None)
    if version is None or version.lost or not isinstance(version.value, Tensor):
        return None
    dims = trace.tensordict.ndim
    return version.value.flatten(0, dims - 1) if dims else version.value[None]
