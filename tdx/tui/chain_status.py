"""What is known of the chain: specs, errors and findings of stages, and the rows of the pane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tdx.foundation.keys import format_key
from tdx.inspection.check_report import Finding
from tdx.inspection.overview import ChainOverview, Problem, StageOverview
from tdx.pipeline.editing import Draft, DraftStage
from tdx.pipeline.grammar import format_arguments
from tdx.specs.leaf import LeafSpec, shape_text
from tdx.tui.backend.messages import with_app_hint

Source = Literal["look", "live", "profile"]
"""A worker: ``look`` inspects and checks the chain, ``live`` steps it, ``profile`` times it."""
SOURCES: tuple[Source, ...] = ("look", "live", "profile")
NO_PIPELINE = "no pipeline yet; press e to choose an env"
_MAX_NAME = 28
"""Maximum width of a key below the output."""
ENV = -1
"""Place of the env in the chain. Stages follow from 0, the output comes after the last one."""


@dataclass(frozen=True, slots=True)
class StageError:
    """An error of a stage or the env.

    Args:
        source: Worker that found it.
        number: Number of the stage in the draft. ``None``: the env.
        problem: What is wrong.
    """

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
        found: dict[tuple[int | None, str], StageError] = {}
        for source in SOURCES:
            for number, problem in self._problems.get(source, {}).items():
                key = number, problem.message
                found.setdefault(key, StageError(source, number, problem))
        return tuple(found.values())

    def at(self, number: int | None) -> tuple[StageError, ...]:
        """Return the errors of a stage, or of the env (``None``)."""
        return tuple(error for error in self.all() if error.number == number)


Phase = Literal["empty", "inspecting", "checking", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A finding of a rule.

    Args:
        finding: The finding.
        excluded: Numbers of the failing stages that were left out of the check.
    """

    finding: Finding
    excluded: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """What is known of the chain.

    Args:
        revision: Revision of the draft that was inspected.
        overview: Last overview with a working env. ``None``: there was none yet.
        numbers: Numbers of the stages in the overview.
        problems: Current problems by stage number; those of the env under ``None``.
        lints: Findings of the rules by stage number; those without a stage under ``None``.
        checked: Revision that the lints belong to.
        phase: What is being done, or how it ended.
        last_good: Last overview of each stage in which it worked, by stage number.
    """

    phase: Phase = "empty"
    revision: int = -1
    overview: ChainOverview | None = None
    numbers: tuple[int, ...] = ()
    problems: dict[int | None, Problem] = field(default_factory=dict)
    last_good: dict[int, StageOverview] = field(default_factory=dict)
    lints: dict[int | None, tuple[LintFinding, ...]] = field(default_factory=dict)
    checked: int = -1

    def merge(self, revision: int, draft: Draft, overview: ChainOverview) -> ChainStatus:
        """Return the status after an inspection; keep the last good state of failing stages.

        Args:
            revision: Revision of the draft that was inspected.
            draft: The draft, without the wrappers of an env of another library.
            overview: Result of the inspection.
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


RowKind = Literal["env", "stage", "problem", "output", "key"]
Badge = Literal["", "failed", "error", "warning", "suggestion", "off", "unknown"]


@dataclass(frozen=True, slots=True)
class ChainRow:
    """A row of the chain list.

    Args:
        kind: What the row shows.
        place: Place in the chain.
        title: Name.
        detail: Text after the name.
        badge: Status of the stage.
    """

    kind: RowKind
    place: int
    title: str
    detail: str = ""
    badge: Badge = ""


def build_chain_rows(draft: Draft, status: ChainStatus, errors: ErrorStore) -> list[ChainRow]:
    """Return the rows for a chain and its status."""
    rows = [*_env_rows(draft, status, errors), *_stage_rows(draft, status, errors)]
    return [*rows, _output_row(draft, status)]


def _env_rows(draft: Draft, status: ChainStatus, errors: ErrorStore) -> Iterator[ChainRow]:
    if draft.env is None:
        yield ChainRow("env", ENV, "no env yet", "press e")
        return
    found = errors.at(None)
    badge: Badge = "failed" if found else _worst_severity(status, None)
    yield ChainRow("env", ENV, draft.env.id, _env_detail(draft), badge)
    for error in found:
        yield ChainRow("problem", ENV, error.problem.message)


def _env_detail(draft: Draft) -> str:
    env = draft.env
    assert env is not None
    parts = [
        f"×{env.num_envs}" if env.num_envs is not None else "",
        "pixels" if env.from_pixels else "",
        env.device or "",
        f"seed {env.seed}" if env.seed is not None else "",
    ]
    return " ".join(part for part in parts if part)


def _stage_rows(draft: Draft, status: ChainStatus, errors: ErrorStore) -> Iterator[ChainRow]:
    for place, stage in enumerate(draft.stages):
        found = errors.at(stage.number) if stage.enabled else ()
        badge: Badge = "failed" if found else _badge(stage, status)
        yield ChainRow("stage", place, _stage_name(stage), _stage_arguments(stage), badge)
        for error in found:
            yield ChainRow("problem", place, error.problem.message)


def _stage_name(stage: DraftStage) -> str:
    code = stage.config.code
    return stage.config.name if code is None else code.name


def _stage_arguments(stage: DraftStage) -> str:
    if stage.wrapper is not None:
        return stage.wrapper.text
    return format_arguments(stage.config.args, stage.config.kwargs)


def _badge(stage: DraftStage, status: ChainStatus) -> Badge:
    if not stage.enabled:
        return "off"
    if None in status.problems or stage.number not in status.last_good:
        return "unknown"  # unknown without a working env
    return _worst_severity(status, stage.number)


def _worst_severity(status: ChainStatus, number: int | None) -> Badge:
    severities = {lint.finding.severity for lint in status.lints.get(number, ())}
    ranked: tuple[Badge, ...] = ("error", "warning", "suggestion")
    return next((badge for badge in ranked if badge in severities), "")


def build_key_rows(draft: Draft, status: ChainStatus) -> list[ChainRow]:
    """Return a row for each key of the output and the action, with shape and dtype."""
    changes = () if status.overview is None else status.overview.changes
    known = [change.after for change in changes if change.after is not None]
    leaves = [leaf for leaf in known if leaf.part != "state"]
    names = [format_key(leaf.key) for leaf in leaves]
    width = min(max(map(len, names), default=0), _MAX_NAME)
    return [
        ChainRow(
            "key",
            len(draft.stages),
            truncate_middle(name, width).ljust(width),
            f"{compact_shape(leaf)} {leaf.dtype}",
        )
        for name, leaf in zip(names, leaves, strict=True)
    ]


def compact_shape(leaf: LeafSpec) -> str:
    """Return a shape without spaces, such as ``[4,84,84]``."""
    return shape_text(leaf.shape).replace(" ", "")


def truncate_middle(text: str, width: int) -> str:
    """Shorten a name with an ellipsis in its middle, because its end tells keys apart.

    Example:
        >>> truncate_middle("agents_observation_position", 12)
        'agent…sition'
    """
    if len(text) <= width:
        return text
    tail = width // 2
    return f"{text[: max(0, width - tail - 1)]}…{text[len(text) - tail :]}" if width > 0 else ""


def _output_row(draft: Draft, status: ChainStatus) -> ChainRow:
    keys = sum(1 for change in status.overview.changes if change.after) if status.overview else 0
    words = {"inspecting": "inspecting …", "failed": "unknown", "empty": ""}
    return ChainRow("output", len(draft.stages), "output", words.get(status.phase, f"{keys} keys"))
