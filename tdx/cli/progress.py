"""Progress lines on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TextIO

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
    """Yield a function that shows the progress of a rollout on one line, cleared at the end."""
    if not stream.isatty():
        yield lambda progress: None
        return
    start = time.monotonic()
    with _line_on(stream) as write:

        def show(progress: Progress) -> None:
            write(lambda: progress_text(progress, time.monotonic() - start))

        yield show


@contextmanager
def activity_on(stream: TextIO) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a function that shows the current activity on one line, cleared at the end.

    It takes the activity, the number of finished items and their total; ``None`` if the stream is
    not a terminal.
    """
    if not stream.isatty():
        yield None
        return
    current, measured, first, start = "", -1, 0, 0.0
    with _line_on(stream) as write:

        def show(activity: str, done: int, total: int) -> None:
            nonlocal current, measured, first, start
            if total != measured:
                measured, first, start = total, done, time.monotonic()
            is_new, current = activity != current, activity
            seconds = time.monotonic() - start
            write(
                lambda: activity_text(activity, done, total, done - first, seconds),
                at_once=is_new,
            )

        yield show


def activity_text(activity: str, done: int, total: int, new: int, seconds: float) -> str:
    """Return the line of an activity, with an estimate of the remaining time after a second.

    ``new`` items were finished in ``seconds``.

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


class _WriteLine(Protocol):
    def __call__(self, text: Callable[[], str], *, at_once: bool = False) -> None: ...


@contextmanager
def _line_on(stream: TextIO) -> Iterator[_WriteLine]:
    """Yield a function that rewrites a line of a terminal, which is cleared at the end.

    Unless it is to write at once, it skips a text that comes soon after another one.
    """
    target, last = raw_stream(stream), float("-inf")

    def write(text: Callable[[], str], *, at_once: bool = False) -> None:
        nonlocal last
        if at_once or time.monotonic() - last >= _INTERVAL_SECONDS:
            last = time.monotonic()
            target.write(_CLEAR + text())
            target.flush()

    try:
        yield write
    finally:
        target.write(_CLEAR)
        target.flush()


@contextmanager
def shards_on(stream: TextIO) -> Iterator[Callable[[ShardProgress], None]]:
    """Yield a function that shows the progress of shards on one line, cleared at the end."""
    if not stream.isatty():
        yield lambda progress: None
        return
    with follow_on(stream) as show:
        yield show


@contextmanager
def follow_on(stream: TextIO) -> Iterator[Callable[[Progress | ShardProgress], None]]:
    """Yield a function that shows the progress of a dump that is being recorded.

    A terminal shows one line, which is cleared at the end; another stream gets a line for each
    change.
    """
    from tdx.rollouts import ShardProgress

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
        if write is not None:
            write(lambda: text, at_once=True)
        elif progress != last:
            stream.write(f"{text}\n")
            stream.flush()
        last = progress

    with _line_on(stream) if stream.isatty() else nullcontext() as write:
        yield show


def shards_text(progress: ShardProgress, before: ShardProgress, seconds: float) -> str:
    """Return the progress line of a sharded rollout."""
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


def progress_text(progress: Progress, seconds: float) -> str:
    """Return the progress line of a rollout."""
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
