"""Commands for contracts: compare the chain with one, and record the chain."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.tui.chain_status import NO_PIPELINE
from tdx.tui.contract.requests import WORKER, FreezeContract
from tdx.tui.files.path_screen import PathScreen
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, ask, ask_to_replace

if TYPE_CHECKING:
    from textual.screen import Screen

    from tdx.tui.commands import WorkerCommands
    from tdx.tui.workspace import Workspace

# The module of the format imports torch.
_DOCUMENT = "contract.yaml"
_MAX_ENTRIES = 300


class ContractCommands:
    """Asks what to compare with or where to write, and shows the result."""

    def __init__(
        self, screen: Screen[None], workspace: Workspace, commands: WorkerCommands
    ) -> None:
        self._screen, self._workspace, self._commands = screen, workspace, commands
        self._last: str | None = None

    def compare(self) -> None:
        """Ask for a contract or another target, and compare the chain with it."""
        if not self._has_pipeline():
            return
        known = []
        if self._last is not None:
            # The worker compares after it has written the contract.
            is_recorded = WORKER in dict(self._workspace.running)
            note = "being recorded" if is_recorded else "last time"
            known.append(Choice(self._last, self._last, note))
        # Contracts and pipeline files here, and contracts in folders one level below.
        entries = _scan(".")
        folders = [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]
        below = [f"{name}/{entry.name}" for name in folders for entry in _scan(name)]
        references = [
            Choice(folder, folder, "contract")
            for folder in (*folders, *below[:_MAX_ENTRIES])
            if os.path.lexists(os.path.join(folder, _DOCUMENT))
        ]
        references += [
            Choice(entry.name, entry.name, "pipeline")
            for entry in entries
            if entry.name.endswith((".yaml", ".yml")) and entry.name != _DOCUMENT
            if entry.is_file()
        ]
        references = [*self._list_checkpoints(), *references]
        choices = [*known, *(choice for choice in references if choice.id != self._last)]
        title = "Compare with a contract, pipeline, checkpoint or module:function"

        def is_verbatim(text: str) -> bool:
            # A path or a function, even if it resembles an entry of the list.
            return "/" in text or ":" in text or (bool(text) and os.path.exists(text))

        dialog = ChoiceScreen(title, choices, allow_custom=True, is_verbatim=is_verbatim)
        ask(self._screen.app, dialog, self._compare_with)

    def _list_checkpoints(self) -> list[Choice]:
        """List the folders beside the one of a checkpoint that have a file of its stages."""
        stack = self._workspace.stack
        if stack is None or not stack.is_data:
            return []
        own = Path(stack.env)
        files = {(wrapper.location or "").rpartition(":")[0] for wrapper in stack.wrappers} - {""}
        return [
            Choice(entry.path, entry.name, "checkpoint")
            for entry in _scan(str(own.parent))
            if entry.name != own.name
            if any(os.path.isfile(os.path.join(entry.path, file)) for file in files)
        ]

    def freeze(self) -> None:
        """Ask for a folder, and write a contract of the chain."""
        if self._has_pipeline():
            dialog = PathScreen("Record a contract", "save", "contract")
            ask(self._screen.app, dialog, self._freeze_into)

    def _has_pipeline(self) -> bool:
        if self._workspace.draft.env is None:
            self._screen.notify(NO_PIPELINE, timeout=3)
        return self._workspace.draft.env is not None

    def _compare_with(self, reference: str) -> None:
        from tdx.tui.contract.contract_screen import ContractScreen

        self._last = reference
        self._screen.app.push_screen(ContractScreen(self._workspace, reference))

    def _freeze_into(self, path: str) -> None:
        ask_to_replace(
            self._screen.app,
            Path(path) / _DOCUMENT,
            "Replace the contract?",
            f"{path} has a contract. Its reference values and statistics will be lost.",
            lambda force: self._commands.start(self._freeze(path, force)),
        )

    async def _freeze(self, path: str, force: bool) -> None:
        workspace = self._workspace
        pipeline, before = workspace.draft.pipeline(), self._last
        request = FreezeContract(pipeline, path, force, workspace.allow_code, workspace.samples)
        recorded = self._last = min(path, os.path.relpath(path), key=len)
        text = await self._commands.ask(request, WORKER, "recording", "Not recorded")
        if text is not None:
            self._screen.app.notify(text, title="Recorded", timeout=6)
        elif self._last == recorded:
            self._last = before


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)[:_MAX_ENTRIES]
    except OSError:
        return []
