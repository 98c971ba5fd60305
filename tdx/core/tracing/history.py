"""The latest traces, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Lock

from tdx.core.tracing.traces import StepTrace
from tdx.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class EpisodeSpan:
    """The part of an episode that a history holds.

    Args:
        episode: its number.
        first: index of its first trace that is held.
        last: index of its last one.
        steps: how many steps of it are held.
    """

    episode: int
    first: int
    last: int
    steps: int


class TraceHistory:
    """Keeps the latest traces and forgets the oldest, by number and by memory.

    The newest trace is always kept, however large it is. One thread may add traces (of one
    tracer) while others read.

    Args:
        max_traces: the most resets and steps.
        max_bytes: the most memory that their tensors hold. What two traces share is counted in
            both, so the true use is never above it.

    Raises:
        ArgumentError: a limit is below 1.

    Example:
        >>> from tdx import PendulumEnv, TraceHistory, Tracer
        >>> history = TraceHistory(max_traces=3)
        >>> _ = Tracer(PendulumEnv(), history=history).run(10)
        >>> [trace.step for trace in history], history.forgotten
        ([7, 8, 9], 8)
    """

    def __init__(self, max_traces: int = 10_000, max_bytes: int = 256 * 2**20) -> None:
        for name, limit in (("max_traces", max_traces), ("max_bytes", max_bytes)):
            if limit < 1:
                raise ArgumentError(
                    f"{name} must be at least 1, got {limit}", hint="keep at least one step"
                )
        self.max_traces, self.max_bytes = max_traces, max_bytes
        self.forgotten = 0
        self._held: deque[tuple[StepTrace, int]] = deque()
        self._episodes: dict[int, EpisodeSpan] = {}
        self._lock = Lock()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """The memory held."""
        return self._nbytes

    def append(self, trace: StepTrace) -> None:
        """Keep one more trace."""
        size = trace.nbytes
        with self._lock:
            self._held.append((trace, size))
            self._nbytes += size
            known = self._episodes.get(trace.episode)
            first, steps = (trace.index, 0) if known is None else (known.first, known.steps)
            self._episodes[trace.episode] = EpisodeSpan(
                trace.episode, first, trace.index, steps + (trace.phase == "step")
            )
            while len(self._held) > 1 and (
                len(self._held) > self.max_traces or self._nbytes > self.max_bytes
            ):
                self._forget()

    def _forget(self) -> None:
        trace, size = self._held.popleft()
        self._nbytes -= size
        self.forgotten += 1
        span = self._episodes[trace.episode]
        if span.last == trace.index:
            del self._episodes[trace.episode]
        else:
            steps = span.steps - (trace.phase == "step")
            self._episodes[trace.episode] = replace(span, first=trace.index + 1, steps=steps)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.forgotten += len(self._held)
            self._held.clear()
            self._episodes.clear()
            self._nbytes = 0

    def find(self, index: int) -> StepTrace | None:
        """The trace with this ``index``; ``None`` where it is forgotten or not yet made."""
        with self._lock:
            place = index - self._held[0][0].index if self._held else -1
            return self._held[place][0] if 0 <= place < len(self._held) else None

    def episodes(self) -> list[EpisodeSpan]:
        """The episodes that are held, in order."""
        with self._lock:
            return list(self._episodes.values())

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[StepTrace]:
        with self._lock:
            held = tuple(self._held)
        return (trace for trace, _ in held)

    def __getitem__(self, position: int) -> StepTrace:
        with self._lock:
            return self._held[position][0]
