"""A dump that is being made, whether someone looks or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tdx.tui.backend.client import RequestError, Ticket
from tdx.tui.files.dump_requests import DumpDone, DumpProgress, RecordDump

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.workspace import Workspace

WORKER = "dump"
PATIENCE = 3.0
"""Seconds that a rollout has to end at the end of a chunk, before its worker is killed."""


class DumpJob:
    """Asks the worker, and tells of its progress.

    Args:
        app: shows how it ended.
        workspace: the state of the app.
    """

    def __init__(self, app: App[None], workspace: Workspace) -> None:
        self._app, self._workspace = app, workspace
        self._ticket: Ticket[DumpDone] | None = None
        self._task: asyncio.Task[None] | None = None
        self.progress: DumpProgress | None = None
        self.path = ""
        self.on_change: Callable[[], Any] | None = None

    @property
    def runs(self) -> bool:
        """Whether one is being made."""
        return self._ticket is not None

    def begin(self, request: RecordDump) -> None:
        """Make a dump."""
        self.progress, self.path = None, request.path
        self._ticket = self._workspace.backend.ask(request, worker=WORKER, on_push=self._pushed)
        self._task = asyncio.get_running_loop().create_task(self._wait(self._ticket))
        self._changed()

    def cancel(self) -> None:
        """End it after its chunk, or kill its worker where that takes too long."""
        if self._ticket is not None:
            ticket = self._ticket
            self._workspace.backend.cancel(ticket)
            self._app.set_timer(PATIENCE, lambda: self._kill(ticket))

    def _kill(self, ticket: Ticket[DumpDone]) -> None:
        if self._ticket is ticket:
            self._workspace.backend.restart(WORKER)

    def _pushed(self, topic: str, value: Any) -> None:
        self.progress = value
        # What is pushed comes from a thread, in which no app is the active one.
        self._app.call_later(self._changed)

    async def _wait(self, ticket: Ticket[DumpDone]) -> None:
        try:
            done = await ticket
        except RequestError as error:
            hint = f" ({error.problem.hint})" if error.problem.hint else ""
            kept = f"; {self.progress.text} are in it" if self.progress else ""
            text = f"{error.problem.message}{hint}{kept}"
            self._app.notify(text, title="Not dumped", severity="error", timeout=10)
        else:
            title = "Dumped" if done.complete else "Dump cancelled: what was finished is there"
            text = f"{done.path}: {done.progress.text}, seed {done.seed}"
            self._app.notify(text, title=title, timeout=8)
        finally:
            self._ticket = None
            self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
