"""Columns of the cost table, and which of them fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tdx.tui.chain_status import truncate
from tdx.tui.profile.messages import MODES, CostRow
from tdx.tui.profile.numbers import (
    draw_bar,
    format_bytes,
    format_count,
    format_delta,
    format_micros,
    format_percent,
)
from tdx.tui.profile.runs import Delta

Tone = Literal["", "dim", "bar", "slower", "faster", "new", "warning"]
LANES = {"forward": "↓", "inverse": "↑", "reset": "↺", "step": " ", "specs": " "}


@dataclass(frozen=True, slots=True)
class CostLine:
    """A line of the cost table.

    Args:
        name: Row key.
        place: Position in the chain.
        row: Measurement.
        delta: Difference to another run. ``None``: there is none.
        most: Largest share of all lines.
        by_mode: Measurement in each mode, if several modes are shown side by side.
    """

    name: str
    place: int
    row: CostRow
    delta: Delta | None = None
    most: float = 1.0
    by_mode: Mapping[str, CostRow] = field(default_factory=dict)

    @property
    def is_removed(self) -> bool:
        """True if only the other run has this part."""
        return self.delta is not None and self.delta.kind == "removed"

    @property
    def mode(self) -> str:
        """The last mode that has this part, if several are shown."""
        return next(reversed([*self.by_mode]), "")

    @property
    def detail_row(self) -> CostRow:
        """Measurement that the details below the table show."""
        return self.by_mode[self.mode] if self.by_mode else self.row


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Args:
        id: Id.
        title: Title.
        width: Width in cells.
        value: Returns the sort key; lines without one come last.
        text: Returns the text of a cell.
        tone: Returns the style of a cell.
        largest_first: True if sorting starts with the largest value.
    """

    id: str
    title: str
    width: int
    value: Callable[[CostLine], float | None]
    text: Callable[[CostLine], str]
    tone: Callable[[CostLine], Tone] = lambda line: ""
    largest_first: bool = True


def _part_column(width: int) -> Column:
    """Return the column with the name of the part; sorting by it gives chain order."""

    def text(line: CostLine) -> str:
        label, lane = truncate(line.row.label, width - 2), LANES.get(line.row.lane, " ")
        return f"{label.ljust(width - 2)} {lane}"

    return Column(
        "part",
        "part",
        width,
        lambda line: float(line.place),
        text,
        lambda line: "dim" if line.is_removed or line.row.work == "engine" else "",
        largest_first=False,
    )


def _delta_text(line: CostLine) -> str:
    if line.delta is None:
        return ""
    if line.delta.kind == "new":
        return "new"
    return "≈" if line.delta.kind == "same" else format_delta(line.delta.us)


_DELTA_TONES: dict[str, Tone] = {
    "new": "new",
    "removed": "faster",
    "same": "dim",
    "slower": "slower",
    "faster": "faster",
}


_STEP = Column(
    "step",
    "µs/step",
    8,
    lambda line: None if line.is_removed else line.row.step_us,
    lambda line: "gone" if line.is_removed else format_micros(line.row.step_us),
    lambda line: "dim" if line.is_removed else "",
)
_DELTA = Column(
    "delta",
    "change",
    7,
    lambda line: None if line.delta is None else line.delta.us,
    _delta_text,
    lambda line: "dim" if line.delta is None else _DELTA_TONES[line.delta.kind],
)
_ALLOCATED = Column(
    "memory",
    "memory",
    8,
    lambda line: line.row.allocated_bytes,
    lambda line: "" if line.row.allocated_bytes is None else format_bytes(line.row.allocated_bytes),
)
_DEVICE = Column(
    "device",
    "GPU µs",
    8,
    lambda line: line.row.device_us,
    lambda line: "" if line.row.device_us is None else format_micros(line.row.device_us),
    lambda line: "warning" if line.row.launch_bound else "",
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
    lambda line: _syncs(line.row) or None,
    lambda line: format_count(_syncs(line.row)) if line.row.syncs else "",
    lambda _: "slower",
)


def _saving(line: CostLine) -> float | None:
    """Return the sum of what the chain saves without each stage of a row."""
    savings = line.row.marginals.values()
    known = [saving.saved_us for saving in savings if saving.saved_us is not None]
    return sum(known) if known else None


def _saving_text(line: CostLine) -> str:
    if any(saving.needed is not None for saving in line.row.marginals.values()):
        return "needed"
    total = _saving(line)
    return "" if total is None else format_micros(total)


def _saving_tone(line: CostLine) -> Tone:
    savings = line.row.marginals.values()
    return "" if any(abs(each.saved_us or 0.0) > each.noise_us for each in savings) else "dim"


_SAVING = Column("marginal", "marginal", 9, _saving, _saving_text, _saving_tone)
_COUNT = Column(
    "n", "calls", 7, lambda line: float(line.row.n), lambda line: f"{line.row.n:,}", lambda _: "dim"
)


def _share_column(width: int) -> Column:
    def text(line: CostLine) -> str:
        if line.is_removed:
            return ""
        share = line.row.share / line.most if line.most else 0.0
        if width < 10:
            return draw_bar(share, width)
        return f"{draw_bar(share, width - 4)}{line.row.share:>4.0%}"

    return Column("share", "share", width, lambda line: line.row.share, text, lambda _: "bar")


