"""Dialogs of dumps: record one with the job that survives the dialog, and follow one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, ProgressBar, Static, Switch

from tdx.foundation.text import escape_control_characters
from tdx.tui.backend.client import RequestError, Ticket
from tdx.tui.backend.requests import DumpProgress, DumpResult, DumpRollout, FollowDump
from tdx.tui.files.path_screen import suggest_name
from tdx.tui.workspace import Workspace

if TYPE_CHECKING:
    from textual.app import App

_WORKER = "dump"
_WATCH_WORKER = "watch"
CANCEL_TIMEOUT = 3.0
"""Seconds that a rollout has to finish its chunk before its worker is killed."""


class DumpJob:
    """Runs a dump in the worker and reports its progress."""

    def __init__(self, app: App[None], workspace: Workspace) -> None:
        self._app, self._workspace = app, workspace
        self._ticket: Ticket[DumpResult] | None = None
        self._task: asyncio.Task[None] | None = None
        self.progress: DumpProgress | None = None
        self.path = ""
        self.on_change: Callable[[], None] | None = None

    @property
    def is_running(self) -> bool:
        """True if a dump is running."""
        return self._ticket is not None

    def start(self, request: DumpRollout) -> None:
        """Start a dump."""
        self.progress, self.path = None, request.path
        self._ticket = self._workspace.backend.ask(
            request, worker=_WORKER, on_push=self._update_progress
        )
        self._task = asyncio.get_running_loop().create_task(self._wait(self._ticket))
        self._notify_change()

    def cancel(self) -> None:
        """Stop after the current chunk; kill the worker if that takes too long."""
        if self._ticket is not None:
            ticket = self._ticket
            self._workspace.backend.cancel(ticket)
            self._app.set_timer(CANCEL_TIMEOUT, lambda: self._kill(ticket))

    def _kill(self, ticket: Ticket[DumpResult]) -> None:
        if self._ticket is ticket:
            self._workspace.backend.restart(_WORKER)

    def _update_progress(self, topic: str, value: DumpProgress) -> None:
        self.progress = value
        # Pushed values arrive outside of the context of the app.
        self._app.call_later(self._notify_change)

    async def _wait(self, ticket: Ticket[DumpResult]) -> None:
        try:
            done = await ticket
        except RequestError as error:
            kept = f"; the dump contains {self.progress.text}" if self.progress else ""
            text = f"{error.sentence}{kept}"
            self._app.notify(text, title="Not dumped", severity="error", timeout=10)
        else:
            title = "Dumped" if done.complete else "Dump cancelled, finished shards kept"
            text = f"{done.path}: {done.progress.text}, seed {done.seed}"
            self._app.notify(text, title=title, timeout=8)
        finally:
            self._ticket = None
            self._notify_change()

    def _notify_change(self) -> None:
        if self.on_change is not None:
            self.on_change()


_FIELDS = (
    ("path", "folder", "a new folder …"),
    ("steps", "steps", "per env"),
    ("episodes", "or episodes", "instead of steps"),
    ("seed", "seed", "random"),
    (
        "policy",
        "policy",
        "random, zero, sequence:FILE, mlp:FILE, module:FILE, sb3:FILE, lerobot:FOLDER",
    ),
)


class DumpScreen(ModalScreen[None]):
    """A form, or a progress bar while a dump is running; closing it stops nothing."""

    BINDINGS = [
        Binding("escape", "dismiss(None)", "back", id="dump.back"),
        Binding("ctrl+k", "cancel", "cancel", id="dump.cancel", priority=True),
    ]

    def __init__(self, job: DumpJob, workspace: Workspace) -> None:
        super().__init__()
        self._job, self._workspace = job, workspace

    def compose(self) -> ComposeResult:
        pipeline = self._workspace.draft.pipeline()
        values = {
            "path": f"{suggest_name(pipeline.env.id)}-dump",
            "steps": str(pipeline.rollout.max_steps or 1000),
            "seed": "" if pipeline.env.seed is None else str(pipeline.env.seed),
            "policy": pipeline.policy or "random",
        }
        with Vertical(classes="dialog -small") as dialog:
            dialog.border_title = "Dump a rollout"
            dialog.border_subtitle = "Esc closes"
            with Vertical(id="dump-form"):
                for name, title, hint in _FIELDS:
                    with Horizontal(classes="dump-line"):
                        yield Static(title, classes="dump-name")
                        kind = "text" if name in ("path", "policy") else "integer"
                        text = values.get(name, "")
                        yield Input(text, hint, type=kind, id=f"dump-{name}", compact=True)  # type: ignore[arg-type]
                with Horizontal(classes="dump-line"):
                    yield Static("overwrite", classes="dump-name")
                    yield Switch(id="dump-force")
            with Vertical(id="dump-progress"):
                yield ProgressBar(total=1.0, show_eta=True, id="dump-bar")
            yield Static("", id="dump-note")
            with Horizontal(classes="dump-replies"):
                yield Button("Start", "primary", id="dump-start", compact=True)
                yield Button("Cancel", "error", id="dump-stop", compact=True)

    def on_mount(self) -> None:
        self._job.on_change = self._update
        self._update()
        (
            self.query_one("#dump-stop") if self._job.is_running else self.query_one("#dump-path")
        ).focus()

    def on_unmount(self) -> None:
        self._job.on_change = None

    def _update(self) -> None:
        runs, progress = self._job.is_running, self._job.progress
        self.query_one("#dump-form").display = not runs
        self.query_one("#dump-progress").display = runs
        self.query_one("#dump-start").display = not runs
        self.query_one("#dump-stop").display = runs
        self.query_one(ProgressBar).update(progress=progress.share if progress else 0.0)
        note = ""
        if runs:
            note = f"{self._job.path}\n{progress.text if progress else 'creating the env …'}"
        self._note(Content(note))

    @on(Input.Submitted)
    @on(Button.Pressed, "#dump-start")
    def _start(self, event: Input.Submitted | Button.Pressed) -> None:
        event.stop()
        path = self._text("path")
        steps, episodes = self._number("steps"), self._number("episodes")
        if not path or not (steps or episodes):
            error = "enter a number of steps or episodes" if path else "enter a folder"
            self._note(Content.styled(error, "$text-error"))
            return
        self._job.start(
            DumpRollout(
                self._workspace.draft.pipeline(),
                path,
                steps=None if episodes else steps,
                episodes=episodes,
                seed=self._number("seed"),
                policy=self._text("policy") or None,
                force=self.query_one("#dump-force", Switch).value,
                allow_code=self._workspace.allow_code,
            )
        )
        self.query_one("#dump-stop").focus()

    @on(Button.Pressed, "#dump-stop")
    def action_cancel(self) -> None:
        self._job.cancel()

    def _note(self, text: Content) -> None:
        note = self.query_one("#dump-note", Static)
        note.update(text)
        note.display = bool(text.plain)

    def _text(self, name: str) -> str:
        return self.query_one(f"#dump-{name}", Input).value.strip()

    def _number(self, name: str) -> int | None:
        text = self._text(name)
        return int(text) if text.isdecimal() else None


class WatchScreen(ModalScreen[None]):
    """Shows the progress of a dump until it is complete; closing it stops nothing."""

    BINDINGS = [Binding("escape", "dismiss(None)", "back", id="watch.back")]

    def __init__(self, path: str, workspace: Workspace) -> None:
        super().__init__()
        self._path, self._workspace = path, workspace
        self._ticket: Ticket[DumpProgress] | None = None
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
            FollowDump(self._path), worker=_WATCH_WORKER, slot=_WATCH_WORKER, on_push=self._receive
        )
        self._task = asyncio.get_running_loop().create_task(self._wait(self._ticket))

    def on_unmount(self) -> None:
        if self._ticket is not None:
            self._workspace.backend.cancel(self._ticket)
        if self._task is not None:
            self._task.cancel()

    def _receive(self, topic: str, value: DumpProgress) -> None:
        # Pushed values arrive outside of the context of the app.
        if self.is_mounted:
            self.app.call_later(self._show, value)

    async def _wait(self, ticket: Ticket[DumpProgress]) -> None:
        try:
            final = await ticket
        except RequestError as error:
            self._note(error.sentence)
            self.query_one(ProgressBar).display = False
        else:
            self._show(final, is_complete=True)

    def _show(self, progress: DumpProgress, *, is_complete: bool = False) -> None:
        # The last pushed value may arrive after the answer.
        if self.is_mounted and not self._is_complete:
            self._is_complete = is_complete
            # A new total starts the estimate of the remaining time.
            self.query_one(ProgressBar).update(total=1.0, progress=progress.share)
            self._note(f"complete  {progress.text}" if is_complete else progress.text)

    def _note(self, text: str) -> None:
        path = escape_control_characters(self._path)
        self.query_one("#watch-note", Static).update(Content(f"{path}\n{text}"))
