"""What is being measured: asks the worker, passes its progress on, cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tdx.pipeline.editing.draft import Draft
from tdx.tui.backend.client import RequestError, Ticket
from tdx.tui.profile.requests import PROGRESS, AdviceFound, Advise, Costs, Measure, Progress
from tdx.tui.profile.runs import History, Run

if TYPE_CHECKING:
    from textual.widget import Widget

    from tdx.tui.workspace import Workspace

WORKER = "profile"
PATIENCE = 2.0
"""Seconds that a measurement has to end when it is cancelled, before its worker is killed."""
CANCELLED = "cancelled: this is what was measured until then"
_NOTHING = Costs((), 1, "", "")


@dataclass(frozen=True, slots=True)
class Advised:
    """Advice, and the chain that it was given for."""

    draft: Draft
    found: AdviceFound


class Measuring:
    """Makes runs and has advice tried, one at a time.

    Args:
        owner: gives timers.
        workspace: the state of the app.
        on_change: called when there is progress, or a run.
        on_found: called with each run and each advice.
    """

    def __init__(
        self,
        owner: Widget,
        workspace: Workspace,
        on_change: Callable[[], None],
        on_found: Callable[[Run | Advised], None],
    ) -> None:
        self._owner, self._workspace = owner, workspace
        self._on_change, self._on_found = on_change, on_found
        self._ticket: Ticket[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._partly = _NOTHING
        self._cancelled = False
        self.progress: Progress | None = None
        self.history = History()
        self.shown: Run | None = None
        self.advised: Advised | None = None

    @property
    def runs(self) -> bool:
        """Whether something is being measured."""
        return self._ticket is not None

    def begin(self, request: Measure | Advise, draft: Draft) -> None:
        """Measure a chain, or have advice for it tried; nothing where that is being done."""
        if self.runs:
            return
        self._partly, self._cancelled, self.progress = _NOTHING, False, None
        self._workspace.report("profile", {})
        ticket: Ticket[Any] = self._workspace.backend.ask(
            request, worker=WORKER, on_push=self._pushed
        )
        self._ticket = ticket
        wait = self._wait_for_run if isinstance(request, Measure) else self._wait_for_advice
        self._task = asyncio.get_running_loop().create_task(wait(ticket, draft))
        self._on_change()

    def cancel(self) -> None:
        """End it now; a worker that does not listen is killed."""
        ticket = self._ticket
        if ticket is not None:
            self._cancelled = True
            self._workspace.backend.cancel(ticket)
            self._owner.set_timer(PATIENCE, lambda: self._kill(ticket))
            self._on_change()

    @property
    def is_ending(self) -> bool:
        """Whether it was cancelled and has not ended yet."""
        return self.runs and self._cancelled

    def _kill(self, ticket: Ticket[Any]) -> None:
        if self._ticket is ticket:
            self._workspace.backend.restart(WORKER)

    def _pushed(self, topic: str, value: Any) -> None:
        if topic == PROGRESS:
            self.progress = value
        else:
            self._partly = value
        # What is pushed comes from a thread, in which no app is the active one.
        self._owner.call_later(self._on_change)

    async def _wait_for_run(self, ticket: Ticket[Costs], draft: Draft) -> None:
        ended: str | None
        try:
            costs = await ticket
            ended = costs.error
        except RequestError as error:
            costs, ended = self._partly, _told(error)
            if not self._cancelled:
                self._report(draft, error)
        run = self.history.add(draft, costs, CANCELLED if self._cancelled else ended)
        self.shown = run
        self._finish(run)

    async def _wait_for_advice(self, ticket: Ticket[AdviceFound], draft: Draft) -> None:
        try:
            found = await ticket
        except RequestError as error:
            found = AdviceFound("", error=_told(error))
        if self._cancelled:
            self._ticket = None
            self._on_change()
            return
        self.advised = Advised(draft, found)
        self._finish(self.advised)

    def _report(self, draft: Draft, error: RequestError) -> None:
        """Tell the rest of the app what a measurement has met, unless the chain is another now."""
        if draft != self._workspace.draft:
            return
        problem = replace(error.problem, details=error.problem.details or error.details)
        at, positions = problem.where.stage, draft.positions
        is_known = at is not None and at < len(positions)
        number = draft.stages[positions[at]].number if at is not None and is_known else None
        self._workspace.report("profile", {number: problem})

    def _finish(self, found: Run | Advised) -> None:
        self._ticket = None
        self._on_change()
        self._on_found(found)


def _told(error: RequestError) -> str:
    problem = error.problem
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message
