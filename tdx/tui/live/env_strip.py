"""All envs of a batch in one line, the one in focus marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message

from tdx.inspection.live.views import EnvCell
from tdx.tui.live.line_widget import RowWidget

_NAMES = ("plain", "focus", "muted", "good", "warn")
_BARS = "▁▂▃▄▅▆▇█"
_NUMBER = 6
Part = tuple[str, str, bool]
Row = tuple[Part, ...]
"""Parts of the line: a text, its style, and whether it belongs to the env in focus."""


class EnvStrip(RowWidget[Row]):
    """A cell for each env: its number, how its return stands to that of the others, its steps."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"env--{name}" for name in _NAMES}
    DEFAULT_CSS = """
    EnvStrip {
        height: 1;
        & > .env--plain { color: $foreground; }
        & > .env--focus { background: $primary 30%; text-style: bold; }
        & > .env--muted { color: $text-muted; }
        & > .env--good { color: $text-success; }
        & > .env--warn { color: $text-warning; text-style: bold; }
    }
    """

    class Picked(Message):
        """An env was clicked; none for all of them together."""

        def __init__(self, row: int | None) -> None:
            super().__init__()
            self.row = row

    def __init__(self) -> None:
        super().__init__(id="live-envs")
        self.cells: Sequence[EnvCell] = ()
        self.row: int | None = None
        self.count = 0
        self._places: list[tuple[int, int, int | None]] = []

    def show(self, cells: Sequence[EnvCell]) -> None:
        """Draw these from now on."""
        self.cells = cells
        self.outdated()

    def set_focus(self, row: int | None, count: int) -> None:
        """Mark an env; none for all of them together."""
        if (row, count) != (self.row, self.count):
            self.row, self.count = row, count
            self.outdated()

    def all_rows(self) -> Iterator[Row]:
        all_ = f" all {self.count} "
        row = [(all_, "muted", self.row is None)]
        self._places = [(0, len(all_), None)]
        wide = len(str(max(0, self.count - 1)))
        left, number = self.size.width - len(all_), _NUMBER
        if len(self.cells) * (wide + number + 5) > left:
            number = max((len(_total(each)) for each in self.cells), default=1)
        size = wide + number + 5
        room = max(1, left // size)
        first = max(0, min((self.row or 0) - room // 2, len(self.cells) - room))
        totals = [each.total for each in self.cells if math.isfinite(each.total)]
        span = (min(totals), max(totals)) if totals else (0.0, 0.0)
        x = len(all_)
        for cell in self.cells[first : first + room]:
            row += self._cell(cell, span, wide, number)
            self._places.append((x, x + size, cell.row))
            x += size
        yield tuple(row)

    def _cell(self, cell: EnvCell, span: tuple[float, float], wide: int, number: int) -> list[Part]:
        low, high = span
        share = (cell.total - low) / (high - low) if high > low else 1.0
        bar = _BARS[round(7 * share)] if math.isfinite(share) else "?"
        ended, here = bool(cell.end), cell.row == self.row
        return [
            (f" {cell.row:>{wide}} ", "muted", here),
            ("■" if ended else bar, "warn" if ended else "good", here),
            (f" {_total(cell):<{number}} ", "plain", here),
        ]

    def row_parts(self, row: Row) -> Sequence[Segment]:
        back = self.back("env--focus")
        parts = []
        for text, name, here in row:
            plain = name in ("muted", "plain")
            style = self.part("env--focus" if here and plain else f"env--{name}")
            parts.append(Segment(text, style + back if here else style))
        return parts

    def on_click(self, event: events.Click) -> None:
        for begin, end, row in self._places:
            if begin <= event.x < end:
                self.post_message(self.Picked(row))


def _total(cell: EnvCell) -> str:
    return f"{cell.total:.3g}"[:_NUMBER]
