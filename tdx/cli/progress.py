"""How far a rollout is, on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from tdx.cli.streams import unescaped
from tdx.text import escape_control_characters

if TYPE_CHECKING:
    from tdx.rollouts import Progress

_SECONDS = 0.1
_CLEAR = "\r\x1b[K"


@contextmanager
def progress_on(stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """Show the progress on a stream that is a terminal; the line is gone at the end.

    Args:
        stream: where; nothing is written to anything but a terminal.
    """
    if not stream.isatty():
        yield lambda progress: None
        return
    stream = unescaped(stream)
    line = _Line(stream)
    try:
        yield line.show
    finally:
        stream.write(_CLEAR)
        stream.flush()


@contextmanager
def counting_on(stream: TextIO) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show what is being done on a stream that is a terminal; the line is gone at the end.

    Args:
        stream: where.

    Yields:
        What is told what is being done, how much of it is done, and how much there is; none where
        the stream is no terminal.
    """
    if not stream.isatty():
        yield None
        return
    stream = unescaped(stream)

    def show(doing: str, done: int, of: int) -> None:
        counted = f"  {done:,} of {of:,}" if of > 1 else ""
        stream.write(f"{_CLEAR}{escape_control_characters(doing)}{counted}")
        stream.flush()

    try:
        yield show
    finally:
        stream.write(_CLEAR)
        stream.flush()


class _Line:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = time.monotonic()
        self._shown = float("-inf")

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._shown >= _SECONDS:
            self._shown = now
            self._stream.write(_CLEAR + progress_text(progress, now - self._begun))
            self._stream.flush()


def progress_text(progress: Progress, seconds: float) -> str:
    """The line that is shown.

    Args:
        progress: how far it is.
        seconds: since it began.
    """
    goal = progress.goal
    rate = progress.new_steps / max(seconds, 1e-9)
    left: float | None
    if goal.steps is not None:
        done, wanted, noun = progress.steps, goal.steps, "steps"
        left = (wanted - done) / max(rate, 1e-9)
    else:
        done, wanted, noun = progress.episodes, goal.episodes or 0, "episodes"
        left = (wanted - done) * seconds / done if done else None
    parts = [f"{done:,} of {wanted:,} {noun}", f"{rate:,.0f} steps/s"]
    if left is not None:
        parts.append(f"{_span(left)} left")
    return "  ".join(parts)


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
