"""What the app is about: the chain under edit, what is selected, and what is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from textual.signal import Signal

from tdx.inspection.check_report import Finding
from tdx.inspection.overview import ChainOverview, Problem, StageOverview
from tdx.pipeline.editing import Draft, DraftChange, DraftStage, Editor
from tdx.tui.backend.client import CANCELLED, Backend, DiedError, RequestError, StaleError
from tdx.tui.compose.requests import Check, Look
from tdx.tui.log.journal import Journal
from tdx.tui.problems import ErrorStore, Source

if TYPE_CHECKING:
    from textual.app import App

Status = Literal["empty", "looking", "checking", "ready", "failed"]
_WHILE = 0.05
ENV = -1
"""The place of the env in the chain; stages follow from 0, and the output is behind the last."""


@dataclass(frozen=True, slots=True)
class Lint:
    """What a rule found, and in which part of the chain.

    Args:
        finding: what it found.
        left_out: the numbers of the stages that were not looked at, since they fail.
    """

    finding: Finding
    left_out: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Seen:
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

    status: Status = "empty"
    revision: int = -1
    overview: ChainOverview | None = None
    numbers: tuple[int, ...] = ()
    problems: dict[int | None, Problem] = field(default_factory=dict)
    good: dict[int, StageOverview] = field(default_factory=dict)
    lints: dict[int | None, tuple[Lint, ...]] = field(default_factory=dict)
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
        self.seen = Seen()
        self.place = ENV
        self.edited: Signal[Draft] = Signal(app, "edited")
        self.selected: Signal[int] = Signal(app, "selected")
        self.looked: Signal[Seen] = Signal(app, "looked")
        self._asking: set[asyncio.Task[None]] = set()
        self._retried = -1
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
        self._after(draft, number if place is None else None, place)
        return True

    def undo(self) -> DraftChange | None:
        """Take the last edit back."""
        return self._travel(self.editor.undo())

    def redo(self) -> DraftChange | None:
        """Make the last edit again that was taken back."""
        return self._travel(self.editor.redo())

    def load(self, draft: Draft) -> None:
        """Begin anew with another chain."""
        self.editor.load(draft)
        self.seen = Seen()
        self._after(draft, None, ENV)

    def refresh(self) -> None:
        """Ask the worker what the chain does now; an older question is dropped."""
        revision, draft = self.editor.revision, self.draft
        if draft.env is None:
            self._show(Seen())
            return
        self._show(replace(self.seen, status="looking"))
        self._begin(self._look(revision, draft))

    def retry(self) -> None:
        """Look again after the worker has died, but not where the chain may have ended it."""
        at_work = self.seen.status in ("looking", "checking")
        if not at_work and self._retried != self.editor.revision:
            self._retried = self.editor.revision
            self.refresh()

    def cancel(self) -> bool:
        """Kill the worker that looks at the chain, whatever it does.

        Returns:
            whether it was at work; nobody looks then until :meth:`refresh` is called.
        """
        busy = self.seen.status in ("looking", "checking")
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
            while self.seen.status == "looking":
                await asyncio.sleep(_WHILE)  # what it asks at its end would take the place of this
            revision, draft = self.editor.revision, self.draft
            self._show(replace(self.seen, status="checking"))
            try:
                problem = await self._check(revision, draft, steps=True)
            except StaleError:
                return
            if self.seen.status == "checking":
                self._show(replace(self.seen, status="ready"))
            then(problem)

        self._begin(check())

    def _begin(self, asking: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(asking)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _travel(self, change: DraftChange | None) -> DraftChange | None:
        if change is not None:
            number = None if self.stage is None else self.stage.number
            self._after(self.draft, number, _changed_place(change, self.draft))
        return change

    def _after(self, draft: Draft, number: int | None, place: int | None) -> None:
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

    async def _look(self, revision: int, draft: Draft) -> None:
        pipeline = draft.pipeline()
        try:
            overview = await self.backend.ask(Look(pipeline, self.allow_code), line="look")
        except StaleError:
            return
        except RequestError as error:
            if revision == self.editor.revision:
                problems: dict[int | None, Problem] = {None: _of_look(error)}
                self._show(replace(self.seen, status="failed", problems=problems))
            return
        if revision != self.editor.revision:
            return
        self._show(_seen(self.seen, revision, draft, overview))
        if overview.env is not None:
            with suppress(StaleError):
                await self._check(revision, draft)

    async def _check(self, revision: int, draft: Draft, steps: bool = False) -> Problem | None:
        """Ask what the rules find in the stages that work, and at those that fail.

        Returns:
            why they could not be asked.

        Raises:
            StaleError: there was a newer question.
        """
        failed = frozenset(number for number in self.seen.problems if number is not None)
        try:
            found = await self._found(draft, failed, steps)
            if failed:
                better = await self._found(draft, frozenset(), False)
                found += [(number, lint) for number, lint in better if number in failed]
        except StaleError:
            raise
        except RequestError as error:
            return error.problem
        if revision == self.editor.revision:
            lints: dict[int | None, tuple[Lint, ...]] = {}
            for number, lint in found:
                lints[number] = (*lints.get(number, ()), lint)
            self._show(replace(self.seen, lints=lints, checked=revision))
        return None

    async def _found(
        self, draft: Draft, left_out: frozenset[int], steps: bool
    ) -> list[tuple[int | None, Lint]]:
        """What is found without some stages, with the number of the stage that it is about."""
        kept = [stage for stage in draft.stages if stage.enabled and stage.number not in left_out]
        pipeline = draft.pipeline().with_stages(*(stage.config for stage in kept))
        asked = Check(pipeline, self.allow_code, steps)
        findings = await self.backend.ask(asked, line="check")
        return [(_number(finding, kept), Lint(finding, left_out)) for finding in findings]

    def report(self, source: Source, problems: Mapping[int | None, Problem]) -> None:
        """Take the errors that the rollout or a measurement has met; none where it works.

        Args:
            source: Who met them.
            problems: What is wrong, by the number of the stage; the env's under ``None``.
        """
        if self.errors.put(source, problems):
            self.looked.publish(self.seen)

    def name_of(self, number: int | None) -> str:
        """What a stage is called, with its number in the chain pane; the env under ``None``."""
        place = None if number is None else self.draft.place_of(number)
        if place is None:
            return "env" if self.draft.env is None else f"env {self.draft.env.id}"
        return f"stage {place} {self.draft.stages[place].config.name}"

    def _show(self, seen: Seen) -> None:
        self.seen = seen
        self.errors.put("look", seen.problems)
        self.looked.publish(seen)


def _seen(before: Seen, revision: int, draft: Draft, overview: ChainOverview) -> Seen:
    """What is known after a look; what was known of stages that fail now stays."""
    numbers = tuple(stage.number for stage in draft.stages if stage.enabled)
    problems: dict[int | None, Problem] = {}
    good = dict(before.good)
    if overview.env_problem is not None:
        problems[None] = overview.env_problem
    for number, stage in zip(numbers, overview.stages, strict=True):
        if stage.problem is not None:
            problems[number] = stage.problem
        elif stage.flow is not None:
            good[number] = stage
    if overview.env is None:
        return replace(before, status="ready", revision=revision, problems=problems)
    return replace(
        before,
        status="ready",
        revision=revision,
        overview=overview,
        numbers=numbers,
        problems=problems,
        good=good,
    )


def _of_look(error: RequestError) -> Problem:
    """What is shown where nobody could look at the chain."""
    hint = "Ctrl+K looks again, and so does the next edit"
    if error.problem is CANCELLED:
        return replace(CANCELLED, hint=hint)
    problem = replace(error.problem, details=error.details)
    if isinstance(error, DiedError):
        return replace(problem, hint=f"F12 shows its output; {hint}")
    return problem


def _changed_place(change: DraftChange, now: Draft) -> int | None:
    """The first place at which two drafts differ, for the eye to follow."""
    other = change.after if now is change.before else change.before
    if now.env != other.env:
        return ENV
    for place, stage in enumerate(now.stages):
        if place >= len(other.stages) or other.stages[place] != stage:
            return place
    return None


def _number(finding: Finding, stages: Sequence[DraftStage]) -> int | None:
    at = finding.where.stage
    return None if at is None or at >= len(stages) else stages[at].number
