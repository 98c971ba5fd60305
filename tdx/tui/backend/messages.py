"""Messages between the app and a worker process, and the context of a request in the worker."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from tdx.inspection.overview import Problem
from tdx.tui.backend.activity import ActivityRecord

T = TypeVar("T")
Answer_co = TypeVar("Answer_co", covariant=True)


class Request(Generic[Answer_co]):
    """A request to a worker, answered with a value; a subclass is a frozen dataclass of plain data.

    :meth:`answer` runs in the worker. It imports what it needs when it is called, so that the app,
    which only sends the request, imports neither torch nor an env.
    """

    def answer(self, job: Job) -> Answer_co:
        """Return the answer; the job pushes intermediate values and receives what the app sends."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Submit:
    """Asks the worker to answer a request."""

    number: int
    request: Request[object]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tells the worker to skip an answer."""

    number: int


@dataclass(frozen=True, slots=True)
class Send:
    """Sends a value to a running request, such as a new step rate."""

    number: int
    value: object


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a request."""

    number: int
    value: object


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a request."""

    number: int
    problem: Problem
    details: str = ""


@dataclass(frozen=True, slots=True)
class Push:
    """Intermediate value of a running request; only the latest of each topic counts."""

    number: int
    topic: str
    value: object


_TITLES = {
    "look": "specs",
    "live": "the rollout",
    "profile": "the profile",
    "dump": "the dump",
    "watch": "the progress of a dump",
    "contract": "contracts",
    "repair": "measuring stages",
}


def worker_title(worker: str) -> str:
    """Return what a worker is for, in words."""
    return _TITLES.get(worker, worker)


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """Something that happened to a worker."""

    worker: str
    # ``started``, ``killed`` by the app, ``printed`` output, or ``failed`` to answer
    kind: Literal["started", "killed", "printed", "failed"]
    text: str  # description, or the output if the worker has printed
    details: str = ""  # traceback
    skipped_bytes: int = 0  # number of bytes of earlier output that were too many to read


class Job:
    """One request while it is being answered; the cache outlives it, with an env for example."""

    def __init__(
        self,
        push: Callable[[str, object], None],
        cache: dict[str, Any],
        activity: ActivityRecord | None = None,
    ) -> None:
        self.push = push
        self.cache = cache
        self.activity = activity or ActivityRecord()
        self._cancelled = False
        self._changed = threading.Event()
        self._inbox: deque[Any] = deque()

    @property
    def is_cancelled(self) -> bool:
        """True if the answer is not needed any more; long jobs check it regularly."""
        return self._cancelled

    def cancel(self) -> None:
        """Set :attr:`is_cancelled`."""
        self._cancelled = True
        self._changed.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep until a value arrives, the job is cancelled (return True) or the time is over."""
        if not self._cancelled:
            self._changed.wait(seconds)
        return self._cancelled

    def send(self, value: object) -> None:
        """Queue a value for :meth:`receive`."""
        self._inbox.append(value)
        self._changed.set()

    def receive(self) -> list[Any]:
        """Return the values that the app has sent since the last call."""
        # Before the values are taken: one that arrives now ends the next wait.
        self._changed.clear()
        values = []
        while self._inbox:
            values.append(self._inbox.popleft())
        return values

    def get_cached(self, name: str, make: Callable[[], T]) -> T:
        """Return a value of the cache; create it if it is missing."""
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]


TRACEBACK_HINT = "F12 shows the traceback"


def with_app_hint(problem: Problem) -> Problem:
    """Replace a hint for Python or the command line by the key that shows the traceback."""
    hint = problem.hint
    is_elsewhere = hint is None or "__cause__" in hint or "--debug" in hint
    return replace(problem, hint=TRACEBACK_HINT) if problem.details and is_elsewhere else problem
