"""Command that exports the chain as an artifact, and its request to the worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.artifacts import FORMS
from tdx.pipeline.model import Pipeline
from tdx.tui.backend.client import RequestError
from tdx.tui.backend.messages import Job, Request
from tdx.tui.chain_status import NO_PIPELINE
from tdx.tui.files.path_screen import PathScreen, suggest_name
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, QuestionScreen, Reply, ask

if TYPE_CHECKING:
    from textual.screen import Screen

    from tdx.tui.workspace import Workspace

_WORKER = "export"


@dataclass(frozen=True, slots=True)
class ExportChain(Request[str]):
    """Export the chain; answered with a sentence.

    Args:
        pipeline: The chain.
        form: Form of the artifact.
        path: Folder to write.
        force: True to replace an artifact.
        allow_code: Allow importing Python objects.
    """

    pipeline: Pipeline
    form: str
    path: str
    force: bool = False
    allow_code: bool = False

    def answer(self, job: Job) -> str:
        from tdx.artifacts.artifact import export_chain, exportable_env
        from tdx.foundation.text import count_text
        from tdx.stacks.building import build_stack

        stack = build_stack(self.pipeline, self.allow_code)
        try:
            with exportable_env(stack) as (env, _):
                result = export_chain(env, self.form, self.path, force=self.force)
        finally:
            stack.close()
        verdict = "verified" if result.verified else f"not verified: {result.note}"
        stages = count_text(len(result.stages), "stage")
        return f"wrote {Path(self.path).name} ({stages}), {verdict}"


class ExportCommands:
    """Asks for the form and the folder of an artifact, and writes it.

    Args:
        screen: Screen below the dialogs.
        workspace: State of the app.
    """

    def __init__(self, screen: Screen[None], workspace: Workspace) -> None:
        self._screen, self._workspace = screen, workspace
        self._task: asyncio.Task[None] | None = None

    def export(self) -> None:
        """Ask for a form, then for a folder, and export the chain."""
        if self._workspace.draft.env is None:
            self._screen.notify(NO_PIPELINE, timeout=3)
            return
        choices = [Choice(form, form, title) for form, title in FORMS.items()]
        ask(self._screen.app, ChoiceScreen("Export the chain as", choices), self._ask_folder)

    @property
    def is_running(self) -> bool:
        """True while the worker exports the chain."""
        return self._task is not None and not self._task.done()

    def cancel(self) -> None:
        """Kill the worker that exports the chain."""
        if self.is_running:
            self._workspace.backend.restart(_WORKER)

    def _ask_folder(self, form: str) -> None:
        name = f"{suggest_name(self._workspace.draft.pipeline().env.id)}_{form}"
        dialog = PathScreen(f"Export the chain as {form}", "save", name)
        ask(self._screen.app, dialog, partial(self._export_into, form))

    def _export_into(self, form: str, path: str) -> None:
        if not (Path(path) / "artifact.json").exists():
            self._start(form, path, force=False)
            return

        def answer(reply: str | None) -> None:
            if reply == "replace":
                self._start(form, path, force=True)

        replies = [Reply("keep", "Keep it"), Reply("replace", "Replace", is_destructive=True)]
        question = QuestionScreen("Replace the artifact?", f"{path} has one.", replies)
        self._screen.app.push_screen(question, answer)

    def _start(self, form: str, path: str, *, force: bool) -> None:
        workspace = self._workspace
        request = ExportChain(workspace.draft.pipeline(), form, path, force, workspace.allow_code)
        self._screen.notify("exporting … (Ctrl+K cancels)", timeout=30)
        self._task = asyncio.get_running_loop().create_task(self._run(request))

    async def _run(self, request: ExportChain) -> None:
        app = self._screen.app
        try:
            text = await self._workspace.backend.ask(request, worker=_WORKER)
        except RequestError as error:
            if error.is_cancelled:
                app.notify("cancelled", title="Not exported", timeout=4)
            else:
                app.notify(error.sentence, title="Not exported", severity="error", timeout=10)
            return
        app.notify(text, title="Exported", timeout=6)
