"""The cost table and its lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from rich.style import Style
from rich.text import Text
from textual import on
from textual.message import Message
from textual.widgets import DataTable

from tdx.tui.profile.columns import Column, CostLine, choose_columns, choose_mode_columns
from tdx.tui.profile.messages import CostRow, ModeCosts
from tdx.tui.profile.runs import (
    ModeSelection,
    RowKey,
    Run,
    compare_runs,
    displayed_mode,
    displayed_modes,
    is_side_by_side,
)


def build_lines(run: Run, wanted: ModeSelection, other: Run | None) -> list[CostLine]:
    """Return the lines of a run in chain order.

    Args:
        run: Run to show.
        wanted: Selected modes.
        other: Run to compare with. ``None``: no comparison.
    """
    mode = displayed_mode(run, wanted)
    if mode is None:
        return []
    if is_side_by_side(run, wanted):
        return _side_by_side_lines(run, displayed_modes(run, wanted))
    comparison = None if other is None else compare_runs(run, other, mode.mode)
    rows = [(run.key(row), row) for row in mode.rows]
    if other is not None and comparison is not None:
        rows += [(other.key(row), row) for row in comparison.removed]
    deltas = {} if comparison is None else comparison.rows
    most = max((row.share for row in mode.rows), default=1.0)
    return [
        CostLine(f"row-{place}", place, row, deltas.get(key), most=most)
        for place, (key, row) in enumerate(rows)
    ]


def _side_by_side_lines(run: Run, modes: list[ModeCosts]) -> list[CostLine]:
    """Return a line for each part of any mode; fused stages come with their first one."""
    found: dict[RowKey, dict[str, CostRow]] = {}
    for mode in modes:
        for row in mode.rows:
            found.setdefault(run.key(row), {})[mode.mode] = row
    kinds = {row.work: None for mode in modes for row in mode.rows}
    works = [work for work in kinds if work != "engine"] + ["engine"]

    def place(rows: dict[str, CostRow]) -> tuple[int, int]:
        row = next(iter(rows.values()))
        return works.index(row.work), row.index

    ranked = sorted(found.values(), key=place)
    return [
        CostLine(f"row-{at}", at, next(iter(rows.values())), by_mode=rows)
        for at, rows in enumerate(ranked)
    ]


def sort_lines(lines: list[CostLine], column: Column, is_inverted: bool) -> list[CostLine]:
    """Sort lines by a column; lines without a value come last."""
    there = [line for line in lines if column.value(line) is not None]
    rest = [line for line in lines if column.value(line) is None]
    down = column.largest_first != is_inverted
    return sorted(there, key=lambda line: _sort_value(column, line), reverse=down) + rest


def _sort_value(column: Column, line: CostLine) -> float:
    value = column.value(line)
    return float(value) if isinstance(value, (int, float)) else 0.0


CHAIN_ORDER = "part"


class CostTable(DataTable[Text]):
    """Shows lines, sorted by one column."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"cost--{tone}" for tone in ("dim", "bar", "slower", "faster", "new", "warning", "sorted")
    }
    HELP = """## Costs

`µs/step` is the share of a part in the mean step; all rows add up to the whole step. The figures
after the bar are per call. Click a header or press `s` to sort, and `i` to reverse the order."""

    class CursorMoved(Message):
        """The cursor is on another line."""

        def __init__(self, line: CostLine | None) -> None:
            super().__init__()
            self.line = line

    def __init__(self) -> None:
        super().__init__(
            id="costs",
            cursor_type="row",
            cell_padding=1,
            cursor_foreground_priority="renderable",
        )
        self.display = False
        self.sort_by, self.is_inverted = CHAIN_ORDER, False
        self._lines: list[CostLine] = []
        self._shown: list[Column] = []
        self._wanted: tuple[str, str] | None = None

    @property
    def selected_line(self) -> CostLine | None:
        """The line under the cursor."""
        lines = self.lines_shown
        return lines[self.cursor_row] if 0 <= self.cursor_row < len(lines) else None

    def show_lines(self, lines: Sequence[CostLine]) -> None:
        """Replace the lines; the cursor stays on its part."""
        self._lines = list(lines)
        self._draw()

    def on_mount(self) -> None:
        # Cells keep the colors of the theme in which they were created.
        self.app.theme_changed_signal.subscribe(self, lambda _: self.call_later(self._draw))

    def on_resize(self) -> None:
        wanted = [(column.id, column.width) for column in self._columns()]
        if wanted != [(column.id, column.width) for column in self._shown]:
            self._draw()

    def _columns(self) -> list[Column]:
        by_mode = any(line.by_mode for line in self._lines)
        return (choose_mode_columns if by_mode else choose_columns)(self._lines, self._room)

    def sort_next(self) -> None:
        """Sort by the next column."""
        names = [column.id for column in self._shown]
        at = names.index(self.sort_by) if self.sort_by in names else -1
        if names:
            self.sort(names[(at + 1) % len(names)])

    def sort(self, name: str) -> None:  # type: ignore[override]
        """Sort by a column; if it is the current one, reverse the order."""
        self.is_inverted = not self.is_inverted if name == self.sort_by else False
        self.sort_by = name
        self._draw()

    def invert(self) -> None:
        """Reverse the order."""
        self.sort(self.sort_by)

    @on(DataTable.HeaderSelected)
    def _header(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        self.sort(str(event.column_key.value))

    @on(DataTable.RowHighlighted)
    def _highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        line = self.selected_line
        if line is not None:
            self._wanted = (line.row.label, line.row.lane)
        self.post_message(self.CursorMoved(line))

    @property
    def _room(self) -> int:
        return self.scrollable_content_region.width or self.size.width

    @property
    def lines_shown(self) -> list[CostLine]:
        """The lines from top to bottom."""
        by = next((each for each in self._shown if each.id == self.sort_by), None)
        if by is None:
            return self._lines
        return sort_lines(self._lines, by, self.is_inverted)

    def _draw(self) -> None:
        wanted = self._wanted
        self._shown = self._columns()
        with self.prevent(DataTable.RowHighlighted):
            self.clear(columns=True)
            for column in self._shown:
                self.add_column(self._title(column), key=column.id, width=column.width)
            lines = self.lines_shown
            for line in lines:
                self.add_row(*(self._cell(column, line) for column in self._shown), key=line.name)
            places = [(line.row.label, line.row.lane) for line in lines]
            at = places.index(wanted) if wanted in places else 0
            self.move_cursor(row=at, scroll=True)
        self.post_message(self.CursorMoved(self.selected_line))

    def _title(self, column: Column) -> Text:
        if column.id == self.sort_by:
            down = column.largest_first != self.is_inverted
            title = f"{column.title[: column.width - 1]}{'↓' if down else '↑'}"
            return Text(title, style=self._style("sorted"), justify=_alignment(column))
        return Text(column.title, justify=_alignment(column))

    def _cell(self, column: Column, line: CostLine) -> Text:
        tone = column.tone(line)
        style = self._style(tone) if tone else Style()
        return Text(column.text(line), style=style, justify=_alignment(column), no_wrap=True)

    def _style(self, tone: str) -> Style:
        found = self.get_component_rich_style(f"cost--{tone}")
        return Style(color=found.color, bold=found.bold, dim=found.dim)


def _alignment(column: Column) -> Literal["left", "right"]:
    left = column.id in ("part", "share") or column.id.endswith("_bar")
    return "left" if left else "right"
