"""Commands for contracts: compare the chain with one, and record the chain."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.tui.backend.client import RequestError
from tdx.tui.chain_status import NO_PIPELINE
from tdx.tui.contract.messages import WORKER, FreezeContract
from tdx.tui.files.path_screen import PathScreen
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, QuestionScreen, Reply, ask

if TYPE_CHECKING:
    from textual.screen import Screen

    from tdx.tui.workspace import Workspace

# The module of the format imports torch.
_DOCUMENT = "contract.yaml"
_MAX_ENTRIES = 300


class ContractCommands:
    """Asks what to compare with or where to write, and shows the result.

    Args:
        screen: Screen below the dialogs.
        workspace: State of the app.
    """

    def __init__(self, screen: Screen[None], workspace: Workspace) -> None:
        self._screen, self._workspace = screen, workspace
        self._last: str | None = None
        self._task: asyncio.Task[None] | None = None

    def compare(self) -> None:
        """Ask for a contract or another target, and compare the chain with it."""
        if not self._has_pipeline():
            return
        known = []
        if self._last is not None:
            # The worker compares after it has written the contract.
            note = "being recorded" if self.is_freezing else "last time"
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
        choices = [*known, *(choice for choice in references if choice.id != self._last)]
        title = "Compare with: a contract, a pipeline file or module:function"

        def is_verbatim(text: str) -> bool:
            # A path or a function, even if it resembles an entry of the list.
            return "/" in text or ":" in text or (bool(text) and os.path.exists(text))

        dialog = ChoiceScreen(title, choices, allow_custom=True, is_verbatim=is_verbatim)
        ask(self._screen.app, dialog, self._compare_with)

    def freeze(self) -> None:
        """Ask for a folder, and write a contract of the chain."""
        if self._has_pipeline():
            dialog = PathScreen("Record a contract", "save", "contract")
            ask(self._screen.app, dialog, self._freeze_into)

    @property
    def is_freezing(self) -> bool:
        """True while the worker records the chain."""
        return self._task is not None and not self._task.done()

    def cancel(self) -> None:
        """Kill the worker that records the chain."""
        if self.is_freezing:
            self._workspace.backend.restart(WORKER)

    def _has_pipeline(self) -> bool:
        if self._workspace.draft.env is None:
            self._screen.notify(NO_PIPELINE, timeout=3)
        return self._workspace.draft.env is not None

    def _compare_with(self, reference: str) -> None:
        from tdx.tui.contract.contract_screen import ContractScreen

        self._last = reference
        self._screen.app.push_screen(ContractScreen(self._workspace, reference))

    def _freeze_into(self, path: str) -> None:
        def answer(reply: str | None) -> None:
            if reply == "replace":
                self._start_freezing(path, force=True)

        if (Path(path) / _DOCUMENT).exists():
            text = f"{path} has a contract. Its reference values and statistics will be lost."
            replies = [Reply("keep", "Keep it"), Reply("replace", "Replace", is_destructive=True)]
            self._screen.app.push_screen(
                QuestionScreen("Replace the contract?", text, replies), answer
            )
        else:
            self._start_freezing(path, force=False)

    def _start_freezing(self, path: str, *, force: bool) -> None:
        workspace = self._workspace
        pipeline = workspace.draft.pipeline()
        request = FreezeContract(pipeline, path, force, workspace.allow_code, workspace.samples)
        self._screen.notify("recording … (Ctrl+K cancels)", timeout=30)
        before = self._last
        self._last = min(path, os.path.relpath(path), key=len)
        self._task = asyncio.get_running_loop().create_task(self._freeze(request, before))

    async def _freeze(self, request: FreezeContract, before: str | None) -> None:
        frozen = self._last
        try:
            text = await self._workspace.backend.ask(request, worker=WORKER)
        except RequestError as error:
            if self._last == frozen:
                self._last = before
            if error.is_cancelled:
                self._screen.app.notify("cancelled", title="Not recorded", timeout=4)
            else:
                self._screen.app.notify(
                    error.sentence, title="Not recorded", severity="error", timeout=10
                )
            return
        self._screen.app.notify(text, title="Recorded", timeout=6)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)[:_MAX_ENTRIES]
    except OSError:
        return []
