"""Measurement in the background: progress and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tdx.pipeline.draft import Draft
from tdx.tui.backend.client import RequestError, Ticket
from tdx.tui.profile.messages import AdviceResult, Costs, ProfileProgress
from tdx.tui.profile.requests import FindAdvice, MeasurePipeline
from tdx.tui.profile.runs import ProfileRun, RunHistory

if TYPE_CHECKING:
    from textual.widget import Widget

    from tdx.tui.workspace import Workspace


WORKER = "profile"
CANCEL_TIMEOUT = 2.0
"""Seconds that a cancelled measurement has to end before its worker is killed."""
CANCELLED = "cancelled: partial results"


@dataclass(frozen=True, slots=True)
class DraftAdvice:
    """Advice, and the chain it is for."""

    draft: Draft
    found: AdviceResult


class MeasurementController:
    """Runs measurements and advice in the worker, one at a time."""

    def __init__(
        self,
        owner: Widget,
        workspace: Workspace,
        on_change: Callable[[], None],
        on_found: Callable[[ProfileRun | DraftAdvice], None],
    ) -> None:
        self._owner, self._workspace = owner, workspace
        self._on_change, self._on_found = on_change, on_found
        self._ticket: Ticket[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._partial = Costs()
        self._cancelled = False
        self._started = 0
        self._advised_draft: Draft | None = None
        self.progress: ProfileProgress | None = None
        self.history = RunHistory()
        self.shown: ProfileRun | None = None
        self.advised: DraftAdvice | None = None

    @property
    def is_running(self) -> bool:
        """True if something is being measured."""
        return self._ticket is not None

    @property
    def is_advising(self) -> bool:
        """True while changes are tried, which a measurement may interrupt."""
        return self.is_running and self._advised_draft is not None

    def start(self, request: MeasurePipeline | FindAdvice, draft: Draft) -> None:
        """Start a measurement or a search for advice, unless a measurement is running."""
        if self.is_advising:
            self.stop_advising()
        if self.is_running:
            return
        self._advised_draft = draft if isinstance(request, FindAdvice) else None
        self._partial, self._cancelled, self.progress = Costs(), False, None
        self._started += 1
        self._workspace.report("profile", {})
        ticket: Ticket[Any] = self._workspace.backend.ask(
            request, worker=WORKER, on_push=partial(self._update_progress, self._started)
        )
        self._ticket = ticket
        wait = self._wait_for_run if isinstance(request, MeasurePipeline) else self._wait_for_advice
        self._task = asyncio.get_running_loop().create_task(wait(ticket, draft))
        self._on_change()

    def cancel(self) -> None:
        """Cancel; kill a worker that does not react."""
        ticket = self._ticket
        if ticket is not None:
            self._cancelled = True
            self._workspace.backend.cancel(ticket)
            self._owner.set_timer(CANCEL_TIMEOUT, lambda: self._kill(ticket))
            self._on_change()

    def stop_advising(self, unless: Draft | None = None) -> None:
        """Drop the search for advice, unless it is for this chain."""
        ticket = self._ticket
        if ticket is not None and self.is_advising and self._advised_draft != unless:
            self._workspace.backend.cancel(ticket)
            self._ticket = None
            self._on_change()

    @property
    def is_ending(self) -> bool:
        """True if it was cancelled and has not ended yet."""
        return self.is_running and self._cancelled

    def _kill(self, ticket: Ticket[Any]) -> None:
        if self._ticket is ticket:
            self._workspace.backend.restart(WORKER)

    def _update_progress(self, number: int, topic: str, value: ProfileProgress | Costs) -> None:
        if number != self._started:
            return  # of a search for advice that was dropped
        if isinstance(value, ProfileProgress):
            self.progress = value
        else:
            self._partial = value
        # Pushed values arrive outside of the context of the app.
        self._owner.call_later(self._on_change)

    async def _wait_for_run(self, ticket: Ticket[Costs], draft: Draft) -> None:
        ended: str | None
        try:
            costs = await ticket
            ended = costs.error
        except RequestError as error:
            costs, ended = self._partial, error.sentence
            if not self._cancelled:
                self._report(draft, error)
        self._workspace.backend.release(WORKER)
        # The stages of a factory are known after the first inspection.
        current = self._workspace.draft
        if current.stack is not None and current.edited() == draft:
            draft = current
        run = self.history.add(draft, costs, CANCELLED if self._cancelled else ended)
        self.shown = run
        self._finish(run)

    async def _wait_for_advice(self, ticket: Ticket[AdviceResult], draft: Draft) -> None:
        try:
            found = await ticket
        except RequestError as error:
            found = AdviceResult(error=error.sentence)
        self._workspace.backend.release(WORKER)
        if self._ticket is not ticket:
            return
        if self._cancelled:
            self._ticket = None
            self._on_change()
            return
        self.advised = DraftAdvice(draft, found)
        self._finish(self.advised)

    def _report(self, draft: Draft, error: RequestError) -> None:
        """Report an error to the rest of the app, unless the chain has changed."""
        if draft != self._workspace.draft:
            return
        problem = replace(error.problem, details=error.problem.details or error.details)
        at, positions = problem.where.stage, draft.positions
        is_known = at is not None and at < len(positions)
        number = draft.stages[positions[at]].number if at is not None and is_known else None
        self._workspace.report("profile", {number: problem})

    def _finish(self, found: ProfileRun | DraftAdvice) -> None:
        self._ticket = None
        self._on_change()
        self._on_found(found)
