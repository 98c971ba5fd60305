"""All envs of a batch in one line, the one in focus marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tdx.inspection.live.views import EnvCell

_NAMES = ("plain", "focus", "muted", "good", "warn")
_BARS = "▁▂▃▄▅▆▇█"
_CELL = 13


class EnvStrip(Widget):
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
        self.refresh()

    def set_focus(self, row: int | None, count: int) -> None:
        """Mark an env; none for all of them together."""
        if (row, count) != (self.row, self.count):
            self.row, self.count = row, count
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        all_ = f" all {self.count} "
        parts = [Segment(all_, self._part("focus" if self.row is None else "muted"))]
        self._places = [(0, len(all_), None)]
        room = max(1, (width - len(all_)) // _CELL)
        first = max(0, min((self.row or 0) - room // 2, len(self.cells) - room))
        totals = [each.total for each in self.cells if math.isfinite(each.total)]
        span = (min(totals), max(totals)) if totals else (0.0, 0.0)
        x = len(all_)
        for cell in self.cells[first : first + room]:
            parts += self._cell(cell, span)
            self._places.append((x, x + _CELL, cell.row))
            x += _CELL
        return Strip(parts).adjust_cell_length(width, self.rich_style)

    def _cell(self, cell: EnvCell, span: tuple[float, float]) -> list[Segment]:
        low, high = span
        share = (cell.total - low) / (high - low) if high > low else 1.0
        bar = _BARS[round(7 * share)] if math.isfinite(share) else "?"
        text = f"{cell.total:.3g}"[:6]
        ended = bool(cell.end)
        name = "focus" if cell.row == self.row else "plain"
        sign = "■" if ended else bar
        return [
            Segment(f" {cell.row:>3} ", self._part("focus" if cell.row == self.row else "muted")),
            Segment(sign, self._part("warn" if ended else "good", name)),
            Segment(f" {text:<6}", self._part(name)),
        ]

    def _part(self, name: str, below: str = "plain") -> Style:
        style = self.get_component_rich_style(f"env--{name}")
        under = self.get_component_rich_style(f"env--{below}")
        back = style if name == "focus" else under
        plain = Style(color=style.color, bold=style.bold, dim=style.dim)
        marked = name == "focus" or below == "focus"
        return self.rich_style + plain + (Style(bgcolor=back.bgcolor) if marked else Style())

    def on_click(self, event: events.Click) -> None:
        for begin, end, row in self._places:
            if begin <= event.x < end:
                self.post_message(self.Picked(row))
