"""Progress lines on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from tdx.cli.runtime import raw_stream
from tdx.cli.views import duration_text
from tdx.foundation.text import escape_control_characters

if TYPE_CHECKING:
    from tdx.rollouts import Progress, ShardProgress

_INTERVAL_SECONDS = 0.1
_MEANINGFUL_SECONDS = 1.0
_CLEAR = "\r\x1b[K"


@contextmanager
def progress_on(stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows the progress of a rollout on one line, cleared at the end.

    Args:
        stream: Target. If it is not a terminal, nothing is written.
    """
    if not stream.isatty():
        yield lambda progress: None
        return
    with _cleared_line(stream) as target:
        yield _ProgressLine(target).show


@contextmanager
def activity_on(stream: TextIO) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a function that shows the current activity on one line, cleared at the end.

    Args:
        stream: Target.

    Yields:
        Function of the activity, the number of finished items and their total; ``None`` if the
        stream is not a terminal.
    """
    if not stream.isatty():
        yield None
        return
    with _cleared_line(stream) as target:
        yield _ActivityLine(target).show


class _ActivityLine:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._activity, self._last_update = "", float("-inf")
        self._total, self._first, self._start = -1, 0, 0.0

    def show(self, activity: str, done: int, total: int) -> None:
        now = time.monotonic()
        if total != self._total:
            self._total, self._first, self._start = total, done, now
        if activity == self._activity and now - self._last_update < _INTERVAL_SECONDS:
            return
        self._activity, self._last_update = activity, now
        text = activity_text(activity, done, total, done - self._first, now - self._start)
        self._stream.write(_CLEAR + text)
        self._stream.flush()


def activity_text(activity: str, done: int, total: int, new: int, seconds: float) -> str:
    """Return the line of an activity, with an estimate of the remaining time after a second.

    Args:
        activity: What is being done.
        done: Number of finished items.
        total: Number of all items.
        new: Number of items that were finished in ``seconds``.
        seconds: Time since the first item.

    Example:
        >>> activity_text("reading data/action.memmap", 3, 9, 3, 2.0)
        'reading data/action.memmap  3 of 9  4 s left'
    """
    parts = [escape_control_characters(activity)]
    if total > 1:
        parts.append(f"{done:,} of {total:,}")
        if new > 0 and seconds >= _MEANINGFUL_SECONDS:
            parts.append(f"{duration_text((total - done) * seconds / new)} left")
    return "  ".join(parts)


@contextmanager
def _cleared_line(stream: TextIO) -> Iterator[TextIO]:
    """Yield the terminal behind a stream, and clear its line at the end."""
    target = raw_stream(stream)
    try:
        yield target
    finally:
        target.write(_CLEAR)
        target.flush()


@contextmanager
def shards_on(stream: TextIO) -> Iterator[Callable[[ShardProgress], None]]:
    """Yield a function that shows the progress of shards on one line, cleared at the end.

    Args:
        stream: Target. If it is not a terminal, nothing is written.
    """
    if not stream.isatty():
        yield lambda progress: None
        return
    with follow_on(stream) as show:
        yield show


@contextmanager
def follow_on(stream: TextIO) -> Iterator[Callable[[Progress | ShardProgress], None]]:
    """Yield a function that shows the progress of a dump that is being recorded.

    Args:
        stream: Target. A terminal shows one line, which is cleared at the end; any other stream
            gets a line for each change.
    """
    from tdx.rollouts import ShardProgress

    is_terminal = stream.isatty()
    start = time.monotonic()
    first: Any = None
    last: Progress | ShardProgress | None = None

    def show(progress: Progress | ShardProgress) -> None:
        nonlocal first, last
        first, seconds = first or progress, time.monotonic() - start
        if isinstance(progress, ShardProgress):
            text = shards_text(progress, first, seconds)
        else:
            text = progress_text(progress, seconds)
        if is_terminal:
            target.write(_CLEAR + text)
        elif progress != last:
            target.write(f"{text}\n")
        last = progress
        target.flush()

    with _cleared_line(stream) if is_terminal else nullcontext(stream) as target:
        yield show


def shards_text(progress: ShardProgress, before: ShardProgress, seconds: float) -> str:
    """Return the progress line of a sharded rollout.

    Args:
        progress: Shards so far.
        before: Shards at the start of the measurement.
        seconds: Time since then.
    """
    parts = [
        f"{progress.committed:,} of {progress.shards:,} shards",
        f"{progress.running:,} running",
    ]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.goal.steps is None:
        done, total = progress.committed, progress.shards
        rate = (done - before.committed) / max(seconds, 1e-9)
    else:
        done, total = progress.steps, progress.goal.steps
        rate = (done - before.steps) / max(seconds, 1e-9)
        parts += [f"{done:,} of {total:,} steps", f"{rate:,.0f} steps/s"]
    if rate > 0 and done < total:
        parts.append(f"{duration_text((total - done) / rate)} left")
    return "  ".join(parts)


class _ProgressLine:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()
        self._last_update = float("-inf")

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last_update >= _INTERVAL_SECONDS:
            self._last_update = now
            self._stream.write(_CLEAR + progress_text(progress, now - self._start))
            self._stream.flush()


def progress_text(progress: Progress, seconds: float) -> str:
    """Return the progress line of a rollout.

    Args:
        progress: Steps and episodes so far.
        seconds: Time since the start.
    """
    goal = progress.goal
    rate = progress.new_steps / max(seconds, 1e-9)
    left: float | None
    if goal.steps is not None:
        done, total, noun = progress.steps, goal.steps, "steps"
        left = (total - done) / max(rate, 1e-9)
    else:
        done, total, noun = progress.episodes, goal.episodes or 0, "episodes"
        left = (total - done) * seconds / done if done else None
    parts = [f"{done:,} of {total:,} {noun}", f"{rate:,.0f} steps/s"]
    if left is not None:
        parts.append(f"{duration_text(left)} left")
    return "  ".join(parts)
