"""Prepare batches in a thread, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any, NamedTuple


class Batch(NamedTuple):
    """A sampled batch.

    Args:
        data: Batch.
        info: Positions of its steps, and entries that the sampler wrote.
        ended: True if it is the last one of a pass.
        before: State of the sampler before it was drawn.
    """

    data: Any
    info: dict[Any, Any]
    ended: bool
    before: dict[str, Any]


class Prefetcher:
    """A queue of prefetched batches.

    A single thread prepares them in order, so that the order of the batches is that of the
    random numbers.

    Args:
        ahead: Number of batches to prepare in advance.
    """

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self._pool: ThreadPoolExecutor | None = None
        self._queue: deque[Future[Batch]] = deque()
        self._size = 0
        self._lock = Lock()

    def fits(self, size: int) -> bool:
        """Return True if the queue is empty or contains batches of this size."""
        return not self._queue or self._size == size

    def next(self, size: int, make: Callable[[int], Batch]) -> Batch:
        """Return the next batch, and schedule the ones after it.

        Args:
            size: Batch size.
            make: Prepares a batch of a size.
        """
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="tdx-prefetch")
            self._size = size
            while len(self._queue) <= self.ahead:
                self._queue.append(self._pool.submit(make, size))
            first = self._queue.popleft()
        return first.result()

    def settle(self) -> None:
        """Wait until all scheduled batches are prepared."""
        with self._lock:
            pending = list(self._queue)
        wait(pending)

    def discard(self) -> Batch | None:
        """Discard all scheduled batches, and return the first one, if there is one."""
        with self._lock:
            pending = list(self._queue)
            self._queue.clear()
        wait(pending)
        for future in pending:
            if future.exception() is None:
                return future.result()
        return None

    def close(self) -> None:
        """Stop the thread."""
        self.discard()
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
