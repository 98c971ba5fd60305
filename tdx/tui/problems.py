"""Every error of the chain in one place: chain, tabs, header, details and log read it from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tdx.inspection.overview import Problem

Source = Literal["look", "live", "profile"]
_TRACEBACK = "F12 shows the traceback"
_SOURCES: tuple[Source, ...] = ("look", "live", "profile")


@dataclass(frozen=True, slots=True)
class StageError:
    """One error.

    Args:
        source: Who met it: the look at the specs, the rollout, a measurement.
        number: Number of the stage of the draft; ``None``: the env.
        problem: What is wrong.
    """

    source: Source
    number: int | None
    problem: Problem


def for_app(problem: Problem) -> Problem:
    """The problem with a hint that names a key of the app, where its own names Python's."""
    is_pythons = problem.hint is None or "__cause__" in problem.hint
    return replace(problem, hint=_TRACEBACK) if problem.details and is_pythons else problem


class ErrorStore:
    """The errors of each source; what a source no longer reports is gone everywhere.

    Example:
        >>> store = ErrorStore()
        >>> store.put("live", {None: Problem("TDX000", "step raised ValueError")})
        True
        >>> [each.problem.message for each in store.all()]
        ['step raised ValueError']
        >>> store.put("live", {}), store.all()
        (True, ())
    """

    def __init__(self) -> None:
        self._problems: dict[Source, dict[int | None, Problem]] = {}

    def put(self, source: Source, problems: Mapping[int | None, Problem]) -> bool:
        """Replace the errors of a source; returns True if they were others."""
        before = self._problems.get(source, {})
        self._problems[source] = {at: for_app(each) for at, each in problems.items()}
        return before != self._problems[source]

    def all(self) -> tuple[StageError, ...]:
        """Every error; of those that two sources report of one stage alike, the first."""
        found: dict[tuple[int | None, str], StageError] = {}
        for source in _SOURCES:
            for number, problem in self._problems.get(source, {}).items():
                key = number, problem.message
                found.setdefault(key, StageError(source, number, problem))
        return tuple(found.values())

    def at(self, number: int | None) -> tuple[StageError, ...]:
        """The errors of a stage, or of the env."""
        return tuple(each for each in self.all() if each.number == number)
