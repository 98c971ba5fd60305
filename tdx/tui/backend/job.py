"""What a function that answers a request has at hand."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Job:
    """One request while it is being answered.

    Args:
        push: sends something on the way, by topic.
        shelf: what this worker keeps from one request to the next, such as an env.
    """

    def __init__(self, push: Callable[[str, Any], None], shelf: dict[str, Any]) -> None:
        self.push = push
        self.shelf = shelf
        self._cancelled = threading.Event()
        self._told: deque[Any] = deque()

    @property
    def cancelled(self) -> bool:
        """Whether the answer is no longer wanted; a long job looks now and then."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Let :attr:`cancelled` be true from now on."""
        self._cancelled.set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until it is cancelled; returns whether it is."""
        return self._cancelled.wait(seconds)

    def tell(self, value: Any) -> None:
        """Put something where :meth:`told` finds it."""
        self._told.append(value)

    def told(self) -> list[Any]:
        """What the app has told this request since the last call."""
        found = []
        while self._told:
            found.append(self._told.popleft())
        return found

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Something on the shelf, made where it is not there yet."""
        if name not in self.shelf:
            self.shelf[name] = make()
        return self.shelf[name]
