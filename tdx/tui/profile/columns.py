"""Lines and columns of the cost table, and which columns fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tdx.foundation.text import format_bytes
from tdx.tui.chain_status import truncate
from tdx.tui.profile.messages import CostRow
from tdx.tui.profile.numbers import (
    Unit,
    choose_unit,
    draw_bar,
    format_count,
    format_percent,
    format_time,
)
from tdx.tui.profile.runs import (
    Comparison,
    Delta,
    ModeSelection,
    ProfileRun,
    compare_runs,
    displayed_mode,
)

Tone = Literal["", "dim", "bar", "slower", "faster", "new", "warning"]


@dataclass(frozen=True, slots=True)
class CostLine:
    """A line of the cost table."""

    name: str
    place: int
    row: CostRow
    delta: Delta | None = None

    @property
    def is_removed(self) -> bool:
        """True if only the other measurement has this part."""
        return self.delta is not None and self.delta.after_us is None

    @property
    def is_total(self) -> bool:
        """True for the whole step, which stays below the parts."""
        return self.row.work == "total"


@dataclass(frozen=True, slots=True)
class CostSheet:
    """Content of the cost table."""

    lines: tuple[CostLine, ...] = ()
    unit: Unit = "µs"
    comparison: Comparison | None = None
    is_preempted: bool = False  # true if the medians say more than the means


_CHAIN_ORDER = ("policy", "env", "wrapper", "stage", "engine")


def build_sheet(run: ProfileRun, wanted: ModeSelection, other: ProfileRun | None) -> CostSheet:
    """Return the costs of a run, compared with those of another run or mode."""
    mode = displayed_mode(run, wanted)
    if mode is None or not mode.rows:
        return CostSheet()
    comparison = compare_runs(run, wanted, other)
    rows = [(run.key(row), row) for row in mode.rows]
    if comparison is not None:
        rows += comparison.removed.items()
    in_order = sorted(
        (row for _, row in rows), key=lambda row: (_CHAIN_ORDER.index(row.work), row.index)
    )
    lines = [
        CostLine(
            f"row-{at}",
            in_order.index(row),
            row,
            None if comparison is None else comparison.rows[key],
        )
        for at, (key, row) in enumerate(rows)
    ]
    median_us = sum(row.median_us for row in mode.rows)
    repeats_us = mode.repeats_us
    total = CostRow("total", -1, -1, "whole step", mode.step_us, median_us, 1.0, repeats_us)
    step = None if comparison is None else comparison.step
    longest = max(mode.step_us, (step and step.before_us) or 0.0)
    lines.append(CostLine("total", len(lines), total, step))
    by_medians = comparison is not None and comparison.by_medians
    is_preempted = mode.preemption is not None or by_medians
    return CostSheet(tuple(lines), choose_unit(longest), comparison, is_preempted)


@dataclass(frozen=True, slots=True)
class Column:
    """A column."""

    id: str
    title: str
    width: int
    value: Callable[[CostLine], float | None]  # returns the sort key; lines without one come last
    text: Callable[[CostLine], str]  # returns the text of a cell
    tone: Callable[[CostLine], Tone] = lambda line: ""  # returns the style of a cell
    largest_first: bool = True  # true if sorting starts with the largest value


_PART = Column(
    "part",
    "part",
    0,
    lambda line: float(line.place),
    lambda line: line.row.label,
    lambda line: "dim" if line.is_removed or line.row.work == "engine" else "",
    largest_first=False,
)
_DELTA_TEXTS = {
    "new": "new",
    "removed": "gone",
    "regrouped": "regroup",
    "unknown": "?",
    "same": "≈",
}
_DELTA_TONES: dict[str, Tone] = {"new": "new", "slower": "slower"}
_DELTA_TONES |= {"removed": "faster", "faster": "faster"}
_DELTA = Column(
    "delta",
    "change",
    7,
    lambda line: None if line.delta is None else abs(line.delta.us),
    lambda line: (
        ""
        if line.delta is None
        else _DELTA_TEXTS.get(line.delta.kind) or format_percent(line.delta.ratio)
    ),
    lambda line: "dim" if line.delta is None else _DELTA_TONES.get(line.delta.kind, "dim"),
)
_SHARE = Column(
    "share",
    "share",
    6,
    lambda line: None if line.is_removed else line.row.share,
    lambda line: "" if line.is_removed else f"{line.row.share:.1%}",
)
_ALLOCATED = Column(
    "memory",
    "memory",
    8,
    lambda line: line.row.allocated_bytes,
    lambda line: "" if line.row.allocated_bytes is None else format_bytes(line.row.allocated_bytes),
)
_KERNELS = Column(
    "kernels",
    "kernels",
    7,
    lambda line: line.row.kernels,
    lambda line: "" if line.row.kernels is None else f"{line.row.kernels:.1f}",
)
_SYNCS = Column(
    "syncs",
    "syncs",
    5,
    lambda line: sum(sync.calls for sync in line.row.syncs) or None,
    lambda line: format_count(sum(sync.calls for sync in line.row.syncs)) if line.row.syncs else "",
    lambda _: "slower",
)


def _time_column(
    name: str,
    title: str,
    unit: Unit,
    value: Callable[[CostLine], float | None],
    tone: Callable[[CostLine], Tone] = lambda line: "",
) -> Column:
    def text(line: CostLine) -> str:
        time = value(line)
        return "" if time is None else format_time(time, unit)

    return Column(name, title, max(7, len(title) + 1), value, text, tone)


def _saving(line: CostLine) -> float | None:
    """Return the sum of what the chain saves without each stage of a row."""
    savings = line.row.marginals.values()
    known = [saving.saved_us for saving in savings if saving.saved_us is not None]
    return sum(known) if known else None


def _saving_column(unit: Unit) -> Column:
    def text(line: CostLine) -> str:
        if any(saving.needed is not None for saving in line.row.marginals.values()):
            return "needed"
        total = _saving(line)
        return "" if total is None else format_time(total, unit)

    def tone(line: CostLine) -> Tone:
        savings = line.row.marginals.values()
        return "" if any(abs(each.saved_us or 0.0) > each.noise_us for each in savings) else "dim"

    return Column("marginal", "marginal", 9, _saving, text, tone)


def _bar_column(lines: Sequence[CostLine], width: int) -> Column:
    most = max((line.row.share for line in lines if not line.is_total), default=1.0) or 1.0

    def text(line: CostLine) -> str:
        has_bar = not line.is_total and not line.is_removed
        return draw_bar(line.row.share / most, width) if has_bar else ""

    return replace(_SHARE, id="bar", title="", width=width, text=text, tone=lambda _: "bar")


def choose_columns(sheet: CostSheet, width: int) -> list[Column]:
    """Return the columns that fit, from left to right; the part takes the remaining width."""
    lines, unit, comparison = sheet.lines, sheet.unit, sheet.comparison
    rows = [line.row for line in lines]
    has_device = any(row.device_us is not None for row in rows)
    title = f"{'host ' if has_device else ''}{unit}/step"
    step = _time_column(
        "step",
        title if comparison is None else f"{comparison.after} {unit}",
        unit,
        lambda line: None if line.is_removed else line.row.step_us,
    )
    ranked = [step]
    if comparison is not None:
        before = _time_column(
            "before",
            f"{comparison.before} {'median' if comparison.by_medians else unit}",
            unit,
            lambda line: None if line.delta is None else line.delta.before_us,
            lambda line: "dim",
        )
        ranked += [_DELTA, before]
    median = _time_column(
        "median",
        "median",
        unit,
        lambda line: None if line.is_removed else line.row.median_us,
        lambda line: "dim",
    )
    if sheet.is_preempted:
        ranked.insert(len(ranked) - (comparison is not None), median)
    if has_device:
        device = _time_column(
            "device",
            f"span {unit}",
            unit,
            lambda line: line.row.device_us,
            lambda line: "warning" if line.row.launch_bound else "",
        )
        busy = _time_column("busy", f"busy {unit}", unit, lambda line: line.row.busy_us)
        ranked += [device, busy]
    ranked.append(_SHARE)
    if any(row.marginals for row in rows):
        ranked.append(_saving_column(unit))
    ranked += [] if sheet.is_preempted else [median]
    ranked += [_SYNCS] if any(row.syncs for row in rows) else []
    ranked.append(_bar_column(lines, 6 if width < 60 else 12 if width < 110 else 24))
    if any(row.allocated_bytes is not None for row in rows):
        ranked.append(_ALLOCATED)
    ranked += [_KERNELS] if has_device else []
    longest = max((len(row.label) for row in rows), default=16)
    least = min(longest, 10 if width < 40 else 15 if width < 60 else 26)
    room = width - 2 - least
    taken: list[Column] = []
    for column in ranked:
        if column.width + 2 > room:
            break
        taken.append(column)
        room -= column.width + 2
    part_width = min(least + max(room, 0), max(least, longest))
    part = replace(_PART, width=part_width, text=lambda line: truncate(line.row.label, part_width))
    order = list(_ORDER)
    if comparison is not None and comparison.by_medians:
        # The medians, which the change is of, are beside it.
        mean_at, median_at = order.index("step"), order.index("median")
        order[mean_at], order[median_at] = "median", "step"
    return sorted([part, *taken], key=lambda column: order.index(column.id))


_ORDER = (
    *("part", "before", "step", "delta", "device", "busy", "kernels", "syncs", "marginal"),
    *("median", "share", "bar", "memory"),
)
