"""Makes a view of a trace: what a person wants to see of it, without its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tdx.inspection.live.numbering import TRACED, StageNumbers
from tdx.inspection.live.numbers import Rows, ValueReader
from tdx.inspection.live.views import PlaceView, TraceView, ValueView
from tdx.keys import NestedKey, format_key

if TYPE_CHECKING:
    from tdx.core.tracing import StageTrace, StepTrace, TraceChecker, ValueVersion

Told = Mapping[tuple[int, str], Sequence[str]]


def view_trace(
    trace: StepTrace,
    *,
    against: StepTrace | None = None,
    row: int | None = None,
    promises: TraceChecker | None = None,
    numbers: StageNumbers = TRACED,
) -> TraceView:
    """What there is to see of a reset or step.

    Args:
        trace: the trace.
        against: what its values are compared with, such as the trace before.
        row: show one env of a batch only, counted through all batch dims.
        promises: the specs to hold the values against; without them none are.
        numbers: Shown numbers of the stages.

    Example:
        >>> from tdx import PendulumEnv, StepCounter, Tracer, TransformedEnv
        >>> tracer = Tracer(TransformedEnv(PendulumEnv(), StepCounter(200)))
        >>> first = tracer.reset()
        >>> view = view_trace(tracer.step(), against=first)
        >>> [place.title for place in view.places]
        ['random', 'PendulumEnv', '0 StepCounter']
        >>> [view.values[at].version for at in view.places[-1].written]
        ['done@1', 'truncated@1', 'step_count@1']
    """
    return _Reading(trace, against, row, promises, numbers).view()


class _Reading:
    def __init__(
        self,
        trace: StepTrace,
        against: StepTrace | None,
        row: int | None,
        promises: TraceChecker | None,
        numbers: StageNumbers,
    ) -> None:
        self.trace, self.against, self.row, self.numbers = trace, against, row, numbers
        self.reader = ValueReader(Rows(tuple(trace.tensordict.batch_size), row))
        self.told = {} if promises is None else _told(trace, promises)
        self.before: dict[tuple[str, str], ValueVersion] = {}
        if against is not None:
            self.before = {(each.lane, each.name): each for each in against.versions()}
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
            places=tuple(self._stages()),
            values=tuple(self.values),
            time_ns=trace.time_ns,
            unattributed_ns=trace.unattributed_ns,
            against=None if self.against is None else self.against.index,
            error=None if trace.error is None else trace.error.message,
        )

    def _stages(self) -> Iterator[PlaceView]:
        lanes: dict[str, dict[NestedKey, ValueVersion]] = {
            "inverse": dict(self.trace.given),
            "forward": {},
        }
        for number, stage in enumerate(self.trace.stages):
            present = lanes[stage.direction]
            given = {key: present.get(key) for key in stage.written}
            present.update(stage.written)
            for key in stage.dropped:
                present.pop(key, None)
            written = [self._place(each, number, given[key]) for key, each in stage.written.items()]
            named = {format_key(key) for key in stage.written}
            yield PlaceView(
                kind=stage.kind,
                index=self.numbers.number(stage.index) if stage.kind == "stage" else -1,
                name=stage.name,
                lane=stage.direction,
                time_ns=stage.time_ns,
                written=tuple(written),
                present=tuple(self._place(each) for each in present.values()),
                dropped=tuple(map(format_key, stage.dropped)),
                undeclared=tuple(map(format_key, stage.undeclared)),
                lies=tuple(
                    f"{key}: {line}" if key else line
                    for (at, key), lines in self.told.items()
                    if at == number and key not in named
                    for line in lines
                ),
            )

    def _place(
        self, version: ValueVersion, stage: int | None = None, given: ValueVersion | None = None
    ) -> int:
        """Where a version stands among the values; it is read when it is first met."""
        known = self.places.get(id(version))
        if known is None:
            lies = () if stage is None else self.told.get((stage, format_key(version.key)), ())
            before = self.before.get((version.lane, version.name))
            known = self.places[id(version)] = len(self.values)
            self.values.append(self.reader.read(version, before, given, tuple(lies)))
        return known


def _told(trace: StepTrace, promises: TraceChecker) -> Told:
    """Every broken promise, by the place of who broke it and by the key."""
    number = {id(stage): at for at, stage in enumerate(trace.stages)}
    found: dict[tuple[int, str], list[str]] = {}
    for lie in promises.check(trace):
        # A spec without bounds allows nan; it is shown beside the other numbers.
        if lie.violation.code != "nan":
            key = "" if lie.violation.key is None else format_key(lie.violation.key)
            found.setdefault((number[id(lie.by)], key), []).append(lie.violation.message)
    return found


def troubles(
    trace: StepTrace, promises: TraceChecker, numbers: StageNumbers = TRACED
) -> tuple[str, ...]:
    """What is wrong in a trace, a line each: nan, infinities, and promises that are not kept.

    Args:
        trace: the trace.
        promises: the specs to hold it against.
        numbers: Shown numbers of the stages.
    """
    found: list[str] = []
    for stage in trace.stages:
        if stage.kind != "given":
            found += _not_finite(stage, _title(stage, numbers))
    for lie in promises.check(trace):
        if lie.violation.code != "nan":
            key = "" if lie.violation.key is None else f" {format_key(lie.violation.key)}"
            found.append(f"{_title(lie.by, numbers)}{key}: {lie.violation.message}")
    return tuple(found)


def _title(stage: StageTrace, numbers: StageNumbers) -> str:
    return numbers.title(stage.index, stage.name) if stage.kind == "stage" else stage.name


def _not_finite(stage: StageTrace, title: str) -> Iterator[str]:
    from torch import Tensor

    for version in stage.written.values():
        value = version.value
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        # A sum is not finite where a number is not, and takes one pass without a copy.
        if not bool(value.sum().isfinite()) and not bool(value.isfinite().all()):
            what = "nan" if bool(value.isnan().any()) else "an infinity"
            yield f"{title} {format_key(version.key)}: {what}"
