"""Convert traces to views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.compare.values import largest_gap
from tdx.core.tracing import list_passages
from tdx.core.tracing.passages import is_same
from tdx.foundation.keys import NestedKey, format_key
from tdx.inspection.live.arrays import (
    RowSelector,
    as_array,
    count_bins,
    format_array,
    is_image_shape,
)
from tdx.inspection.live.views import (
    TRACED_NUMBERS,
    Change,
    HookView,
    StageNumbers,
    TraceView,
    ValueView,
)
from tdx.inspection.value_stats import NumberSummary

if TYPE_CHECKING:
    from tdx.core.tracing import StageTrace, StepTrace, TraceChecker, ValueVersion
    from tdx.inspection.live.histories import ChangeCounter


def _describe_object(
    key: str, name: str, value: Any, old: Any, is_known: bool, violations: tuple[str, ...]
) -> ValueView:
    rows = value if isinstance(value, list) else [value]
    shape = (len(rows),) if isinstance(value, list) else tuple(getattr(value, "shape", ()))
    text, before = _shorten(value), _shorten(old) if is_known else ""
    one, other = (getattr(side, "tolist", lambda side=side: side)() for side in (old, value))
    change: Change = "new" if not is_known else "same" if is_same(one, other) else "changed"
    kind = getattr(rows[0], "dtype", None) if rows else None
    dtype = type(value).__name__ if kind is None else str(kind).removeprefix("torch.")
    return ValueView(
        key, name, shape, dtype, text, change=change, before=before, violations=violations
    )


def _shorten(value: Any) -> str:
    data = getattr(value, "data", value) if hasattr(value, "tolist") else value
    text = " ".join(str(data).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def view_trace(
    trace: StepTrace,
    *,
    against: StepTrace | None = None,
    is_earlier: bool = False,
    row: int | None = None,
    promises: TraceChecker | None = None,
    numbers: StageNumbers = TRACED_NUMBERS,
    changes: ChangeCounter | None = None,
) -> TraceView:
    """Convert the trace of a reset or step.

    Args:
        trace: The trace.
        against: Trace to compare values with, such as the previous one.
        is_earlier: True if it comes from an earlier session, whose chain may have other stages:
            versions are then compared by the stage that wrote them.
        row: Row of the batch, counted through all batch dims. ``None``: all rows.
        promises: Specs to check values against. ``None``: do not check.
        numbers: Numbers of the stages that the user sees.
        changes: In how many steps each stage changed each key; what a stage changes in other steps
            is listed as passed.
    """
    return _TraceReader(trace, against, is_earlier, row, promises, numbers, changes).view()


@dataclass
class _TraceReader:
    """Converts a trace; the fields are the arguments of :func:`view_trace`."""

    trace: StepTrace
    against: StepTrace | None
    is_earlier: bool
    row: int | None
    promises: TraceChecker | None
    numbers: StageNumbers
    changes: ChangeCounter | None

    def __post_init__(self) -> None:
        trace, against = self.trace, self.against
        self.rows = RowSelector(tuple(trace.tensordict.batch_size), self.row)
        # By hook index and key.
        self.violation_messages: dict[tuple[int, str], list[str]] = {}
        number = {id(stage): at for at, stage in enumerate(trace.stages)}
        for violation in () if self.promises is None else self.promises.check(trace):
            key = "" if violation.violation.key is None else format_key(violation.violation.key)
            messages = self.violation_messages.setdefault((number[id(violation.by)], key), [])
            messages.append(violation.violation.message)
        self.names = _name_versions(trace, self.is_earlier)
        self.before: dict[tuple[object, ...], ValueVersion] = {}
        if against is not None:
            versions = {id(version): version for version in against.versions()}
            named = _name_versions(against, self.is_earlier)
            self.before = {name: versions[version] for version, name in named.items()}
            if self.is_earlier:
                # What a new stage writes is compared with the last value of its key.
                self.before |= {(each.lane, each.key): each for each in versions.values()}
        self.values: list[ValueView] = []
        self.places: dict[int, int] = {}

    def view(self) -> TraceView:
        trace = self.trace
        return TraceView(
            index=trace.index,
            step=trace.step,
            episode=trace.episode,
            phase=trace.phase,
            row=self.row,
            places=tuple(self._hook_views()),
            values=tuple(self.values),
            time_ns=trace.time_ns,
            unattributed_ns=trace.unattributed_ns,
            against=None if self.against is None else self.against.index,
            is_earlier=self.is_earlier,
            error=None if trace.error is None else trace.error.message,
        )

    def _hook_views(self) -> Iterator[HookView]:
        lanes: dict[str, dict[NestedKey, ValueVersion]] = {
            "inverse": dict(self.trace.given),
            "forward": {},
        }
        traced = {id(stage): number for number, stage in enumerate(self.trace.stages)}
        for stage in self._stages():
            number = traced.get(id(stage))
            changes = self._changes_of(stage)
            present = lanes[stage.direction]
            previous = {key: present.get(key) for key in stage.written}
            present.update(stage.written)
            for key in stage.dropped:
                present.pop(key, None)
            written = [
                self._value_index(each, number, previous[key])
                for key, each in stage.written.items()
            ]
            written_keys = {format_key(key) for key in stage.written}
            yield HookView(
                kind=stage.kind,
                index=self.numbers.number(stage.index) if stage.kind == "stage" else -1,
                name=self.numbers.name(stage.kind, stage.name),
                lane=stage.direction,
                time_ns=stage.time_ns,
                written=tuple(written),
                present=tuple(self._value_index(each) for each in present.values()),
                dropped=tuple(map(format_key, stage.dropped)),
                undeclared=tuple(map(format_key, stage.undeclared)),
                violations=tuple(
                    f"{key}: {line}" if key else line
                    for (at, key), lines in self.violation_messages.items()
                    if at == number and key not in written_keys
                    for line in lines
                ),
                passed=tuple(
                    self._value_index(version)
                    for key, version in present.items()
                    if key in changes and key not in stage.written
                ),
                changes=tuple(
                    (format_key(key), changed, count) for key, (changed, count) in changes.items()
                ),
            )

    def _stages(self) -> list[StageTrace]:
        """Return the calls, with those that wrote nothing here but do in other steps."""
        stages = list(self.trace.stages)
        if self.changes is None:
            return stages
        at = len(stages)
        for passage in reversed(list_passages(self.trace)):
            if passage.stage in stages:
                at = stages.index(passage.stage)
            elif self._changes_of(passage.stage):
                stages.insert(at, passage.stage)
        return stages

    def _changes_of(self, stage: StageTrace) -> dict[NestedKey, tuple[int, int]]:
        if self.changes is None:
            return {}
        return self.changes.counts(self.trace.phase, (stage.kind, stage.index, stage.direction))

    def _value_index(
        self, version: ValueVersion, stage: int | None = None, previous: ValueVersion | None = None
    ) -> int:
        """Return the index of a version among the values; it is read on first use."""
        index = self.places.get(id(version))
        if index is not None:
            return index
        key = format_key(version.key)
        messages = () if stage is None else self.violation_messages.get((stage, key), ())
        before = self.before.get(self.names[id(version)])
        before = before or self.before.get((version.lane, version.key))
        index = self.places[id(version)] = len(self.values)
        self.values.append(self._read(version, before, previous, tuple(messages)))
        return index

    def _read(
        self,
        version: ValueVersion,
        before: ValueVersion | None,
        previous: ValueVersion | None,
        violations: tuple[str, ...],
    ) -> ValueView:
        """Convert a version, compared with ``before``; ``previous`` is in the same trace."""
        value = self.rows.of(version.value)
        key, name = format_key(version.key), version.name
        old: Any = None if before is None else self.rows.of(before.value)
        numbers = as_array(value)
        if numbers is None:
            return _describe_object(key, name, value, old, before is not None, violations)
        change: Change = "new"
        text, delta = "", None
        if before is not None:
            change = "same" if is_same(old, value) else "changed"
            shown = as_array(old)
            if shown is not None:
                text = format_array(shown)
                if shown.shape == numbers.shape:
                    delta = 0.0 if change == "same" else largest_gap(old.detach(), value.detach())
        by_writer: Change = "new"
        if previous is not None:
            by_writer = "same" if is_same(self.rows.of(previous.value), value) else "changed"
        statistics = NumberSummary(value)
        low, high = statistics.extremes
        return ValueView(
            key=key,
            version=name,
            shape=tuple(numbers.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            text=format_array(numbers),
            minimum=low,
            mean=statistics.mean,
            maximum=high,
            nans=statistics.nans,
            infinities=statistics.elements - statistics.nans - statistics.finite,
            histogram=count_bins(numbers, low, high),
            change=change,
            by_writer=by_writer,
            before=text,
            delta=delta,
            violations=violations,
            in_place=version.in_place,
            is_image=is_image_shape(tuple(numbers.shape), numbers.dtype.kind),
        )


_WRITERS = {"given": "policy"}
"""An action that is repeated was the policy's."""


