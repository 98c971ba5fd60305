"""State that all parts of the app share: the draft, the selection, and what is known of the chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from textual.signal import Signal

from tdx.inspection.check_report import Finding
from tdx.inspection.overview import ChainOverview, Problem, StageOverview
from tdx.pipeline.editing import Change, Draft, DraftStage, Editor
from tdx.tui.backend.client import (
    CANCELLED,
    Backend,
    RequestError,
    SupersededError,
    WorkerDiedError,
)
from tdx.tui.backend.messages import with_app_hint
from tdx.tui.compose.requests import CheckChain, InspectChain
from tdx.tui.log.journal import Journal

if TYPE_CHECKING:
    from textual.app import App


Source = Literal["look", "live", "profile"]
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
        self._problems[source] = {at: with_app_hint(each) for at, each in problems.items()}
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


Phase = Literal["empty", "inspecting", "checking", "ready", "failed"]
_POLL_INTERVAL = 0.05
ENV = -1
"""The place of the env in the chain; stages follow from 0, and the output is behind the last."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """What a rule found, and in which part of the chain.

    Args:
        finding: what it found.
        excluded: the numbers of the stages that were not looked at, since they fail.
    """

    finding: Finding
    excluded: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """What is known of the chain.

    Args:
        status: whether it is what the chain is now.
        revision: the revision of the draft that it speaks of.
        overview: the last one in which the env could be made; none before that.
        numbers: the numbers of the stages that the overview speaks of.
        problems: what is wrong now, by the number of the stage; the env's under none.
        good: the last good look at every stage, by its number.
        lints: what the rules found, by the number of the stage; of no stage under none.
        checked: the revision that the lints speak of.
    """

    phase: Phase = "empty"
    revision: int = -1
    overview: ChainOverview | None = None
    numbers: tuple[int, ...] = ()
    problems: dict[int | None, Problem] = field(default_factory=dict)
    last_good: dict[int, StageOverview] = field(default_factory=dict)
    lints: dict[int | None, tuple[LintFinding, ...]] = field(default_factory=dict)
    checked: int = -1


class Workspace:
    """The state that the parts of the app share; parts subscribe to the signals.

    Args:
        app: the app, which owns the signals.
        editor: the chain under edit.
        backend: whoever answers what needs torch.
        allow_code: whether Python objects that the pipeline names may be imported.
    """

    def __init__(
        self, app: App[None], editor: Editor, backend: Backend, allow_code: bool = False
    ) -> None:
        self.editor = editor
        self.backend = backend
        self.allow_code = allow_code
        self.status = ChainStatus()
        self.place = ENV
        self.edited: Signal[Draft] = Signal(app, "edited")
        self.selected: Signal[int] = Signal(app, "selected")
        self.inspected: Signal[ChainStatus] = Signal(app, "inspected")
        self._tasks: set[asyncio.Task[None]] = set()
        self._retried_revision = -1
        self.journal = Journal()
        self.errors = ErrorStore()

    @property
    def draft(self) -> Draft:
        """The chain as it is now."""
        return self.editor.draft

    @property
    def stage(self) -> DraftStage | None:
        """The selected stage; none where the env or the output is selected."""
        stages = self.draft.stages
        return stages[self.place] if 0 <= self.place < len(stages) else None

    def select(self, place: int) -> None:
        """Select the env (-1), a stage, or the output (behind the last stage)."""
        place = max(ENV, min(place, len(self.draft.stages)))
        if place != self.place:
            self.editor.seal()
            self.place = place
            self.selected.publish(place)

    def edit(
        self, label: str, draft: Draft, *, place: int | None = None, merge: str | None = None
    ) -> bool:
        """Take a draft as the result of an edit; see :meth:`Editor.apply`.

        Args:
            label: what was done.
            draft: the result.
            place: what is selected then; the selection follows its stage where it is not given.
            merge: edits in a row that have the same are undone together.
        """
        number = None if self.stage is None else self.stage.number
        if not self.editor.apply(label, draft, merge):
            return False
        self._apply(draft, number if place is None else None, place)
        return True

    def undo(self) -> Change | None:
        """Take the last edit back."""
        return self._apply_change(self.editor.undo())

    def redo(self) -> Change | None:
        """Make the last edit again that was taken back."""
        return self._apply_change(self.editor.redo())

    def load(self, draft: Draft) -> None:
        """Begin anew with another chain."""
        self.editor.load(draft)
        self.status = ChainStatus()
        self._apply(draft, None, ENV)

    def refresh(self) -> None:
        """Ask the worker what the chain does now; an older question is dropped."""
        revision, draft = self.editor.revision, self.draft
        if draft.env is None:
            self._show(ChainStatus())
            return
        self._show(replace(self.status, phase="inspecting"))
        self._run_task(self._inspect(revision, draft))

    def retry(self) -> None:
        """Look again after the worker has died, but not where the chain may have ended it."""
        at_work = self.status.phase in ("inspecting", "checking")
        if not at_work and self._retried_revision != self.editor.revision:
            self._retried_revision = self.editor.revision
            self.refresh()

    def cancel(self) -> bool:
        """Kill the worker that looks at the chain, whatever it does.

        Returns:
            whether it was at work; nobody looks then until :meth:`refresh` is called.
        """
        busy = self.status.phase in ("inspecting", "checking")
        self.backend.restart("look")
        return busy

    def check_with_steps(self, then: Callable[[Problem | None], None]) -> None:
        """Let the rules look at some steps too.

        Args:
            then: called with what went wrong, or nothing; not where another question came first.
        """
        if self.draft.env is None:
            return

        async def check() -> None:
            while self.status.phase == "inspecting":
                await asyncio.sleep(
                    _POLL_INTERVAL
                )  # what it asks at its end would take the place of this
            revision, draft = self.editor.revision, self.draft
            self._show(replace(self.status, phase="checking"))
            try:
                problem = await self._check(revision, draft, steps=True)
            except SupersededError:
                return
            if self.status.phase == "checking":
                self._show(replace(self.status, phase="ready"))
            then(problem)

        self._run_task(check())

    def _run_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _apply_change(self, change: Change | None) -> Change | None:
        if change is not None:
            number = None if self.stage is None else self.stage.number
            self._apply(self.draft, number, _changed_place(change, self.draft))
        return change

    def _apply(self, draft: Draft, number: int | None, place: int | None) -> None:
        """Keep the selection on its stage, or where it is told, and tell everyone."""
        if place is None and number is not None:
            place = draft.place_of(number)
        if place is None:
            place = self.place
        place = max(ENV, min(place, len(draft.stages)))
        moved, self.place = place != self.place, place
        self.errors.put("profile", {})
        self.edited.publish(draft)
        if moved:
            self.selected.publish(place)
        self.refresh()

    async def _inspect(self, revision: int, draft: Draft) -> None:
        pipeline = draft.pipeline()
        try:
            overview = await self.backend.ask(InspectChain(pipeline, self.allow_code), slot="look")
        except SupersededError:
            return
        except RequestError as error:
            if revision == self.editor.revision:
                problems: dict[int | None, Problem] = {None: _inspection_problem(error)}
                self._show(replace(self.status, phase="failed", problems=problems))
            return
        if revision != self.editor.revision:
            return
        self._show(_merge_overview(self.status, revision, draft, overview))
        if overview.env is not None:
            with suppress(SupersededError):
                await self._check(revision, draft)

    async def _check(self, revision: int, draft: Draft, steps: bool = False) -> Problem | None:
        """Ask what the rules find in the stages that work, and at those that fail.

        Returns:
            why they could not be asked.

        Raises:
            StaleError: there was a newer question.
        """
        failed = frozenset(number for number in self.status.problems if number is not None)
        try:
            found = await self._find_lints(draft, failed, steps)
            if failed:
                better = await self._find_lints(draft, frozenset(), False)
                found += [(number, lint) for number, lint in better if number in failed]
        except SupersededError:
            raise
        except RequestError as error:
            return error.problem
        if revision == self.editor.revision:
            lints: dict[int | None, tuple[LintFinding, ...]] = {}
            for number, lint in found:
                lints[number] = (*lints.get(number, ()), lint)
            self._show(replace(self.status, lints=lints, checked=revision))
        return None

    async def _find_lints(
        self, draft: Draft, excluded: frozenset[int], steps: bool
    ) -> list[tuple[int | None, LintFinding]]:
        """What is found without some stages, with the number of the stage that it is about."""
        kept = [stage for stage in draft.stages if stage.enabled and stage.number not in excluded]
        pipeline = draft.pipeline().with_stages(*(stage.config for stage in kept))
        asked = CheckChain(pipeline, self.allow_code, steps)
        findings = await self.backend.ask(asked, slot="check")
        return [
            (_stage_number(finding, kept), LintFinding(finding, excluded)) for finding in findings
        ]

    def report(self, source: Source, problems: Mapping[int | None, Problem]) -> None:
        """Take the errors that the rollout or a measurement has met; none where it works.

        Args:
            source: Who met them.
            problems: What is wrong, by the number of the stage; the env's under ``None``.
        """
        if self.errors.put(source, problems):
            self.inspected.publish(self.status)

    def name_of(self, number: int | None) -> str:
        """What a stage is called, with its number in the chain pane; the env under ``None``."""
        place = None if number is None else self.draft.place_of(number)
        if place is None:
            return "env" if self.draft.env is None else f"env {self.draft.env.id}"
        return f"stage {place} {self.draft.stages[place].config.name}"

    def _show(self, status: ChainStatus) -> None:
        self.status = status
        self.errors.put("look", status.problems)
        self.inspected.publish(status)


def _merge_overview(
    before: ChainStatus, revision: int, draft: Draft, overview: ChainOverview
) -> ChainStatus:
    """What is known after a look; what was known of stages that fail now stays."""
    numbers = tuple(stage.number for stage in draft.stages if stage.enabled)
    problems: dict[int | None, Problem] = {}
    good = dict(before.last_good)
    if overview.env_problem is not None:
        problems[None] = overview.env_problem
    for number, stage in zip(numbers, overview.stages, strict=True):
        if stage.problem is not None:
            problems[number] = stage.problem
        elif stage.flow is not None:
            good[number] = stage
    if overview.env is None:
        return replace(before, phase="ready", revision=revision, problems=problems)
    return replace(
        before,
        phase="ready",
        revision=revision,
        overview=overview,
        numbers=numbers,
        problems=problems,
        last_good=good,
    )


def _inspection_problem(error: RequestError) -> Problem:
    """What is shown where nobody could look at the chain."""
    hint = "Ctrl+K looks again, and so does the next edit"
    if error.problem is CANCELLED:
        return replace(CANCELLED, hint=hint)
    problem = replace(error.problem, details=error.details)
    if isinstance(error, WorkerDiedError):
        return replace(problem, hint=f"F12 shows its output; {hint}")
    return problem


def _changed_place(change: Change, now: Draft) -> int | None:
    """The first place at which two drafts differ, for the eye to follow."""
    other = change.after if now is change.before else change.before
    if now.env != other.env:
        return ENV
    for place, stage in enumerate(now.stages):
        if place >= len(other.stages) or other.stages[place] != stage:
            return place
    return None


def _stage_number(finding: Finding, stages: Sequence[DraftStage]) -> int | None:
    at = finding.where.stage
    return None if at is None or at >= len(stages) else stages[at].number
