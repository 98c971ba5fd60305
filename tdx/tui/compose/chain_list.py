"""The chain as a list: a cursor, marks for what is wrong, and stages that can be dragged."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tdx.tui.compose.chain_rows import Row, chain_rows
from tdx.tui.workspace import ENV, Workspace

_MARKS = {
    "": ("●", "on"),
    "off": ("○", "off"),
    "unknown": ("?", "off"),
    "failed": ("✕", "failed"),
    "error": ("✕", "failed"),
    "warning": ("▲", "warning"),
    "suggestion": ("●", "suggestion"),
}


class ChainList(ScrollView, can_focus=True):
    """Draws the env, the stages and the output, a line each.

    Args:
        workspace: the state of the app.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"chain--{name}" for name in ("env", "number", "name", "detail", "line", "drop")),
        *(f"chain--{name}" for name in ("on", "off", "failed", "warning", "suggestion", "problem")),
        "chain--cursor",
    }
    HELP = """## The chain

The env is on top; its data flow down through the stages. The cursor says what the tabs show. The
mark of a stage is `●` where it works, `✕` where it fails, `▲` where a rule warns, `○` where it is
switched off, and `?` where nothing is known of it, as the env cannot be made."""

    class Dropped(Message):
        """A stage was dragged to another place."""

        def __init__(self, place: int, to: int) -> None:
            super().__init__()
            self.place = place
            self.to = to

    class Opened(Message):
        """A place was clicked twice."""

    class Marked(Message):
        """The mark in front of a stage was clicked."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(id="chain")
        self.workspace = workspace
        self.rows: list[Row] = []
        self._cursor = ENV
        self._dragged: int | None = None
        self._target: int | None = None

    def on_mount(self) -> None:
        self.workspace.edited.subscribe(self, lambda _: self.rebuild())
        self.workspace.looked.subscribe(self, lambda _: self.rebuild())
        self.workspace.selected.subscribe(self, lambda _: self.follow())
        self.rebuild()

    def rebuild(self) -> None:
        """Draw what is known now."""
        workspace = self.workspace
        rows = chain_rows(workspace.draft, workspace.seen, workspace.errors)
        if rows != self.rows:
            self.rows = rows
            self._measure()
            self.refresh()
            self.follow()

    def follow(self) -> None:
        """Keep the cursor in sight; what it leaves and what it comes to is drawn anew."""
        before, self._cursor = self._cursor, self.workspace.place
        for n, row in enumerate(self.rows):
            if row.place in (before, self._cursor):
                self.refresh_line(n)
        at = next((n for n, row in enumerate(self.rows) if row.place == self._cursor), 0)
        top, height = int(self.scroll_offset.y), self.size.height
        if height and not top <= at < top + height:
            self.scroll_to(y=at - (0 if at < top else height - 1), animate=False)

    def on_resize(self) -> None:
        self._measure()
        self.follow()

    def _measure(self) -> None:
        size = Size(self.size.width, len(self.rows))
        if size != self.virtual_size:
            self.virtual_size = size

    def render_line(self, y: int) -> Strip:
        at, width = y + int(self.scroll_offset.y), self.size.width
        if at >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        row = self.rows[at]
        segments = self._segments(row, width)
        style = self.rich_style
        if row.place == self.workspace.place:
            cursor = self.get_component_rich_style("chain--cursor")
            style += Style(bgcolor=cursor.bgcolor, reverse=cursor.reverse)
        if self._target is not None and row.place == self._target and row.kind == "stage":
            style += Style(bgcolor=self.get_component_rich_style("chain--drop").bgcolor)
        strip = Strip(segments).adjust_cell_length(width)
        return Strip(Segment.apply_style(strip, style)).apply_style(Style())

    def _segments(self, row: Row, width: int) -> list[Segment]:
        if row.kind == "problem":
            lead = "│    " if row.place >= 0 else "│ "
            text = _cut(row.title, width - len(lead))
            return [self._part(lead, "line"), self._part(text, "problem")]
        if row.kind == "stage":
            return self._stage(row, width)
        mark, detail = ("◆ " if row.kind == "env" else "◇ "), _cut(row.detail, width // 2)
        kind = "failed" if row.badge in ("failed", "error") else "env"
        title = _cut(row.title, width - len(detail) - 4)
        gap = " " * max(1, width - len(title) - len(detail) - 3)
        return [
            *(self._part(mark, kind), self._part(title, kind)),
            *(self._part(gap, "detail"), self._part(f"{detail} ", "detail")),
        ]

    def _stage(self, row: Row, width: int) -> list[Segment]:
        sign, kind = _MARKS[row.badge]
        number = f"{row.place:>2} "
        title = _cut(row.title, width - 6)
        left = width - 2 - len(number) - len(title) - 2
        detail = f"  {_cut(row.detail, left)}" if left > 4 and row.detail else ""
        is_off = row.badge == "off"
        name = "off" if is_off else "problem" if kind == "failed" else "name"
        return [
            self._part(f"{sign} ", kind),
            self._part(number, "number"),
            self._part(title, name),
            self._part(detail, "off" if is_off else "detail"),
        ]

    def _part(self, text: str, kind: str) -> Segment:
        style = self.get_component_rich_style(f"chain--{kind}")
        return Segment(
            text,
            Style(
                color=style.color,
                bold=style.bold,
                dim=style.dim,
                italic=style.italic,
                strike=style.strike,
            ),
        )

    def _row_at(self, y: int) -> Row | None:
        at = y + int(self.scroll_offset.y)
        return self.rows[at] if 0 <= at < len(self.rows) else None

    def on_mouse_down(self, event: events.MouseDown) -> None:
        row = self._row_at(event.y)
        if row is None:
            return
        self.workspace.select(row.place)
        if row.kind == "stage" and event.x < 2:
            self.post_message(self.Marked(row.place))
        elif row.kind == "stage":
            self._dragged = row.place
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragged is None:
            return
        row = self._row_at(max(0, min(event.y, self.size.height - 1)))
        last = len(self.workspace.draft.stages) - 1
        target = None if row is None else max(0, min(row.place, last))
        if target != self._target:
            self._target = target if target != self._dragged else None
            self.refresh()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._dragged is None:
            return
        self.release_mouse()
        place, to = self._dragged, self._target
        self._dragged = self._target = None
        self.refresh()
        if to is not None:
            self.post_message(self.Dropped(place, to))

    def on_click(self, event: events.Click) -> None:
        if event.chain == 2 and event.x >= 2:
            self.post_message(self.Opened())


def _cut(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis."""
    if len(text) <= width:
        return text
    return f"{text[: max(0, width - 1)]}…" if width > 0 else ""