def _name_versions(trace: StepTrace, by_writer: bool) -> dict[int, tuple[object, ...]]:
    """Return a name for each version, by its id, that a version of another trace has too.

    By writer, it is named by its stage instead of its number, which other stages change.
    """
    if not by_writer:
        return {id(each): (each.lane, each.name) for each in trace.versions()}
    names: dict[int, tuple[object, ...]] = {
        id(each): (each.lane, each.key) for each in trace.given.values()
    }
    counts: Counter[tuple[str, str]] = Counter()
    for stage in trace.stages:
        writer = stage.name if stage.kind == "stage" else _WRITERS.get(stage.kind, stage.kind)
        counts[writer, stage.direction] += 1
        at = counts[writer, stage.direction]
        for each in stage.written.values():
            names[id(each)] = (each.lane, each.key, writer, at)
    return names


def find_problems(trace: StepTrace, promises: TraceChecker) -> list[tuple[StageTrace, str]]:
    """Return the problems of a trace with their stages: NaN, infinities and spec violations."""
    from torch import Tensor

    problems: list[tuple[StageTrace, str]] = []
    for stage in trace.stages:
        for version in stage.written.values() if stage.kind != "given" else ():
            value = version.value
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            # The sum of non-finite numbers is not finite; it needs one pass and no copy.
            if not bool(value.sum().isfinite()) and not bool(value.isfinite().all()):
                problem = "NaN" if bool(value.isnan().any()) else "infinity"
                problems.append((stage, f"{format_key(version.key)}: {problem}"))
    for violation in promises.check(trace):
        key = violation.violation.key
        lead = "" if key is None else f"{format_key(key)}: "
        problems.append((violation.by, f"{lead}{violation.violation.message}"))
    return problems


def describe_problem(stage: StageTrace, problem: str, numbers: StageNumbers) -> str:
    """Return a problem with the number and name of its stage."""
    is_stage = stage.kind == "stage"
    name = numbers.name(stage.kind, stage.name)
    title = numbers.title(stage.index, name) if is_stage else name
    return f"{title} {problem}"
