"""What is known of the chain: specs, errors and findings of stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from rich.cells import cell_len, set_cell_size

from tdx.inspection.check_report import Finding
from tdx.inspection.overview import ChainOverview, Problem, StageOverview
from tdx.pipeline.editing import Draft
from tdx.specs.leaf import LeafSpec, shape_text
from tdx.tui.backend.messages import with_app_hint

Source = Literal["look", "live", "profile"]
"""A worker: ``look`` inspects and checks the chain, ``live`` steps it, ``profile`` times it."""
SOURCES: tuple[Source, ...] = ("look", "live", "profile")
NO_PIPELINE = "no pipeline yet; press e to choose an env"
ENV = -1
"""Place of the env in the chain. Stages follow from 0, the output comes after the last one."""


@dataclass(frozen=True, slots=True)
class StageError:
    """An error of a stage or the env."""

    source: Source
    number: int | None
    problem: Problem


class ErrorStore:
    """Current errors of each source.

    Example:
        >>> store = ErrorStore()
        >>> store.put("live", {None: Problem("TDX000", "step raised ValueError")})
        True
        >>> [error.problem.message for error in store.all()]
        ['step raised ValueError']
        >>> store.put("live", {}), store.all()
        (True, ())
    """

    def __init__(self) -> None:
        self._problems: dict[Source, dict[int | None, Problem]] = {}

    def put(self, source: Source, problems: Mapping[int | None, Problem]) -> bool:
        """Replace the errors of a source; return True if they have changed."""
        before = self._problems.get(source, {})
        self._problems[source] = {at: with_app_hint(problem) for at, problem in problems.items()}
        return before != self._problems[source]

    def all(self) -> tuple[StageError, ...]:
        """Return all errors; of equal errors of a stage, only the first."""
        errors: dict[tuple[int | None, str], StageError] = {}
        for source in SOURCES:
            for number, problem in self._problems.get(source, {}).items():
                errors.setdefault((number, problem.message), StageError(source, number, problem))
        return tuple(errors.values())

    def at(self, number: int | None) -> tuple[StageError, ...]:
        """Return the errors of a stage, or of the env (``None``)."""
        return tuple(error for error in self.all() if error.number == number)


Phase = Literal["empty", "inspecting", "checking", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class StageFinding:
    """A finding of a rule."""

    finding: Finding
    # Numbers of the failing stages that were left out of the check
    excluded: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """What is known of the chain."""

    phase: Phase = "empty"  # what is being done, or how it ended
    revision: int = -1  # revision of the draft that was inspected
    # Last overview with a working env; ``None``: there was none yet.
    overview: ChainOverview | None = None
    numbers: tuple[int, ...] = ()  # numbers of the stages in the overview
    # Current problems by stage number; those of the env under ``None``
    problems: dict[int | None, Problem] = field(default_factory=dict)
    # Last overview of each stage in which it worked, by stage number
    last_good: dict[int, StageOverview] = field(default_factory=dict)
    # Findings of the rules by stage number; those without a stage under ``None``
    lints: dict[int | None, tuple[StageFinding, ...]] = field(default_factory=dict)
    checked: int = -1  # revision that the lints belong to

    def merge(self, revision: int, draft: Draft, overview: ChainOverview) -> ChainStatus:
        """Return the status after an inspection; keep the last good state of failing stages.

        The draft is without the wrappers of an env of another library.
        """
        shown = draft if overview.stack is None else draft.around(overview.stack)
        numbers = tuple(stage.number for stage in shown.stages if stage.enabled)
        problems: dict[int | None, Problem] = {}
        good = dict(self.last_good)
        if overview.env_problem is not None:
            problems[None] = overview.env_problem
        for number, stage in zip(numbers, overview.stages, strict=True):
            if stage.problem is not None:
                problems[number] = stage.problem
            elif stage.flow is not None or stage.changes:
                good[number] = stage
        if overview.env is None:
            return replace(self, phase="ready", revision=revision, problems=problems)
        return replace(
            self,
            phase="ready",
            revision=revision,
            overview=overview,
            numbers=numbers,
            problems=problems,
            last_good=good,
        )


def compact_shape(leaf: LeafSpec) -> str:
    """Return a shape without spaces, such as ``[4,84,84]``."""
    return shape_text(leaf.shape).replace(" ", "")


def truncate(text: str, width: int) -> str:
    """Shorten a text with an ellipsis."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1)}…" if width > 0 else ""


def truncate_middle(text: str, width: int) -> str:
    """Shorten a name with an ellipsis in its middle, because its end tells keys apart.

    Example:
        >>> truncate_middle("agents_observation_position", 12)
        'agent…sition'
    """
    if cell_len(text) <= width:
        return text
    # Characters from the end that take half of the width
    tail = next((at for at in range(len(text)) if cell_len(text[at:]) <= width // 2), len(text))
    end = text[tail:]
    return f"{set_cell_size(text, width - cell_len(end) - 1)}…{end}" if width > 0 else ""
