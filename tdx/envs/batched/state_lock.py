"""The lock around state that several processes change."""

from __future__ import annotations

import multiprocessing

from tdx.errors import WorkerError

_HELD_FOR_LONG = 60.0


class StateLock:
    """A context manager that one process at a time is in; sent to another it is the same lock.

    What is done under it takes microseconds. One that does not come free was held by a process
    that was killed, which is said instead of waiting for ever.

    Raises:
        WorkerError: it did not come free.
    """

    def __init__(self) -> None:
        # A lock of the fork context could not be sent to workers that are not forked.
        self._lock = multiprocessing.get_context("spawn").Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_HELD_FOR_LONG):
            raise WorkerError(
                "the lock of the envs' shared state does not come free",
                hint="a worker was killed while it held it: make a new EnvCreator",
            )

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()
