"""What goes through the pipe between the app and a worker: plain dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from tdx.inspection.overview import Problem

T = TypeVar("T")


class Request(Generic[T]):
    """A question to a worker; a subclass is a frozen dataclass of plain data.

    The worker imports the function that ``handler`` names, ``"module:function"``, and calls it with
    the request and a :class:`~tdx.tui.backend.job.Job`; what it returns is the answer, of type
    ``T``. So the app needs to import nothing that the function needs.
    """

    handler: ClassVar[str]
    endless: ClassVar[bool] = False
    """Whether the answer comes only when the request is cancelled."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Please answer this."""

    number: int
    request: Request[Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    """The answer is no longer wanted."""

    number: int


@dataclass(frozen=True, slots=True)
class Tell:
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
