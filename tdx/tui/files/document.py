"""The file of the current draft: changes on disk, autosave, and restoring a session."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.screen import ModalScreen
from textual.timer import Timer

from tdx.foundation.errors import TdxError, summarize_error
from tdx.foundation.files import write_atomically
from tdx.foundation.settings import state_path
from tdx.foundation.text import count_text
from tdx.pipeline.draft import Draft
from tdx.pipeline.editing.documents import Document
from tdx.pipeline.editing.sessions import SavedSession, Session, SessionStore
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, QuestionScreen, Reply, TextScreen, ask

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.workspace import Workspace


CHECK_INTERVAL = 1.0
"""Seconds between two checks of the file."""


class CurrentDocument:
    """The document that was opened or saved last."""

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
    """Asks the user what to do, once for each change of the file on disk."""

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
        """Show what saving would change in the file."""
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
            # From now on, the draft is an edit of what is on disk.
            document.accept_disk()
            editor = self._workspace.editor
            saved = Draft(file=str(document.path))
            with suppress(TdxError):
                saved = replace(Draft.of(Document.load(document.path)[1]), file=saved.file)
            editor.restore(saved, editor.done, editor.undone)
            self._workspace.edited.publish(self._workspace.draft)


SAVE_DELAY = 0.1
"""Seconds between an edit and the write; further edits in between are written with it."""


class Autosave:
    """Writes the session in a thread, shortly after each edit; without a store, it does nothing."""

    def __init__(
        self,
        app: App[None],
        workspace: Workspace,
        store: SessionStore | None,
        documents: CurrentDocument,
    ) -> None:
        self._app, self._workspace, self._documents = app, workspace, documents
        self._store = store
        self._timer: Timer | None = None
        self._writing: asyncio.Task[None] | None = None
        self._warnings: set[str] = set()
        self._is_logged = False

    @property
    def is_available(self) -> bool:
        """True if unsaved edits can be kept."""
        return self._store is not None and self.flush()

    def start(self) -> None:
        """Offer sessions that were left behind, and save this one from now on."""
        self._workspace.edited.subscribe(self._app.screen, lambda _: self._schedule())
        if self._store is None:
            return
        left, notices = self._store.left()
        for notice in notices:
            self.warn_once(notice)
        self._offer(left)
        self._schedule()  # keys may have been typed during the start

    def flush(self) -> bool:
        """Write the session now; return True on success."""
        if self._store is None:
            return False
        try:
            self._store.keep(self._session())
        except TdxError as error:
            self.warn_once(f"autosave failed: {error}")
            return False
        return True

    def keep_for_next_start(self) -> None:
        """Write the session and release it, so that the next start can restore it."""
        if self._store is not None:
            self._stop()
            if self._has_edits:
                self.flush()
            self._store.leave()
            self._store = None

    def discard(self) -> None:
        """Delete the saved session."""
        if self._store is not None:
            self._stop()
            self._store.leave()
            self._store.forget()

    def warn_once(self, notice: str) -> None:
        """Show a warning unless it was shown before."""
        if notice not in self._warnings:
            self._warnings.add(notice)
            self._app.notify(notice, title="Autosave", severity="warning", timeout=10)

    def choose(self) -> None:
        """Ask which of the sessions that were left behind to restore."""
        left = [] if self._store is None else self._store.left()[0]
        if not left:
            self._app.notify("no sessions to restore", timeout=2)
            return
        by_name = {session.path.name: session for session in left}
        choices = [
            Choice(name, session.title, _session_facts(session))
            for name, session in by_name.items()
        ]
        dialog = ChoiceScreen("Restore a session", choices)
        ask(self._app, dialog, lambda name: self._restore(by_name[name]))

    @property
    def _has_edits(self) -> bool:
        editor = self._workspace.editor
        return editor.is_modified or bool(editor.done) or bool(editor.undone)

    def _session(self) -> Session:
        document = self._documents.current
        return Session.of(self._workspace.editor, None if document is None else document.base)

    def _schedule(self) -> None:
        if self._store is not None and self._timer is None:
            self._timer = self._app.set_timer(SAVE_DELAY, self._write)

    def _write(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._schedule()
        elif self._store is not None and self._has_edits:
            self._writing = asyncio.create_task(self._write_session(self._store, self._session()))
        elif self._store is not None:
            self._store.forget()

    async def _write_session(self, store: SessionStore, session: Session) -> None:
        try:
            await asyncio.to_thread(store.keep, session)
        except TdxError as error:
            self.warn_once(f"autosave failed: {error}")
            return
        if not self._is_logged:
            self._is_logged = True
            text = "autosave keeps the edits of this session"
            self._workspace.journal.record(text, source="files", details=str(store.folder))

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def _offer(self, left: list[SavedSession]) -> None:
        draft = self._workspace.draft
        if draft == Draft():
            if left:
                self._restore(left[0])
                left = left[1:]
        else:
            file = draft.file
            same = [session for session in left if file and session.session.draft.file == file]
            if same:
                self._ask(same[0])
                return
        if left:
            count = count_text(len(left), "unsaved session")
            self._app.notify(f"{count}; press R to restore", timeout=6)

    def _ask(self, left: SavedSession) -> None:
        replies = [
            Reply("restore", "Restore them"),
            Reply("open", "Open the file"),
            Reply("discard", "Discard them", is_destructive=True),
        ]

        def answer(reply: str | None) -> None:
            if reply == "restore":
                self._restore(left)
            elif reply == "discard" and self._store is not None:
                self._store.discard(left)

        text = f"{_session_facts(left)}. The file itself is unchanged."
        screen = QuestionScreen(f"{left.title} has unsaved edits", text, replies)
        self._app.push_screen(screen, answer)

    def _restore(self, left: SavedSession) -> None:
        if self._store is None or not self._store.take(left):
            self._app.notify("another tdx tui has restored this session", timeout=3)
            return
        session, workspace = left.session, self._workspace
        file = session.draft.file
        self._documents.opened = None if file is None else Document(file, session.base)
        workspace.load(session.draft)
        workspace.editor.restore(session.saved, session.done, session.undone)
        workspace.edited.publish(workspace.draft)
        text = f"{left.title}: {_session_facts(left)}. u undoes them, Ctrl+N starts a new pipeline."
        self._app.notify(text, title="Restored unsaved edits", timeout=10)


def _session_facts(left: SavedSession) -> str:
    return f"{count_text(len(left.session.done), 'edit')}, {left.age}"


REPORT_NAME = "crash.txt"
TERMINAL_CHECK_INTERVAL = 1.0
_STDIN = 0
_SIGNAL_MESSAGE = "tdx: stopped by a signal; unsaved edits are kept for the next start of tdx tui"


def report_crash(autosave: Autosave) -> str:
    """Save the session and the traceback of the current exception; return what to print."""
    error = sys.exception()
    what = "unknown" if error is None else summarize_error(error)
    lines = [f"error: internal error in tdx: {what}"]
    report = traceback.format_exc()
    path = state_path() / REPORT_NAME
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, report.encode("utf-8", "backslashreplace"))
    except (OSError, TdxError):
        lines.append(report)
    else:
        lines.append(f"hint: the traceback is in {path}; please attach it to a bug report")
    is_kept = autosave.is_available
    autosave.keep_for_next_start()
    if is_kept:
        lines.append("unsaved edits are kept for the next start of tdx tui")
    return "\n".join(lines)


def watch_signals(app: App[None], autosave: Autosave, close: Callable[[], None]) -> None:
    """Keep the session when the process is asked to exit.

    On SIGTERM and SIGINT the app exits, so that the terminal is restored. ``close`` ends the
    workers.
    """
    if not hasattr(signal, "SIGHUP"):
        # Windows: Ctrl-C is a key there, and nothing else asks a process to exit.
        return
    loop = asyncio.get_running_loop()

    def exit_app(number: int) -> None:
        autosave.keep_for_next_start()
        app.exit(return_code=128 + number, message=_SIGNAL_MESSAGE)

    def hang_up() -> None:
        autosave.keep_for_next_start()
        close()
        # The terminal is gone, so nothing can be restored.
        os._exit(128 + signal.SIGHUP)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, exit_app, number)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    if os.isatty(_STDIN):
        # Only the session leader gets SIGHUP; any other process would outlive its terminal.
        def check_terminal() -> None:
            if not os.isatty(_STDIN):
                hang_up()
            # A timer of Textual would pass a message through the app each time.
            loop.call_later(TERMINAL_CHECK_INTERVAL, check_terminal)

        check_terminal()
