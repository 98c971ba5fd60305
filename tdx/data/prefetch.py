"""Make batches ahead of time, in one thread and in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any, NamedTuple


class Batch(NamedTuple):
    """A batch, and what is known of how it was drawn.

    Args:
        data: the batch.
        info: where its steps are stored, and what was written into it.
        ended: whether it was the last one of a pass.
        before: the sampler's state before it was drawn.
    """

    data: Any
    info: dict[Any, Any]
    ended: bool
    before: dict[str, Any]


class Prefetcher:
    """A queue of batches in the making.

    One thread makes them one after the other, so that they come in the order in which random
    numbers were drawn for them.

    Args:
        ahead: how many are made ahead.
    """

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self._pool: ThreadPoolExecutor | None = None
        self._queue: deque[Future[Batch]] = deque()
        self._size = 0
        self._lock = Lock()

    def fits(self, size: int) -> bool:
        """Whether what is in the making are batches of this size."""
        return not self._queue or self._size == size

    def next(self, size: int, make: Callable[[int], Batch]) -> Batch:
        """The next batch, while the ones after it are made.

        Args:
            size: the batch size.
            make: makes a batch of a size.
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
        """Wait until all batches in the making are made."""
        with self._lock:
            pending = list(self._queue)
        wait(pending)

    def drop(self) -> Batch | None:
        """Forget the batches that nobody took; returns the first of them, if there is one."""
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
        self.drop()
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
