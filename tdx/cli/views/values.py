"""Values that the stages of a chain write, and the state that they keep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tdx.cli.views import (
    Block,
    Cell,
    Heading,
    Paragraph,
    Style,
    Table,
    View,
    fact,
    first_that_fits,
    stage_list,
)
from tdx.cli.views.specs import spec_columns
from tdx.foundation.keys import format_key
from tdx.foundation.text import count_text
from tdx.inspection.value_stats import PhaseValues, StageValues, ValueStats, ValueViolation
from tdx.inspection.values_report import StateReport, ValuesReport
from tdx.specs.leaf import domain_text, shape_text

_TITLES = (
    *("", "stage", "version", "changed", "shape", "dtype"),
    *("min", "mean", "max", "nan", "outside", "spec"),
)
_STATE_TITLES = ("stage", "name", "shape", "dtype", "min", "mean", "max")
_VIOLATION, _SUSPECT = "!", "?"


def values_view(report: ValuesReport, calls: Sequence[str]) -> View:
    """Lay out the values that each stage wrote, and its spec violations."""

    def blocks() -> list[Block]:
        facts = f"{count_text(report.steps, 'step')}  {count_text(report.resets, 'reset')}"
        batch = f"batch {shape_text(report.batch_size)}  {facts}"
        result: list[Block] = [Heading(report.env, batch, level=1), *stage_list(calls)]
        for phase in report.phases:
            if phase.count > 1:
                result.append(Heading(f"{phase.count} {phase.phase}s", "combined"))
            else:
                before = "before step " if phase.phase == "reset" else ""
                result.append(Heading(phase.phase, f"{before}{phase.first}"))
            result.append(_phase(phase))
        if report.violations:
            result.append(Heading("spec violations"))
            result += [block for violation in report.violations for block in _violation(violation)]
        return result

    return View("values", report, blocks, lambda: _records(report), calls)


def _phase(phase: PhaseValues) -> Block:
    return first_that_fits(
        lambda: [_table(phase, whole=True)],
        lambda: [_table(phase, whole=False)],
        lambda: _narrow(phase),
    )


def _table(phase: PhaseValues, *, whole: bool) -> Table:
    rows: list[list[Cell]] = []
    previous = ""
    for stage in phase.stages:
        place = _place(stage)
        for value in stage.values:
            style, mark = _mark(stage, value)
            rows.append(
                [
                    Cell(mark, style),
                    Cell("" if place == previous else place, "dim"),
                    Cell(value.version, style or "name"),
                    Cell(_changed(value, phase), "dim"),
                    Cell(shape_text(value.shape)),
                    Cell(value.dtype),
                    *(Cell(_number(v)) for v in (value.minimum, value.mean, value.maximum)),
                    Cell(str(value.nans) if value.nans else "", "bad"),
                    Cell(_share(value.outside), "bad" if value.outside else "dim"),
                    Cell(_spec(value, whole=whole), "" if value.spec else "dim"),
                ]
            )
            previous = place
    values = [value for stage in phase.stages for value in stage.values]
    is_shown = {
        "changed": any(_changed(value, phase) for value in values),
        "nan": any(value.nans for value in values),
        "outside": any(value.outside for value in values),
    }
    shown = [index for index, title in enumerate(_TITLES) if is_shown.get(title, True)]
    titles = [_TITLES[index] for index in shown]
    return Table.of(titles, [[row[index] for index in shown] for row in rows], fixed=True)


def _narrow(phase: PhaseValues) -> Iterator[Block]:
    """Yield each value with its numbers below, for narrow terminals."""
    for stage in phase.stages:
        if stage.values:
            yield Paragraph([Cell(_place(stage), "dim")])
        for value in stage.values:
            style, mark = _mark(stage, value)
            kind = f"  {shape_text(value.shape)}  {value.dtype}"
            name = Cell(f"{mark} {value.version}" if mark else value.version, style or "name")
            yield Paragraph([name, Cell(kind)], indent=2)
            numbers = (value.minimum, value.mean, value.maximum)
            low, mean, high = map(_number, numbers)
            nans = f"  nan {value.nans}" if value.nans else ""
            outside = f"  outside {_share(value.outside)}" if value.outside else ""
            text = f"{low} … {high}  mean {mean}{nans}{outside}" if low else ""
            spec = [Cell("  spec ", "dim"), Cell(_spec(value, whole=False))]
            changed = _changed(value, phase)
            if changed:
                spec.append(Cell(f"  changed {changed}", "dim"))
            yield Paragraph([Cell(text, style), *spec], indent=4)


def _place(stage: StageValues) -> str:
    is_inverse = stage.kind == "stage" and stage.direction == "inverse"
    return f"{stage.place} (inverse)" if is_inverse else stage.place


def _mark(stage: StageValues, value: ValueStats) -> tuple[Style, str]:
    """Return the mark of a spec violation, or of a value that is only suspicious."""
    if value.violations:
        return "bad", _VIOLATION
    if value.nans or value.key in stage.undeclared:
        return "changed", _SUSPECT
    return "", ""


def _changed(value: ValueStats, phase: PhaseValues) -> str:
    """Return in how many steps the stage changed the value, if that says anything."""
    if value.changed is None:
        return "" if value.present == phase.count else f"in {value.present} of {phase.count}"
    if phase.count == 1:
        return "yes" if value.changed else "no"
    return f"{value.changed} of {value.present}"


def _number(number: float | None) -> str:
    if number is None:
        return ""
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return f"{number:.4g}"


def _share(share: float | None) -> str:
    if share is None:
        return ""
    if share == 0:
        return "0"
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def _spec(value: ValueStats, *, whole: bool) -> str:
    return "none" if value.spec is None else domain_text(value.spec, whole=whole)


def _violation(violation: ValueViolation) -> Iterator[Paragraph]:
    place = f"{violation.index} {violation.name}" if violation.kind == "stage" else violation.name
    key = "" if violation.key is None else f", key {format_key(violation.key)!r}"
    step = f"step {violation.step}"
    first = step if violation.phase == "step" else f"the reset before {step}"
    more = f" and {count_text(violation.count - 1, 'more time')}" if violation.count > 1 else ""
    message = Cell(f"{violation.message} (in {first}{more})")
    yield Paragraph([Cell(f"{violation.code} ", "bad"), Cell(f"{place}{key}: ", "name"), message])
    if violation.spec is not None:
        spec = violation.spec
        text = f"{shape_text(spec.shape)} {spec.dtype} {domain_text(spec, whole=False)}"
        yield fact("spec", f"{spec.kind} {text}")
    if violation.hint:
        yield fact("hint", violation.hint)


def _records(report: ValuesReport) -> Iterator[dict[str, object]]:
    """Yield a record for each value."""
    for phase in report.phases:
        for stage in phase.stages:
            for value in stage.values:
                row = value.to_dict()
                spec = row.pop("spec")
                yield {
                    "phase": phase.phase,
                    "first": phase.first,
                    "count": phase.count,
                    "stage_kind": stage.kind,
                    "stage": stage.index,
                    "name": stage.name,
                    "direction": stage.direction,
                    **row,
                    "undeclared": value.key in stage.undeclared,
                    **spec_columns("spec", spec, with_part=True),
                }


def state_view(report: StateReport, calls: Sequence[str]) -> View:
    """Lay out the state of each stage."""

    def blocks() -> list[Block]:
        facts = f"after {count_text(report.steps, 'random step')}"
        result: list[Block] = [Heading(report.env, facts, level=1), *stage_list(calls)]
        if not report.entries:
            return [*result, Paragraph([Cell("no stage keeps a state")])]
        titles = (*_STATE_TITLES, *(("changed",) if report.steps else ()))
        rows = []
        for entry in report.entries:
            values = entry.value.double()
            extremes = (values.min(), values.mean(), values.max()) if values.numel() else ()
            cells = [f"{entry.stage} {entry.transform}", entry.name]
            cells += [shape_text(entry.shape), entry.dtype]
            cells += [f"{float(number):.4g}" for number in extremes] or [""] * 3
            cells += [("yes" if entry.changed else "no")] if report.steps else []
            rows.append([Cell(text) for text in cells])
        return [*result, Table.of(titles, rows)]

    return View("state", report, blocks, lambda: report.entries, calls)
