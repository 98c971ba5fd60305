"""The columns of the table of costs, and which of them there is room for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tdx.tui.profile.numbers import bar, few, memory, micros, signed
from tdx.tui.profile.requests import CostRow
from tdx.tui.profile.runs import Delta

Tone = Literal["", "dim", "bar", "slower", "faster", "new", "warning"]
Value = float | str | None
LANES = {"forward": "↓", "inverse": "↑", "reset": "↺", "step": " ", "specs": " "}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table.

    Args:
        name: tells it from the others.
        place: where it stands in the chain.
        row: what was measured.
        delta: the difference to another run; none where there is no other.
        most: the largest share of all lines.
        beside: the part in each mode that has it, where several are side by side.
    """

    name: str
    place: int
    row: CostRow
    delta: Delta | None = None
    most: float = 1.0
    beside: Mapping[str, CostRow] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        """Whether only the other run has it."""
        return self.delta is not None and self.delta.kind == "gone"

    @property
    def mode(self) -> str:
        """Of modes side by side the last one that has the part."""
        return next(reversed([*self.beside]), "")

    @property
    def looked_at(self) -> CostRow:
        """What is drawn below the table."""
        return self.beside[self.mode] if self.beside else self.row


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Args:
        id: its id.
        title: what stands on it.
        width: in cells.
        value: what lines are sorted by; those without one come last.
        text: what is shown.
        tone: how it is coloured.
        largest_first: whether sorting begins with the largest.
    """

    id: str
    title: str
    width: int
    value: Callable[[Line], Value]
    text: Callable[[Line], str]
    tone: Callable[[Line], Tone] = lambda line: ""
    largest_first: bool = True


def part_column(width: int) -> Column:
    """The column that says whose the line is; sorting by it gives the order of the chain."""
    return Column(
        "part",
        "part",
        width,
        lambda line: float(line.place),
        lambda line: _fitted(line.row, width),
        lambda line: "dim" if line.is_gone or line.row.work == "engine" else "",
        largest_first=False,
    )


def _fitted(row: CostRow, width: int) -> str:
    lane = LANES.get(row.lane, " ")
    room = width - 2
    label = row.label if len(row.label) <= room else f"{row.label[: room - 1]}…"
    return f"{label.ljust(room)} {lane}"


_STEP = Column(
    "step",
    "µs/step",
    8,
    lambda line: None if line.is_gone else line.row.step_us,
    lambda line: "gone" if line.is_gone else micros(line.row.step_us),
    lambda line: "dim" if line.is_gone else "",
)
_DELTA = Column(
    "delta",
    "change",
    7,
    lambda line: None if line.delta is None else line.delta.us,
    lambda line: _delta_text(line.delta),
    lambda line: _delta_tone(line.delta),
)
_ALLOCATED = Column(
    "memory",
    "memory",
    8,
    lambda line: line.row.allocated_bytes,
    lambda line: "" if line.row.allocated_bytes is None else memory(line.row.allocated_bytes),
)
_DEVICE = Column(
    "device",
    "GPU µs",
    8,
    lambda line: line.row.device_us,
    lambda line: "" if line.row.device_us is None else micros(line.row.device_us),
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
    lambda line: few(_syncs(line.row)) if line.row.syncs else "",
    lambda _: "slower",
)
_MARGINAL = Column(
    "marginal",
    "marginal",
    9,
    lambda line: _marginal(line.row),
    lambda line: _marginal_text(line.row),
    lambda line: "" if _is_clear(line.row) else "dim",
)
_COUNT = Column(
    "n", "n", 7, lambda line: float(line.row.n), lambda line: f"{line.row.n:,}", lambda _: "dim"
)


def _share(width: int) -> Column:
    def text(line: Line) -> str:
        if line.is_gone:
            return ""
        share = line.row.share / line.most if line.most else 0.0
        if width < 10:
            return bar(share, width)
        return f"{bar(share, width - 4)}{line.row.share:>4.0%}"

    return Column("share", "share", width, lambda line: line.row.share, text, lambda _: "bar")


def _figure(name: str) -> Column:
    return Column(
        name,
        name,
        7,
        lambda line: None if line.is_gone else line.row.figures[name],
        lambda line: "" if line.is_gone else micros(line.row.figures[name]),
        lambda line: "dim" if name in ("p50", "mean") else "",
    )


def columns_that_fit(wanted: Sequence[Column], lines: Sequence[Line], width: int) -> list[Column]:
    """The part, which gets what is left, and as many columns as fit; a cell on both sides of each.

    Args:
        wanted: those that matter most first.
        lines: what is to be shown.
        width: cells that there are.
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
    return [part_column(min(least + max(room, 0), max(least, longest))), *taken]


def columns_for(lines: Sequence[Line], width: int) -> list[Column]:
    """The columns for one mode, as they stand from left to right."""
    found = columns_that_fit(_wanted(lines, width), lines, width)
    return sorted(found, key=lambda column: _ORDER.index(column.id))


def _wanted(lines: Sequence[Line], width: int) -> list[Column]:
    """Those that matter most first; the GPU is right beside the CPU, the change before the bar."""
    rows = [line.row for line in lines]
    compares = any(line.delta is not None for line in lines)
    device = any(row.device_us is not None for row in rows)
    measured = any(row.allocated_bytes is not None for row in rows)
    waits = any(row.syncs for row in rows)
    return [
        replace(_STEP, title="CPU µs") if device else _STEP,
        *([_DELTA] if compares else []),
        *([_DEVICE] if device else []),
        *([_MARGINAL] if any(row.marginals for row in rows) else []),
        _share(5 if width < 60 else 14 if width < 110 else 24),
        _figure("p95"),
        *([_SYNCS] if waits else []),
        _figure("p50"),
        *([_ALLOCATED] if measured else []),
        *([_KERNELS] if device else []),
        _figure("p99"),
        _figure("max"),
        _COUNT,
        _figure("mean"),
        _figure("p90"),
    ]


_ORDER = (
    *("part", "step", "device", "kernels", "syncs", "delta", "marginal", "share"),
    *("n", "mean", "p50", "p90", "p95", "p99", "max", "memory"),
)


def _delta_text(delta: Delta | None) -> str:
    if delta is None:
        return ""
    if delta.kind == "new":
        return "new"
    return "≈" if delta.kind == "same" else signed(delta.us)


def _delta_tone(delta: Delta | None) -> Tone:
    if delta is None or delta.kind == "same":
        return "dim"
    if delta.kind == "gone":
        return "faster"
    return "new" if delta.kind == "new" else delta.kind


def _syncs(row: CostRow) -> float:
    return sum(sync.calls for sync in row.syncs)


def _marginal(row: CostRow) -> float | None:
    """What the chain saves without the stages in it, each left out alone."""
    known = [each.saved_us for each in row.marginals.values() if each.saved_us is not None]
    return sum(known) if known else None


def _marginal_text(row: CostRow) -> str:
    if any(each.needed is not None for each in row.marginals.values()):
        return "needed"
    found = _marginal(row)
    return "" if found is None else micros(found)


def _is_clear(row: CostRow) -> bool:
    """Whether what the chain saves without it is more than noise."""
    return any(abs(each.saved_us or 0.0) > each.noise_us for each in row.marginals.values())
