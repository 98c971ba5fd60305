"""Widgets that navigate a session: timeline, episodes, and the envs of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message

from tdx.inspection.live.views import EnvCell, EpisodeView
from tdx.tui.chain_status import truncate
from tdx.tui.line_widgets import LineList, RowWidget, TextLine
from tdx.tui.live.messages import LiveState

_TIMELINE_STYLES = ("past", "future", "start", "problem", "cursor", "mark", "text")
_MARKS = {"┿": "start", "✕": "problem", "◆": "mark"}
TimelineRow = tuple[tuple[str, str], ...]
"""Parts of the line: text and style."""


class Timeline(RowWidget[TimelineRow]):
    """Slider over the history, with marks for episode starts and problems."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"time--{name}" for name in _TIMELINE_STYLES}
    DEFAULT_CSS = """
    Timeline {
        height: 1;
        & > .time--past { color: $primary; }
        & > .time--future { color: $text-disabled; }
        & > .time--start { color: $text-primary; }
        & > .time--problem { color: $text-error; text-style: bold; }
        & > .time--cursor { color: $text-accent; text-style: bold; }
        & > .time--mark { color: $text-secondary; text-style: bold; }
        & > .time--text { color: $text-muted; }
    }
    """

    @dataclass
    class Scrubbed(Message):
        """Another trace was chosen. ``None``: the latest one."""

        index: int | None

    def __init__(self) -> None:
        super().__init__(id="live-time")
        self.state: LiveState | None = None
        self._dragging = False
        self._texts = ("", "")

    def show(self, state: LiveState) -> None:
        """Show a state."""
        self.state = state
        width = len(str(max(state.last, 0)))
        behind = state.shown - state.last
        live = "◉ live" if state.follows_latest else f"◀ {behind}" if behind else "■ last"
        self._texts = (f"{state.first:>{width}} ", f" trace {state.shown:>{width}} {live}")
        self.invalidate()

    @property
    def _track(self) -> tuple[int, int]:
        """Start and width of the slider."""
        begin = len(self._texts[0])
        return begin, max(4, self.size.width - begin - len(self._texts[1]))

    def all_rows(self) -> Iterator[TimelineRow]:
        state = self.state
        if state is None or state.last < 0:
            return
        _, width = self._track
        at = self._column(state.shown, state, width)
        starts = [index for index in state.episode_starts if index >= state.first]
        problems = [index for index in state.problem_traces if index >= state.first]
        marks = {self._column(index, state, width): "┿" for index in starts}
        marks |= {self._column(index, state, width): "✕" for index in problems}
        if state.reference is not None and state.reference >= state.first:
            marks[self._column(state.reference, state, width)] = "◆"
        row = [(self._texts[0], "text")]
        begin = 0
        for column in sorted({*marks, at}):
            row.append(_track(begin, column, at))
            mark = marks.get(column, "")
            has_problem = state.shown in state.problem_traces
            cursor = ("█", "problem" if has_problem else "cursor")
            row.append(cursor if column == at else (mark, _MARKS[mark]))
            begin = column + 1
        row.append(_track(begin, width, at))
        row.append((self._texts[1], "cursor" if state.follows_latest else "text"))
        yield tuple(row)

    def row_parts(self, row: TimelineRow) -> Sequence[Segment]:
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
    """Return a piece of the slider, before or after the shown trace."""
    if begin < at:
        return "━" * (end - begin), "past"
    return "─" * (end - begin), "future"


_END_STYLES = {"terminated": "warn", "truncated": "secondary", "done": "warn", "reset": "muted"}


class EpisodeList(LineList):
    """Episodes, the newest first; Enter shows the start of an episode."""

    HELP = """## Episodes

The newest episode is at the top. `Enter` or a double click shows its first step; `[` and `]` go
from episode to episode."""

    def __init__(self) -> None:
        super().__init__(id="live-episodes")
        self.border_title = "episodes"
        self.episodes: Sequence[EpisodeView] = ()
        self._is_batched = False
        self.first = 1

    def show_episodes(self, episodes: Sequence[EpisodeView], *, is_batched: bool) -> None:
        """Replace the episodes."""
        self.episodes, self._is_batched = tuple(reversed(episodes)), is_batched
        totals = [
            episode.total for episode in episodes if episode.steps and episode.total is not None
        ]
        span = (min(totals), max(totals)) if totals else (0.0, 0.0)
        has_rewards = all(episode.total is not None for episode in episodes)
        returns = f"{'return':>9}" if has_rewards else ""
        head = f"{'env ' if is_batched else ''}{'no':>3}{'steps':>6}{returns} end"
        lines: list[TextLine] = [((head, "muted"),)]
        lines += [self._line(episode, span) for episode in self.episodes]
        self.show(lines)

    def _line(self, episode: EpisodeView, span: tuple[float, float]) -> TextLine:
        low, high = span
        left = self.size.width - 19 - 4 * self._is_batched
        total, bar = "", ""
        if episode.total is not None:
            total = f" {episode.total:>8.4g}"
            share = (episode.total - low) / (high - low) if high > low else 1.0
            bar = "━" * round(share * (left - 13)) if left > 16 and episode.steps else ""
        return (
            (f"{episode.row:>3} " if self._is_batched else "", "secondary"),
            (f"{episode.number:>3}{episode.steps:>6}", "plain"),
            (total, "bold"),
            (
                f" {truncate(episode.end or 'running', max(4, left)):<12}",
                _END_STYLES.get(episode.end, "good"),
            ),
            (bar, "primary"),
        )

    def at(self, line: int) -> EpisodeView | None:
        """Return the episode on a line."""
        return self.episodes[line - 1] if 0 < line <= len(self.episodes) else None


