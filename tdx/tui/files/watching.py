"""Looks whether the file that is edited is another one on disk, and asks what then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.screen import ModalScreen

from tdx.errors import TdxError
from tdx.pipeline.editing.documents import Document
from tdx.pipeline.editing.draft import Draft
from tdx.tui.files.asking import AskScreen, Reply

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.files.files import Files

SECONDS = 1.0


class Watch:
    """Asks once for each change on disk.

    Args:
        app: shows the dialogs.
        files: whose file it is.
    """

    def __init__(self, app: App[None], files: Files) -> None:
        self._app, self._files = app, files
        self._gone = False

    def start(self) -> None:
        """Look every second from now on."""
        self._app.set_interval(SECONDS, self.look)

    def look(self) -> None:
        """Look now; no dialog is put on top of another."""
        document = self._files.current
        if (
            document is None
            or not self._app.screen_stack
            or isinstance(self._app.screen, ModalScreen)
        ):
            return
        state = document.disk_state()
        if state == "changed":
            self._ask(document)
        elif state == "gone" and not self._gone:
            notice = f"{document.path.name} was removed; saving writes it anew"
            self._app.notify(notice, severity="warning", timeout=10)
        self._gone = state == "gone"

    def show_difference(self, document: Document, then: Callable[[], None]) -> None:
        """Show what saving would change of what is on disk."""
        from tdx.tui.screens.reading import ReadScreen

        try:
            text = document.difference(self._files.workspace.draft.pipeline())
        except TdxError as error:
            text = str(error)
        screen = ReadScreen("- on disk   + yours", text or "They are the same.")
        self._app.push_screen(screen, lambda _: then())

    def _ask(self, document: Document) -> None:
        editor = self._files.workspace.editor
        edits = "You have edits that are not saved." if editor.is_modified else "You have no edits."
        replies = [
            Reply("reload", "Reload it"),
            Reply("mine", "Keep mine"),
            Reply("diff", "Show the difference"),
        ]
        title = f"{document.path.name} was changed on disk"
        text = f"{edits} Reloading can be undone; keeping yours writes over it with the next save."
        self._app.push_screen(
            AskScreen(title, text, replies), lambda reply: self._answered(document, reply)
        )

    def _answered(self, document: Document, reply: str | None) -> None:
        if reply == "reload":
            self._files.reload()
        elif reply == "diff":
            self.show_difference(document, lambda: self._ask(document))
        else:
            self._keep_mine(document)

    def _keep_mine(self, document: Document) -> None:
        """From now on the draft counts as an edit of what is on disk."""
        workspace = self._files.workspace
        document.accept_disk()
        editor = workspace.editor
        saved = Draft(file=str(document.path))
        with suppress(TdxError):
            saved = replace(Draft.of(Document.load(document.path)[1]), file=saved.file)
        editor.restore(saved, editor.done, editor.undone)
        workspace.edited.publish(workspace.draft)
