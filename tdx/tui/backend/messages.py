"""Messages between the app and a worker process, and the context of a request in the worker."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

from tdx.inspection.overview import Problem

T = TypeVar("T")


class Request(Generic[T]):
    """A request to a worker, answered with a ``T``; a subclass is a frozen dataclass of plain data.

    :mod:`tdx.tui.handlers` maps it to the function that answers it. Only the worker imports that
    function, so the app needs to import nothing that the function needs.
    """

    endless: ClassVar[bool] = False
    """True if the answer comes only when the request is cancelled."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Please answer this."""

    number: int
    request: Request[Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    """The answer is no longer wanted."""

    number: int


@dataclass(frozen=True, slots=True)
class Send:
    """Something for a request that is being answered, such as another rate of stepping."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has started."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a request."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a request that went wrong.

    Args:
        number: the request.
        problem: what is wrong, for the user.
        details: the traceback.
    """

    number: int
    problem: Problem
    details: str = ""


@dataclass(frozen=True, slots=True)
class Push:
    """Something on the way to the answer; of one topic only the latest counts."""

    number: int
    topic: str
    value: Any


_TITLES = {
    "look": "the specs",
    "live": "the rollout",
    "profile": "the profile",
    "dump": "the dump",
}


def worker_title(worker: str) -> str:
    """What a worker is for, in words."""
    return _TITLES.get(worker, worker)


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """Something that a worker did, or that was done to it.

    Args:
        worker: its name.
        kind: ``started``, ``killed`` by the app, ``printed`` something, ``failed`` to answer.
        text: what is to be said of it; all that it has written, where it has printed.
        details: a traceback.
        skipped_bytes: bytes that it has printed before, and that were too many to be read.
    """

    worker: str
    kind: Literal["started", "killed", "printed", "failed"]
    text: str
    details: str = ""
    skipped_bytes: int = 0


class Job:
    """One request while it is being answered.

    Args:
        push: sends something on the way, by topic.
        cache: what this worker keeps from one request to the next, such as an env.
    """

    def __init__(self, push: Callable[[str, Any], None], cache: dict[str, Any]) -> None:
        self.push = push
        self.cache = cache
        self._cancelled = threading.Event()
        self._inbox: deque[Any] = deque()

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

    def send(self, value: Any) -> None:
        """Put something where :meth:`told` finds it."""
        self._inbox.append(value)

    def receive(self) -> list[Any]:
        """What the app has told this request since the last call."""
        found = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def cached(self, name: str, make: Callable[[], T]) -> T:
        """Something on the cache, made where it is not there yet."""
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]


_TRACEBACK_HINT = "F12 shows the traceback"


def with_app_hint(problem: Problem) -> Problem:
    """The problem with a hint that names a key of the app, where its own names Python's."""
    is_pythons = problem.hint is None or "__cause__" in problem.hint
    return replace(problem, hint=_TRACEBACK_HINT) if problem.details and is_pythons else problem
