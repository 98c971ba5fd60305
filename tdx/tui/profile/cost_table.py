"""The table of costs: its columns follow its width, its order the header that is clicked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from rich.style import Style
from rich.text import Text
from textual import on
from textual.message import Message
from textual.widgets import DataTable

from tdx.tui.profile.beside import columns_beside
from tdx.tui.profile.columns import Column, Line, columns_for
from tdx.tui.profile.lines import sorted_lines

CHAIN = "part"


class CostTable(DataTable[Text]):
    """Shows lines, sorted by one column."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"cost--{tone}" for tone in ("dim", "bar", "slower", "faster", "new", "warning", "sorted")
    }
    HELP = """## What each part costs

`µs/step` is what a part adds to a mean step; all rows add up to the whole step. The figures behind
the bar are of a single call. A click on a header sorts by it; `s` and `i` do so by key."""

    class Pointed(Message):
        """The cursor is on another line."""

        def __init__(self, line: Line | None) -> None:
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
        self.sort_by, self.inverted = CHAIN, False
        self._lines: list[Line] = []
        self._shown: list[Column] = []
        self._wanted: tuple[str, str] | None = None

    @property
    def pointed(self) -> Line | None:
        """The line under the cursor."""
        lines = self.lines_shown
        return lines[self.cursor_row] if 0 <= self.cursor_row < len(lines) else None

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show these lines from now on; the cursor stays with its part."""
        self._lines = list(lines)
        self._draw()

    def on_mount(self) -> None:
        # Cells have the colours of the theme in which they were made.
        self.app.theme_changed_signal.subscribe(self, lambda _: self.call_later(self._draw))

    def on_resize(self) -> None:
        wanted = [(column.id, column.width) for column in self._columns()]
        if wanted != [(column.id, column.width) for column in self._shown]:
            self._draw()

    def _columns(self) -> list[Column]:
        beside = any(line.beside for line in self._lines)
        return (columns_beside if beside else columns_for)(self._lines, self._room)

    def sort_next(self) -> None:
        """Sort by the column behind the one that is sorted by."""
        names = [column.id for column in self._shown]
        at = names.index(self.sort_by) if self.sort_by in names else -1
        if names:
            self.sort(names[(at + 1) % len(names)])

    def sort(self, name: str) -> None:  # type: ignore[override]
        """Sort by a column, or the other way round where that is done already."""
        self.inverted = not self.inverted if name == self.sort_by else False
        self.sort_by = name
        self._draw()

    def invert(self) -> None:
        """Sort the other way round."""
        self.sort(self.sort_by)

    @on(DataTable.HeaderSelected)
    def _header(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        self.sort(str(event.column_key.value))

    @on(DataTable.RowHighlighted)
    def _highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        line = self.pointed
        if line is not None:
            self._wanted = (line.row.label, line.row.lane)
        self.post_message(self.Pointed(line))

    @property
    def _room(self) -> int:
        return self.scrollable_content_region.width or self.size.width

    @property
    def lines_shown(self) -> list[Line]:
        """The lines as they stand from top to bottom."""
        by = next((each for each in self._shown if each.id == self.sort_by), None)
        if by is None:
            return self._lines
        return sorted_lines(self._lines, by, self.inverted)

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
        self.post_message(self.Pointed(self.pointed))

    def _title(self, column: Column) -> Text:
        if column.id == self.sort_by:
            down = column.largest_first != self.inverted
            title = f"{column.title[: column.width - 1]}{'↓' if down else '↑'}"
            return Text(title, style=self._style("sorted"), justify=_side(column))
        return Text(column.title, justify=_side(column))

    def _cell(self, column: Column, line: Line) -> Text:
        tone = column.tone(line)
        style = self._style(tone) if tone else Style()
        return Text(column.text(line), style=style, justify=_side(column), no_wrap=True)

    def _style(self, tone: str) -> Style:
        found = self.get_component_rich_style(f"cost--{tone}")
        return Style(color=found.color, bold=found.bold, dim=found.dim)


def _side(column: Column) -> Literal["left", "right"]:
    left = column.id in ("part", "share") or column.id.endswith("_bar")
    return "left" if left else "right"
