"""The file of the current draft, and changes to that file on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.screen import ModalScreen

from tdx.errors import TdxError
from tdx.pipeline.editing.documents import Document
from tdx.pipeline.editing.draft import Draft
from tdx.tui.screens.dialogs import QuestionScreen, Reply, TextScreen

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.workspace import Workspace

CHECK_INTERVAL = 1.0
"""Seconds between two checks of the file."""


class CurrentDocument:
    """The document that was opened or saved last.

    Args:
        workspace: State of the app.

    Attributes:
        opened: The document; ``None`` if no file was opened or saved.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.opened: Document | None = None

    @property
    def current(self) -> Document | None:
        """The document of the draft. ``None``: undo has led to a draft without this file."""
        document = self.opened
        is_same = document is not None and str(document.path) == self._workspace.draft.file
        return document if is_same else None

    def at(self, path: str) -> Document:
        """Return the opened document if it has this path, else a new one."""
        if self.opened is not None and str(self.opened.path) == path:
            return self.opened
        return Document(path)


class DiskWatch:
    """Asks the user what to do, once for each change of the file on disk.

    Args:
        app: Shows the dialogs.
        workspace: State of the app.
        documents: Document that is watched.
        reload: Reloads the file.
    """

    def __init__(
        self,
        app: App[None],
        workspace: Workspace,
        documents: CurrentDocument,
        reload: Callable[[], None],
    ) -> None:
        self._app, self._workspace = app, workspace
        self._documents, self._reload = documents, reload
        self._is_missing = False

    def start(self) -> None:
        """Check the file every second from now on."""
        self._app.set_interval(CHECK_INTERVAL, self.check)

    def check(self) -> None:
        """Check the file now, unless a dialog is open."""
        document = self._documents.current
        if (
            document is None
            or not self._app.screen_stack
            or isinstance(self._app.screen, ModalScreen)
        ):
            return
        state = document.disk_state()
        if state == "changed":
            self._ask(document)
        elif state == "gone" and not self._is_missing:
            notice = f"{document.path.name} was deleted; saving creates it again"
            self._app.notify(notice, severity="warning", timeout=10)
        self._is_missing = state == "gone"

    def show_difference(self, document: Document, then: Callable[[], None]) -> None:
        """Show what saving would change in the file.

        Args:
            document: The document.
            then: Called when the dialog is closed.
        """
        try:
            text = document.difference(self._workspace.draft.pipeline())
        except TdxError as error:
            text = str(error)
        screen = TextScreen("- on disk   + yours", text or "No differences.")
        self._app.push_screen(screen, lambda _: then())

    def _ask(self, document: Document) -> None:
        edits = (
            "You have unsaved edits."
            if self._workspace.editor.is_modified
            else "You have no unsaved edits."
        )
        replies = [
            Reply("reload", "Reload"),
            Reply("mine", "Keep mine"),
            Reply("diff", "Show differences"),
        ]
        title = f"{document.path.name} changed on disk"
        text = f"{edits} Reloading can be undone. Keeping yours overwrites the file on save."
        self._app.push_screen(
            QuestionScreen(title, text, replies), lambda reply: self._answer(document, reply)
        )

    def _answer(self, document: Document, reply: str | None) -> None:
        if reply == "reload":
            self._reload()
        elif reply == "diff":
            self.show_difference(document, lambda: self._ask(document))
        else:
            self._keep_mine(document)

    def _keep_mine(self, document: Document) -> None:
        """Treat the draft as an edit of what is on disk."""
        document.accept_disk()
        editor = self._workspace.editor
        saved = Draft(file=str(document.path))
        with suppress(TdxError):
            saved = replace(Draft.of(Document.load(document.path)[1]), file=saved.file)
        editor.restore(saved, editor.done, editor.undone)
        self._workspace.edited.publish(self._workspace.draft)
