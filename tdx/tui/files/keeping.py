"""Keeps the session while it lasts, and takes up one that was left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.timer import Timer

from tdx.errors import TdxError
from tdx.pipeline.editing.documents import Document
from tdx.pipeline.editing.draft import Draft
from tdx.pipeline.editing.sessions import SavedSession, Session, SessionStore
from tdx.tui.files.asking import AskScreen, Reply
from tdx.tui.screens.choosing import Choice, ChooseScreen

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.files.files import Files
    from tdx.tui.workspace import Workspace

SECONDS = 0.1
"""After an edit; those that follow until then are kept with it."""


class Keeper:
    """Writes the session a moment after each edit, away from the keys.

    Args:
        app: gives timers and shows notices.
        workspace: what is kept.
        store: where; none for nowhere.
        files: knows the file.
    """

    def __init__(
        self, app: App[None], workspace: Workspace, store: SessionStore | None, files: Files
    ) -> None:
        self._app, self._workspace, self._files = app, workspace, files
        self._store = store
        self._timer: Timer | None = None
        self._writing: asyncio.Task[None] | None = None
        self._complaints: set[str] = set()
        self._is_told = False

    @property
    def works(self) -> bool:
        """Whether what is not saved can be kept."""
        return self._store is not None and self.flush()

    def start(self) -> None:
        """Look for sessions that were left, and keep this one from now on."""
        self._workspace.edited.subscribe(self._app.screen, lambda _: self._edited())
        if self._store is None:
            return
        left, notices = self._store.left()
        for notice in notices:
            self.complain(notice)
        self._offer(left)
        self._edited()  # what was typed while the app was starting

    def flush(self) -> bool:
        """Write the session now; whether that went well."""
        if self._store is None:
            return False
        try:
            self._store.keep(self._session())
        except TdxError as error:
            self.complain(f"the edits are not kept: {error}")
            return False
        return True

    def leave_for_later(self) -> None:
        """Let whoever comes next have this session."""
        if self._store is not None:
            self._stop()
            if self._is_worth_keeping:
                self.flush()
            self._store.leave()
            self._store = None

    def forget(self) -> None:
        """Nothing of this session is wanted any more."""
        if self._store is not None:
            self._stop()
            self._store.leave()
            self._store.forget()

    def complain(self, notice: str) -> None:
        """Say what is wrong with what is kept, each thing once."""
        if notice not in self._complaints:
            self._complaints.add(notice)
            self._app.notify(notice, title="Kept sessions", severity="warning", timeout=10)

    def choose(self) -> None:
        """Ask which of the sessions that were left to take up."""
        left = [] if self._store is None else self._store.left()[0]
        if not left:
            self._app.notify("no session was left behind", timeout=2)
            return
        by_name = {each.path.name: each for each in left}
        choices = [Choice(name, each.title, _facts(each)) for name, each in by_name.items()]

        def chosen(name: str | None) -> None:
            if name is not None:
                self._take(by_name[name])

        self._app.push_screen(ChooseScreen("Sessions that were left", choices), chosen)

    # ------------------------------------------------------------------ while it lasts

    @property
    def _is_worth_keeping(self) -> bool:
        editor = self._workspace.editor
        return editor.is_modified or bool(editor.done) or bool(editor.undone)

    def _session(self) -> Session:
        document = self._files.current
        return Session.of(self._workspace.editor, None if document is None else document.base)

    def _edited(self) -> None:
        if self._store is not None and self._timer is None:
            self._timer = self._app.set_timer(SECONDS, self._write)

    def _write(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._edited()
        elif self._store is not None and self._is_worth_keeping:
            self._writing = asyncio.create_task(self._write_away(self._store, self._session()))
        elif self._store is not None:
            self._store.forget()

    async def _write_away(self, store: SessionStore, session: Session) -> None:
        try:
            await asyncio.to_thread(store.keep, session)
        except TdxError as error:
            self.complain(f"the edits are not kept: {error}")
            return
        if not self._is_told:
            self._is_told = True
            text = "the edits of this session are kept from now on"
            self._workspace.journal.record(text, source="files", details=str(store.folder))

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    # ------------------------------------------------------------------ at the start

    def _offer(self, left: list[SavedSession]) -> None:
        draft = self._workspace.draft
        if draft == Draft():
            if left:
                self._take(left[0])
                left = left[1:]
        else:
            file = draft.file
            same = [each for each in left if file and each.session.draft.file == file]
            if same:
                self._ask(same[0])
                return
        if left:
            count = f"{len(left)} session{'' if len(left) == 1 else 's'} left behind"
            self._app.notify(f"{count}; R looks at them", timeout=6)

    def _ask(self, left: SavedSession) -> None:
        replies = [
            Reply("restore", "Restore them"),
            Reply("open", "Open the file"),
            Reply("discard", "Discard them", harms=True),
        ]

        def answered(reply: str | None) -> None:
            if reply == "restore":
                self._take(left)
            elif reply == "discard" and self._store is not None:
                self._store.discard(left)

        text = f"{_facts(left)}. The file itself is as it was saved."
        screen = AskScreen(f"{left.title} has edits that were not saved", text, replies)
        self._app.push_screen(screen, answered)

    def _take(self, left: SavedSession) -> None:
        if self._store is None or not self._store.take(left):
            self._app.notify("another app was faster", timeout=3)
            return
        session, workspace = left.session, self._workspace
        file = session.draft.file
        self._files.document = None if file is None else Document(file, session.base)
        workspace.load(session.draft)
        workspace.editor.restore(session.saved, session.done, session.undone)
        workspace.edited.publish(workspace.draft)
        text = f"{left.title}: {_facts(left)}. u undoes them, Ctrl+N begins anew."
        self._app.notify(text, title="Restored what was left", timeout=10)


def _facts(left: SavedSession) -> str:
    count = len(left.session.done)
    return f"{count} edit{'' if count == 1 else 's'}, {left.age}"
