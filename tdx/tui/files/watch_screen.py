"""Watching a dump that other processes record: its shards, its progress and the remaining time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import ProgressBar, Static

from tdx.text import escape_control_characters
from tdx.tui.backend.client import RequestError, Ticket
from tdx.tui.backend.requests import DumpState, FollowDump

if TYPE_CHECKING:
    from tdx.tui.workspace import Workspace

WORKER = "watch"


class WatchScreen(ModalScreen[None]):
    """Shows the progress of a dump until it is complete; closing it stops nothing.

    Args:
        path: Folder of the dump.
        workspace: State of the app.
    """

    BINDINGS = [Binding("escape", "dismiss(None)", "back", id="watch.back")]

    def __init__(self, path: str, workspace: Workspace) -> None:
        super().__init__()
        self._path, self._workspace = path, workspace
        self._ticket: Ticket[DumpState] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_complete = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -small") as dialog:
            dialog.border_title = "Progress of a dump"
            dialog.border_subtitle = "Esc closes"
            yield ProgressBar(show_eta=True, id="watch-bar")
            yield Static("", id="watch-note")

    def on_mount(self) -> None:
        self._note("reading the dump …")
        self._ticket = self._workspace.backend.ask(
            FollowDump(self._path), worker=WORKER, slot=WORKER, on_push=self._receive
        )
        self._task = asyncio.get_running_loop().create_task(self._wait(self._ticket))

    def on_unmount(self) -> None:
        if self._ticket is not None:
            self._workspace.backend.cancel(self._ticket)
        if self._task is not None:
            self._task.cancel()

    def _receive(self, topic: str, value: Any) -> None:
        # Pushed values arrive outside of the context of the app.
        if self.is_mounted:
            self.app.call_later(self._show, value)

    async def _wait(self, ticket: Ticket[DumpState]) -> None:
        try:
            state = await ticket
        except RequestError as error:
            self._note(error.sentence)
            self.query_one(ProgressBar).display = False
        else:
            self._show(state)

    def _show(self, state: DumpState) -> None:
        # The last pushed value may arrive after the answer.
        if self.is_mounted and not self._is_complete:
            self._is_complete = state.is_complete
            # A new total starts the estimate of the remaining time.
            self.query_one(ProgressBar).update(total=1.0, progress=state.share)
            self._note(f"complete  {state.text}" if state.is_complete else state.text)

    def _note(self, text: str) -> None:
        path = escape_control_characters(self._path)
        self.query_one("#watch-note", Static).update(Content(f"{path}\n{text}"))
