"""Command that exports the chain as an artifact, and its request to the worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.artifacts import FORMS
from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Job, Request
from tdx.tui.files.path_screen import PathScreen, suggest_name
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, ask, ask_to_replace

if TYPE_CHECKING:
    from textual.screen import Screen

    from tdx.tui.commands import WorkerCommands
    from tdx.tui.workspace import Workspace

_WORKER = "export"


@dataclass(frozen=True, slots=True)
class ExportChain(Request[str]):
    """Export the chain; answered with a sentence."""

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


class ExportCommand:
    """Asks for the form and the folder of an artifact, and writes it."""

    def __init__(
        self, screen: Screen[None], workspace: Workspace, commands: WorkerCommands
    ) -> None:
        self._screen, self._workspace, self._commands = screen, workspace, commands

    def export(self) -> None:
        """Ask for a form, then for a folder, and export the chain."""
        choices = [Choice(form, form, title) for form, title in FORMS.items()]
        ask(self._screen.app, ChoiceScreen("Export the chain as", choices), self._ask_folder)

    def _ask_folder(self, form: str) -> None:
        name = f"{suggest_name(self._workspace.draft.pipeline().env.id)}_{form}"
        dialog = PathScreen(f"Export the chain as {form}", "save", name)

        def export(path: str) -> None:
            ask_to_replace(
                self._screen.app,
                Path(path) / "artifact.json",
                "Replace the artifact?",
                f"{path} has one.",
                lambda force: self._commands.start(self._export(form, path, force)),
            )

        ask(self._screen.app, dialog, export)

    async def _export(self, form: str, path: str, force: bool) -> None:
        pipeline = self._workspace.draft.pipeline()
        request = ExportChain(pipeline, form, path, force, self._workspace.allow_code)
        text = await self._commands.ask(request, _WORKER, "exporting", "Not exported")
        if text is not None:
            self._screen.app.notify(text, title="Exported", timeout=6)
