"""State that all parts of the app share: draft, selection, chain status and errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual.signal import Signal

from tdx.inspection.overview import Problem
from tdx.pipeline.editing import Draft, DraftChange, DraftStage, Editor
from tdx.pipeline.model import StackFacts
from tdx.tui.backend.client import (
    CANCELLED,
    Backend,
    RequestError,
    SupersededError,
    WorkerDiedError,
)
from tdx.tui.backend.requests import CheckChain, InspectChain
from tdx.tui.chain_status import ENV, SOURCES, ChainStatus, ErrorStore, Source, StageFinding
from tdx.tui.log.journal import Journal

if TYPE_CHECKING:
    from textual.app import App

    from tdx.inspection.live.views import StageReading

Readings = Mapping[int, "StageReading"]
"""What the stages did in the latest step, by place."""
_POLL_INTERVAL = 0.05


class Workspace:
    """State that the parts of the app share; they subscribe to its signals.

    :meth:`edit` publishes ``edited``, then ``selected`` if the selection moved. After that
    ``inspected`` is published whenever :attr:`status` changes: when the inspection begins, when the
    specs are known, and when the rules have run. :meth:`undo`, :meth:`redo` and :meth:`load` do the
    same.

    A *place* is a position in the draft: stages count from 0 with disabled ones, the env is -1. The
    *number* of a stage identifies it, and stays when the stage moves. A *stage index*, as in the
    findings of a check, counts enabled stages only.
    """

    def __init__(
        self,
        app: App[None],
        editor: Editor,
        backend: Backend,
        allow_code: bool = False,
        journal: Journal | None = None,
        samples: str | None = None,
    ) -> None:
        self.editor = editor
        self.backend = backend
        self.allow_code = allow_code
        self._samples = (None if editor.draft.env is None else editor.draft.env.id, samples)
        self.status = ChainStatus()
        self.place = ENV
        self.edited: Signal[Draft] = Signal(app, "edited")
        self.selected: Signal[int] = Signal(app, "selected")
        self.inspected: Signal[ChainStatus] = Signal(app, "inspected")
        self.refused: Signal[str] = Signal(app, "refused")
        self.code_reloaded: Signal[Draft] = Signal(app, "code_reloaded")
        self.stepped: Signal[Readings] = Signal(app, "stepped")
        self.commanded: Signal[str] = Signal(app, "commanded")
        self.running: Sequence[tuple[str, str]] = ()
        """Workers that are busy with commands, and what they do."""
        self.readings: Readings = {}
        self.costs: Mapping[int, str] = {}
        self._shown_draft: Draft | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._retried_revision = -1
        self._recorded: dict[tuple[Source, int | None], Problem] = {}
        self.journal = journal or Journal()
        self.errors = ErrorStore()

    @property
    def draft(self) -> Draft:
        """The chain as it is now, with the wrappers of an env of another library."""
        return self._shown_draft or self.editor.draft

    @property
    def stack(self) -> StackFacts | None:
        """The env with its wrappers, if it belongs to another library."""
        return self.draft.stack

    @property
    def is_unread(self) -> bool:
        """True while stages and settings of the env, a function or a folder, are not known."""
        env = self.draft.env
        is_known = self.status.overview is not None or bool(self.draft.stages)
        return env is not None and not is_known and (env.code is not None or os.path.isdir(env.id))

    @property
    def samples(self) -> str | None:
        """File or folder with the samples of the env; those of another env do not apply."""
        env_id, samples = self._samples
        env = self.editor.draft.env
        return samples if env is not None and env.id == env_id else None

    @property
    def takes_samples(self) -> bool:
        """True if the env is a checkpoint or Python code, which may be a data pipeline."""
        is_data = self.stack is not None and self.stack.is_data
        draft = self.editor.draft
        return is_data or (draft.env is not None and draft.pipeline().is_factory)

    def choose_samples(self, samples: str | None) -> None:
        """Set the samples of the env, and inspect it again. ``None``: draw them."""
        env = self.editor.draft.env
        if env is not None:
            self._samples = (env.id, samples)
            self.reload_code()

    @property
    def first_place(self) -> int:
        """Place of the first stage that can be edited."""
        return 0 if self.stack is None else len(self.stack.wrappers)

    @property
    def stage(self) -> DraftStage | None:
        """The selected stage. ``None``: the env or the output is selected."""
        stages = self.draft.stages
        return stages[self.place] if 0 <= self.place < len(stages) else None

    def show_readings(self, readings: Sequence[StageReading]) -> None:
        """Publish what the stages did in the latest step of the live session."""
        found = {reading.number: reading for reading in readings}
        if found != self.readings:
            self.readings = found
            self.stepped.publish(found)

    def show_costs(self, costs: Mapping[int, str]) -> None:
        """Publish the measured time of the env and of each stage, by its place in the chain."""
        if costs != self.costs:
            self.costs = costs
            self.stepped.publish(self.readings)

    def set_running(self, running: Sequence[tuple[str, str]]) -> None:
        """Publish which commands run in workers."""
        self.running = running
        self.commanded.publish(running[-1][1] if running else "")

    def select(self, place: int) -> None:
        """Select the env (-1), a stage, or the output (after the last stage)."""
        place = max(ENV, min(place, len(self.draft.stages)))
        if place != self.place:
            self.editor.seal()
            self.place = place
            self.selected.publish(place)

    def edit(
        self, label: str, draft: Draft, *, place: int | None = None, merge: str | None = None
    ) -> bool:
        """Apply an edit, see :meth:`Editor.apply`; return False if it is refused or a no-op.

        Without a place, the selection follows its stage. Consecutive edits with the same ``merge``
        are undone together.
        """
        number = None if self.stage is None else self.stage.number
        if (stack := draft.stack) is not None:
            own = draft.edited()
            if own is None or (own.positions and not stack.can_extend):
                self.refused.publish(stack.reason)
                return False
            if own.positions and place is not None:
                # A factory with stages after it is one env: its wrappers are no stages any more.
                place -= len(stack.wrappers)
            draft = own
        if not self.editor.apply(label, draft, merge):
            return False
        self._publish_edit(number if place is None else None, place)
        return True

    def undo(self) -> DraftChange | None:
        """Undo the last edit."""
        return self._publish_change(self.editor.undo())

    def redo(self) -> DraftChange | None:
        """Redo the last edit that was undone."""
        return self._publish_change(self.editor.redo())

    def load(self, draft: Draft) -> None:
        """Replace the chain and discard the edit history."""
        self.editor.load(draft)
        self.status = ChainStatus()
        self._publish_edit(None, ENV)

    def refresh(self) -> None:
        """Ask the worker to inspect the chain; an older request is dropped."""
        if self.editor.draft.env is None:
            self._set_status(ChainStatus())
            return
        self._set_status(replace(self.status, phase="inspecting"))
        self._run_task(self._inspect(self.editor.revision, self.editor.draft))

    def retry(self) -> None:
        """Inspect the chain again after the worker has died, unless the chain may be the cause."""
        at_work = self.status.phase in ("inspecting", "checking")
        if not at_work and self._retried_revision != self.editor.revision:
            self._retried_revision = self.editor.revision
            self.refresh()

    def cancel(self) -> bool:
        """Kill the worker that inspects the chain, which the next :meth:`refresh` starts again.

        Return True if it was busy.
        """
        busy = self.status.phase in ("inspecting", "checking")
        self.backend.restart("look")
        return busy

    def reload_code(self) -> None:
        """Restart the workers, so that they import the code of the env again."""
        for worker in (*SOURCES, "contract", "repair"):
            self.backend.restart(worker)
        self.errors.put("profile", {})
        self.code_reloaded.publish(self.draft)
        self.refresh()

    def check_with_steps(self, then: Callable[[Problem | None], None]) -> None:
        """Check the chain with rules that make steps.

        ``then`` is called with what went wrong, if anything, unless another request came first.
        """
        if self.draft.env is None:
            return

        async def check() -> None:
            # An inspection ends with a check without steps, which would replace this one.
            while self.status.phase == "inspecting":
                await asyncio.sleep(_POLL_INTERVAL)
            revision, draft = self.editor.revision, self.draft
            self._set_status(replace(self.status, phase="checking"))
            try:
                problem = await self._check(revision, draft, steps=True)
            except SupersededError:
                return
            if self.status.phase == "checking":
                self._set_status(replace(self.status, phase="ready"))
            then(problem)

        self._run_task(check())

    def _run_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _publish_change(self, change: DraftChange | None) -> DraftChange | None:
        """Publish an undone or redone edit, and select the first place that it has changed."""
        if change is None:
            return None
        now = self.editor.draft
        other = change.after if now is change.before else change.before
        changed = (
            place
            for place, stage in enumerate(now.stages)
            if place >= len(other.stages) or other.stages[place] != stage
        )
        number = None if self.stage is None else self.stage.number
        self._publish_edit(number, ENV if now.env != other.env else next(changed, None))
        return change

    def _publish_edit(self, number: int | None, place: int | None) -> None:
        """Move the selection, publish the signals and inspect the chain after an edit.

        Without a place, the stage with a number stays selected wherever it is now; without both,
        the place stays.
        """
        self._update_shown_draft()
        draft = self.draft
        if place is None and number is not None:
            place = draft.find_place(number)
        if place is None:
            place = self.place
        place = max(ENV, min(place, len(draft.stages)))
        moved, self.place = place != self.place, place
        self.errors.put("profile", {})
        self.show_readings(())
        self.edited.publish(draft)
        if moved:
            self.selected.publish(place)
        self.refresh()

    async def _inspect(self, revision: int, draft: Draft) -> None:
        pipeline = draft.pipeline()
        try:
            request = InspectChain(pipeline, self.allow_code, self.samples)
            overview = await self.backend.ask(request, slot="look")
        except SupersededError:
            return
        except RequestError as error:
            if revision != self.editor.revision:
                return
            hint = "press Ctrl+K to inspect the chain again, or edit it"
            problem = CANCELLED
            if error.problem is not CANCELLED:
                problem = replace(error.problem, details=error.details)
            if isinstance(error, WorkerDiedError):
                hint = f"F12 shows the output; {hint}"
            if isinstance(error, WorkerDiedError) or error.is_cancelled:
                problem = replace(problem, hint=hint)
            problems: dict[int | None, Problem] = {None: problem}
            self._set_status(replace(self.status, phase="failed", problems=problems))
            return
        if revision != self.editor.revision:
            return
        self._set_status(self.status.merge(revision, draft, overview))
        if overview.env is not None:
            with suppress(SupersededError):
                await self._check(revision, self.draft)

    async def _check(self, revision: int, draft: Draft, steps: bool = False) -> Problem | None:
        """Check the working stages, and then the failing ones; return why the check failed, if so.

        Raises:
            SupersededError: A newer request came first.
        """
        failed = frozenset(number for number in self.status.problems if number is not None)
        try:
            numbered = await self._find_lints(draft, failed, steps)
            if failed:
                whole = await self._find_lints(draft, frozenset(), False)
                numbered += [(number, lint) for number, lint in whole if number in failed]
        except SupersededError:
            raise
        except RequestError as error:
            return error.problem
        if revision == self.editor.revision:
            lints: dict[int | None, tuple[StageFinding, ...]] = {}
            for number, lint in numbered:
                lints[number] = (*lints.get(number, ()), lint)
            self._set_status(replace(self.status, lints=lints, checked=revision))
        return None

    async def _find_lints(
        self, draft: Draft, excluded: frozenset[int], steps: bool
    ) -> list[tuple[int | None, StageFinding]]:
        """Check the chain without some stages; return findings with stage numbers."""
        kept = [stage for stage in draft.stages if stage.enabled and stage.number not in excluded]
        pipeline = draft.pipeline()
        if draft.stack is not None:
            kept = [stage for stage in draft.stages if stage.enabled]
        else:
            pipeline = pipeline.with_stages(*(stage.config for stage in kept))
        request = CheckChain(pipeline, self.allow_code, steps, self.samples)
        findings = await self.backend.ask(request, slot="check")
        numbered: list[tuple[int | None, StageFinding]] = []
        for finding in findings:
            at = finding.where.stage
            number = None if at is None or at >= len(kept) else kept[at].number
            numbered.append((number, StageFinding(finding, excluded)))
        return numbered

    def report(self, source: Source, problems: Mapping[int | None, Problem]) -> None:
        """Set the errors that a rollout or a measurement has found, by stage number."""
        if self.errors.put(source, problems):
            self._record_problems()
            self.inspected.publish(self.status)

    def list_selected_problems(self) -> tuple[tuple[Problem, ...], tuple[StageFinding, ...]]:
        """Return the errors and the findings of rules for the selected stage."""
        stage, status = self.stage, self.status
        if stage is None and self.place != ENV and None not in status.problems:
            return (), ()  # the output has no problems of its own
        if stage is not None and not stage.enabled:
            return (), ()
        number = None if stage is None else stage.number
        errors = self.errors.at(number)
        is_current = status.checked == self.editor.revision
        lints = status.lints.get(number, ()) if is_current else ()
        # A finding without a title repeats an error, unless only steps can reveal it.
        shown = tuple(
            lint
            for lint in lints
            if lint.finding.title is not None or lint.finding.check == "steps"
        )
        if shown and len(shown) == len(lints):
            # The finding of a rule explains the error better.
            errors = tuple(error for error in errors if error.source != "look")
        return tuple(error.problem for error in errors), shown

    def find_fixable(self) -> StageFinding | None:
        """Return the first finding for the selected stage that has a fix."""
        _, lints = self.list_selected_problems()
        return next((lint for lint in lints if lint.finding.fix is not None), None)

    def name_of(self, number: int | None) -> str:
        """Return the name of a stage with its number in the chain pane; the env for ``None``."""
        place = None if number is None else self.draft.find_place(number)
        if place is None:
            return "env" if self.draft.env is None else f"env {self.draft.env.id}"
        return f"stage {place} {self.draft.stages[place].config.name}"

    def _set_status(self, status: ChainStatus) -> None:
        self.status = status
        self.errors.put("look", status.problems)
        self._update_shown_draft()
        self._record_problems()
        self.inspected.publish(status)

    def _record_problems(self) -> None:
        """Record each new error of the chain in the journal, and stages that work again."""
        before, self._recorded = self._recorded, {}
        if self.status.phase == "empty":
            return
        for error in self.errors.all():
            key, problem = (error.source, error.number), error.problem
            self._recorded[key] = problem
            if before.get(key) != problem:
                details = (problem.origin, problem.hint, problem.details)
                self.journal.record(
                    f"{self.name_of(error.number)}: {problem.message}",
                    source="chain" if error.source == "look" else error.source,
                    severity="error",
                    details="\n".join(line for line in details if line),
                )
        broken = {number for _, number in self._recorded}
        for number in {number for _, number in before} - broken:
            if number is None or self.draft.find_place(number) is not None:
                self.journal.record(f"{self.name_of(number)} works again", source="chain")

    def _update_shown_draft(self) -> None:
        """Include the wrappers of the env in :attr:`draft` if the last inspection found some."""
        draft, overview = self.editor.draft, self.status.overview
        facts = None if overview is None else overview.stack
        is_shown = (
            facts is not None
            and draft.env is not None
            and draft.env.id == facts.env
            and (facts.is_data or draft.pipeline().is_factory)
        )
        self._shown_draft = draft.around(facts) if is_shown and facts else None
        self.place = min(self.place, len(self.draft.stages))
