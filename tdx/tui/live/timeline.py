"""The time line: where in the history the shown trace is; a click or a drag goes there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message

from tdx.tui.live.line_widget import RowWidget
from tdx.tui.live.requests import LiveState

_NAMES = ("past", "future", "start", "trouble", "cursor", "mark", "text")
_MARKS = {"┿": "start", "✕": "trouble", "◆": "mark"}
Row = tuple[tuple[str, str], ...]
"""Parts of the line: a text, and its style."""


class Timeline(RowWidget[Row]):
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
        self.outdated()

    @property
    def _track(self) -> tuple[int, int]:
        """Where the slider begins, and how wide it is."""
        begin = len(self._texts[0])
        return begin, max(4, self.size.width - begin - len(self._texts[1]))

    def all_rows(self) -> Iterator[Row]:
        state = self.state
        if state is None or state.last < 0:
            return
        _, width = self._track
        at = self._column(state.shown, state, width)
        held = [index for index in state.starts if index >= state.first]
        wrong = [index for index in state.troubled if index >= state.first]
        marks = {self._column(index, state, width): "┿" for index in held}
        marks |= {self._column(index, state, width): "✕" for index in wrong}
        if state.against is not None and state.against >= state.first:
            marks[self._column(state.against, state, width)] = "◆"
        row = [(self._texts[0], "text")]
        begin = 0
        for column in sorted({*marks, at}):
            row.append(_track(begin, column, at))
            mark = marks.get(column, "")
            troubled = state.shown in state.troubled
            cursor = ("█", "trouble" if troubled else "cursor")
            row.append(cursor if column == at else (mark, _MARKS[mark]))
            begin = column + 1
        row.append(_track(begin, width, at))
        row.append((self._texts[1], "cursor" if state.follows else "text"))
        yield tuple(row)

    def row_parts(self, row: Row) -> Sequence[Segment]:
        return [Segment(text, self.part(f"time--{name}")) for text, name in row if text]

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


def _track(begin: int, end: int, at: int) -> tuple[str, str]:
    """A stretch of the line, before what is shown or behind it."""
    if begin < at:
        return "━" * (end - begin), "past"
    return "─" * (end - begin), "future"