_ENV_STYLES = ("plain", "focus", "muted", "good", "warn")
_BARS = "▁▂▃▄▅▆▇█"
_RETURN_WIDTH = 6
EnvPart = tuple[str, str, bool]
EnvRow = tuple[EnvPart, ...]
"""Parts of the line: text, style, and whether it belongs to the env in focus."""


class EnvStrip(RowWidget[EnvRow]):
    """A cell for each env: its number, return relative to the others, and steps."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"env--{name}" for name in _ENV_STYLES}
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

    @dataclass
    class Picked(Message):
        """An env was clicked. ``None``: the whole batch."""

        row: int | None

    def __init__(self) -> None:
        super().__init__(id="live-envs")
        self.cells: Sequence[EnvCell] = ()
        self.row: int | None = None
        self.count = 0
        self._places: list[tuple[int, int, int | None]] = []

    def show(self, cells: Sequence[EnvCell]) -> None:
        """Replace the cells."""
        self.cells = cells
        self.invalidate()

    def set_focus(self, row: int | None, count: int) -> None:
        """Mark an env. ``None``: the whole batch."""
        if (row, count) != (self.row, self.count):
            self.row, self.count = row, count
            self.invalidate()

    def all_rows(self) -> Iterator[EnvRow]:
        all_ = f" all {self.count} "
        row = [(all_, "muted", self.row is None)]
        self._places = [(0, len(all_), None)]
        number_width = len(str(max(0, self.count - 1)))
        left, number, digits = self.size.width - len(all_), _RETURN_WIDTH, 3
        if len(self.cells) * (number_width + number + 5) > left:
            digits = 2
            number = max((len(_return_text(cell, digits)) for cell in self.cells), default=1)
        size = number_width + number + 5
        room = left // size
        if room < len(self.cells):
            room = max(1, (left - 2) // size)  # the ends are marked
        first = max(0, min((self.row or 0) - room // 2, len(self.cells) - room))
        totals = [
            cell.total
            for cell in self.cells
            if cell.total is not None and math.isfinite(cell.total)
        ]
        span = (min(totals), max(totals)) if totals else (0.0, 0.0)
        x = len(all_)
        if room < len(self.cells):
            row.append(("…" if first else " ", "muted", False))
            x += 1
        for cell in self.cells[first : first + room]:
            row += self._cell(cell, span, number_width, number, digits)
            self._places.append((x, x + size, cell.row))
            x += size
        if first + room < len(self.cells):
            row.append(("…", "muted", False))
        yield tuple(row)

    def _cell(
        self,
        cell: EnvCell,
        span: tuple[float, float],
        number_width: int,
        number: int,
        digits: int,
    ) -> list[EnvPart]:
        low, high = span
        bar = " "
        if cell.total is not None:
            share = (cell.total - low) / (high - low) if high > low else 1.0
            bar = _BARS[round(7 * share)] if math.isfinite(share) else "?"
        ended, here = bool(cell.end), cell.row == self.row
        return [
            (f" {cell.row:>{number_width}} ", "muted", here),
            ("■" if ended else bar, "warn" if ended else "good", here),
            (f" {_return_text(cell, digits):<{number}} ", "plain", here),
        ]

    def row_parts(self, row: EnvRow) -> Sequence[Segment]:
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


def _return_text(cell: EnvCell, digits: int) -> str:
    if cell.total is None:
        return ""
    whole = digits < 3 and 10 <= abs(cell.total) < 10_000
    return (f"{cell.total:.0f}" if whole else f"{cell.total:.{digits}g}")[:_RETURN_WIDTH]
