"""The columns of the table of costs, and which of them there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tdx.tui.profile.numbers import bar, memory, micros, percent, signed
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
        other: the same part in the other mode, where two are side by side.
        most: the largest share of all lines.
        only_other: whether the other mode alone has the part.
    """

    name: str
    place: int
    row: CostRow
    delta: Delta | None = None
    other: CostRow | None = None
    most: float = 1.0
    only_other: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether only the other run has it."""
        return self.delta is not None and self.delta.kind == "gone"


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


def _mode(name: str, other: bool) -> Column:
    def row(line: Line) -> CostRow | None:
        if other:
            return line.other
        return None if line.only_other else line.row

    def value(line: Line) -> Value:
        found = row(line)
        return None if found is None else found.step_us

    def text(line: Line) -> str:
        found = row(line)
        return "·" if found is None else micros(found.step_us)

    return Column(name, name, 8, value, text)


_SAVED = Column(
    "saved",
    "saves",
    7,
    lambda line: _ratio(line),
    lambda line: "" if _ratio(line) is None else percent(_ratio(line) or 0.0),
    lambda line: "faster" if (_ratio(line) or 0.0) < -0.02 else "dim",
    largest_first=False,
)


def _ratio(line: Line) -> float | None:
    """How much less a part takes when it is planned."""
    if line.other is None or line.only_other or not line.row.step_us:
        return None
    return line.other.step_us / line.row.step_us - 1


def columns_for(lines: Sequence[Line], width: int, side_by_side: bool) -> list[Column]:
    """The columns that fit, each with a cell on both sides; the part gets what is left.

    Args:
        lines: what is to be shown.
        width: cells that there are.
        side_by_side: whether the lines hold two modes.
    """
    wanted = _side_by_side(lines, width) if side_by_side else _single(lines, width)
    room = width - 2
    longest = max((len(line.row.label) + 2 for line in lines), default=16)
    least, most = 15 if width < 60 else min(longest, 26), longest
    taken: list[Column] = []
    room -= least
    for column in wanted:
        if column.width + 2 > room:
            break
        taken.append(column)
        room -= column.width + 2
    order = [column.id for column in _shown_order(wanted)]
    taken.sort(key=lambda column: order.index(column.id))
    return [part_column(min(least + max(room, 0), max(least, most))), *taken]


def _single(lines: Sequence[Line], width: int) -> list[Column]:
    """The columns for one mode, those that matter most first."""
    compares = any(line.delta is not None for line in lines)
    device = any(line.row.device_us is not None for line in lines)
    measured = any(line.row.allocated_bytes is not None for line in lines)
    # The GPU stands right beside the CPU, and the change goes before the bar.
    return [
        _STEP,
        *([_DELTA] if compares else []),
        *([_DEVICE] if device else []),
        _share(5 if width < 60 else 14 if width < 110 else 24),
        _figure("p95"),
        _figure("p50"),
        *([_ALLOCATED] if measured else []),
        _figure("p99"),
        _figure("max"),
        *([_KERNELS] if device else []),
        _COUNT,
        _figure("mean"),
        _figure("p90"),
    ]


_ORDER = (
    "step",
    "device",
    "kernels",
    "delta",
    "share",
    "n",
    "mean",
    "p50",
    "p90",
    "p95",
    "p99",
    "max",
)


def _shown_order(columns: Sequence[Column]) -> list[Column]:
    """As they stand from left to right."""
    order = {name: place for place, name in enumerate(_ORDER)}
    return sorted(columns, key=lambda column: order.get(column.id, len(order)))


def _side_by_side(lines: Sequence[Line], width: int) -> list[Column]:
    """The columns for two modes: times, what the second saves, and a bar of each."""
    rows = [row for line in lines for row in (line.row, line.other) if row is not None]
    most = max((row.step_us for row in rows), default=1.0)
    wide = 12 if width < 110 else 24
    return [
        _mode("eager", False),
        _mode("planned", True),
        _SAVED,
        _mode_bar("eager bar", False, wide, most),
        _mode_bar("planned bar", True, wide, most),
    ]


def _mode_bar(title: str, other: bool, width: int, most: float) -> Column:
    """Bars of both modes have the same measure."""

    def value(line: Line) -> float | None:
        row = line.other if other else None if line.only_other else line.row
        return None if row is None else row.step_us

    return Column(
        title.replace(" ", "_"),
        title,
        width,
        value,
        lambda line: bar((value(line) or 0.0) / most if most else 0.0, width),
        lambda line: "bar",
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