def _figure_column(name: str) -> Column:
    return Column(
        name,
        f"{name}/call",
        9,
        lambda line: None if line.is_removed else line.row.figures[name],
        lambda line: "" if line.is_removed else format_micros(line.row.figures[name]),
        lambda line: "dim" if name in ("p50", "mean") else "",
    )


def fit_columns(wanted: Sequence[Column], lines: Sequence[CostLine], width: int) -> list[Column]:
    """Return the part column, with the remaining width, and the columns that fit.

    Args:
        wanted: Columns, the most important first.
        lines: Lines to show.
        width: Available width in cells.
    """
    longest = max((len(line.row.label) + 2 for line in lines), default=16)
    least = 15 if width < 60 else min(longest, 26)
    room = width - 2 - least
    taken: list[Column] = []
    for column in wanted:
        if column.width + 2 > room:
            break
        taken.append(column)
        room -= column.width + 2
    return [_part_column(min(least + max(room, 0), max(least, longest))), *taken]


def choose_columns(lines: Sequence[CostLine], width: int) -> list[Column]:
    """Return the columns for one mode that fit, from left to right."""
    rows = [line.row for line in lines]
    compares = any(line.delta is not None for line in lines)
    device = any(row.device_us is not None for row in rows)
    measured = any(row.allocated_bytes is not None for row in rows)
    waits = any(row.syncs for row in rows)
    ranked = [
        replace(_STEP, title="CPU µs") if device else _STEP,
        *([_DELTA] if compares else []),
        *([_DEVICE] if device else []),
        *([_SAVING] if any(row.marginals for row in rows) else []),
        _share_column(5 if width < 60 else 14 if width < 110 else 24),
        _figure_column("p95"),
        *([_SYNCS] if waits else []),
        _figure_column("p50"),
        *([_ALLOCATED] if measured else []),
        *([_KERNELS] if device else []),
        _figure_column("p99"),
        _figure_column("max"),
        _COUNT,
        _figure_column("mean"),
        _figure_column("p90"),
    ]
    columns = fit_columns(ranked, lines, width)
    return sorted(columns, key=lambda column: _ORDER.index(column.id))


_ORDER = (
    *("part", "step", "device", "kernels", "syncs", "delta", "marginal", "share"),
    *("n", "mean", "p50", "p90", "p95", "p99", "max", "memory"),
)


def _syncs(row: CostRow) -> float:
    return sum(sync.calls for sync in row.syncs)


def choose_mode_columns(lines: Sequence[CostLine], width: int) -> list[Column]:
    """Return the columns for several modes: times, savings relative to the first mode, bars.

    Args:
        lines: Lines to show.
        width: Available width in cells.
    """
    modes = [mode for mode in MODES if any(mode in line.by_mode for line in lines)]
    most = max((row.step_us for line in lines for row in line.by_mode.values()), default=1.0)
    bar_width = 12 if width < 110 else 24
    saves = [_mode_saving_column(modes[0], mode) for mode in modes[1:]]
    bars = [_mode_bar_column(mode, bar_width, most) for mode in modes]
    columns = fit_columns([*map(_mode_time_column, modes), *saves, *bars], lines, width)
    ids = [
        "part",
        *(name for mode in modes for name in (mode, f"{mode}_saves")),
        *(f"{mode}_bar" for mode in modes),
    ]
    return sorted(columns, key=lambda column: ids.index(column.id))


def _step_us(line: CostLine, mode: str) -> float | None:
    row = line.by_mode.get(mode)
    return None if row is None else row.step_us


def _mode_time_column(mode: str) -> Column:
    def text(line: CostLine) -> str:
        time = _step_us(line, mode)
        return "·" if time is None else format_micros(time)

    return Column(
        mode,
        mode,
        8,
        lambda line: _step_us(line, mode),
        text,
        lambda line: "dim" if _step_us(line, mode) is None else "",
    )


def _mode_saving_column(first: str, mode: str) -> Column:
    """Return the column for the saving relative to the first mode."""

    def ratio(line: CostLine) -> float | None:
        before, after = _step_us(line, first), _step_us(line, mode)
        return None if after is None or not before else after / before - 1

    def text(line: CostLine) -> str:
        saved = ratio(line)
        if saved is None:
            return ""
        return "≈" if abs(saved) < 0.005 else format_percent(saved)

    return Column(
        f"{mode}_saves",
        "saves",
        7,
        ratio,
        text,
        lambda line: "faster" if (ratio(line) or 0.0) < -0.02 else "dim",
        largest_first=False,
    )


def _mode_bar_column(mode: str, width: int, most: float) -> Column:
    """Return a bar column; the bars of all modes have the same scale."""
    return Column(
        f"{mode}_bar",
        f"{mode} bar",
        width,
        lambda line: _step_us(line, mode),
        lambda line: draw_bar((_step_us(line, mode) or 0.0) / most if most else 0.0, width),
        lambda line: "bar",
    )
