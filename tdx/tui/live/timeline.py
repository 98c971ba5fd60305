"""The time line: where in the history the shown trace is; a click or a drag goes there."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tdx.tui.live.requests import LiveState

_NAMES = ("past", "future", "start", "trouble", "cursor", "mark", "text")


class Timeline(Widget):
    """One line that is a slider; begins of episodes and troubles are marked on it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"time--{name}" for name in _NAMES}
    DEFAULT_CSS = """
    Timeline {
        height: 1;
        & > .time--past { color: $primary; }
        & > .time--future { color: $text-disabled; }
        & > .time--start { color: $text-primary; }
        & > .time--trouble { color: $text-error; text-style: bold; }
        & > .time--cursor { color: $text-accent; text-style: bold; }
        & > .time--mark { color: $text-secondary; text-style: bold; }
        & > .time--text { color: $text-muted; }
    }
    """

    class Scrubbed(Message):
        """Another trace is wanted; none for the latest."""

        def __init__(self, index: int | None) -> None:
            super().__init__()
            self.index = index

    def __init__(self) -> None:
        super().__init__(id="live-time")
        self.state: LiveState | None = None
        self._dragging = False
        self._texts = ("", "")

    def show(self, state: LiveState) -> None:
        """Draw this from now on."""
        self.state = state
        width = len(str(max(state.last, 0)))
        live = " ◉ live" if state.follows else f" ◀ {state.shown - state.last}"
        self._texts = (f"{state.first:>{width}} ", f" {state.last}{live}")
        self.refresh()

    @property
    def _track(self) -> tuple[int, int]:
        """Where the slider begins, and how wide it is."""
        begin = len(self._texts[0])
        return begin, max(4, self.size.width - begin - len(self._texts[1]))

    def render_line(self, y: int) -> Strip:
        state, style = self.state, self.rich_style
        if state is None or state.last < 0:
            return Strip.blank(self.size.width, style)
        _, width = self._track
        at = self._column(state.shown, state, width)
        cells = [("━", "past") if x <= at else ("─", "future") for x in range(width)]
        for index in state.starts:
            if index >= state.first:
                cells[self._column(index, state, width)] = ("┿", "start")
        for index in state.troubled:
            if index >= state.first:
                cells[self._column(index, state, width)] = ("✕", "trouble")
        if state.against is not None and state.against >= state.first:
            cells[self._column(state.against, state, width)] = ("◆", "mark")
        cells[at] = ("█", "trouble" if state.shown in state.troubled else "cursor")
        names = {"text", "cursor", *(name for _, name in cells)}
        styles = {name: self._part(name) for name in names}
        parts = [Segment(self._texts[0], styles["text"])]
        parts += [Segment(text, styles[name]) for text, name in cells]
        parts.append(Segment(self._texts[1], styles["cursor" if state.follows else "text"]))
        return Strip(parts).simplify().adjust_cell_length(self.size.width, style)

    def _part(self, name: str) -> Style:
        style = self.get_component_rich_style(f"time--{name}")
        return self.rich_style + Style(color=style.color, bold=style.bold, dim=style.dim)

    @staticmethod
    def _column(index: int, state: LiveState, width: int) -> int:
        span = max(1, state.last - state.first)
        return max(0, min((index - state.first) * (width - 1) // span, width - 1))

    def _go_to(self, x: int) -> None:
        state = self.state
        if state is None:
            return
        begin, width = self._track
        at = max(0, min(x - begin, width - 1))
        index = state.first + round(at * (state.last - state.first) / max(1, width - 1))
        self.post_message(self.Scrubbed(None if x - begin >= width - 1 else index))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._dragging = True
        self.capture_mouse()
        self._go_to(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragging:
            self._go_to(event.x)

    def on_mouse_up(self) -> None:
        self._dragging = False
        self.release_mouse()
