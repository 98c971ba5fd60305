"""Commands for pipeline files: open, save, reload, restore, dump and quit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from textual.binding import Binding

from tdx.foundation.container import UnsyncedError
from tdx.foundation.errors import TdxError
from tdx.foundation.text import count_text
from tdx.pipeline.draft import Draft
from tdx.pipeline.editing.documents import ChangedOnDiskError, Document, RecentFiles
from tdx.pipeline.editing.sessions import SessionStore
from tdx.tui.chain_status import NO_PIPELINE
from tdx.tui.files.document import Autosave, CurrentDocument, DiskWatch
from tdx.tui.files.dumps import DumpJob, DumpScreen, WatchScreen
from tdx.tui.files.path_screen import PathScreen, is_dump, suggest_name
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, QuestionScreen, Reply, ask

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.workspace import Workspace

Then = Callable[[], None]
_OPEN = Binding.Group("open, recent, new", compact=True)
_RELOAD = Binding.Group("reload, restore", compact=True)
FILE_BINDINGS = (
    Binding("ctrl+s", "file('save')", "save", id="file.save"),
    Binding("S", "file('save_as')", "save as", id="file.save_as", show=False),
    Binding("ctrl+o", "file('open')", "open", False, id="file.open", group=_OPEN),
    Binding("ctrl+r", "file('open_recent')", "recent files", False, id="file.recent", group=_OPEN),
    Binding("ctrl+n", "file('new')", "new pipeline", False, id="file.new", group=_OPEN),
    Binding(
        "ctrl+l", "file('reload')", "reload from disk", id="file.reload", show=False, group=_RELOAD
    ),
    Binding(
        "R", "file('restore')", "restore a session", id="file.restore", show=False, group=_RELOAD
    ),
    Binding("D", "file('dump')", "dump a rollout", id="file.dump", show=False),
)


@dataclass(frozen=True, slots=True)
class Storage:
    """What is stored between runs of the app."""

    sessions: SessionStore
    recent: RecentFiles


class Files:
    """Opens, saves and restores the pipeline of a workspace."""

    def __init__(
        self, app: App[None], workspace: Workspace, storage: Storage | None = None
    ) -> None:
        self._app, self.workspace = app, workspace
        self._storage = storage
        self.documents = CurrentDocument(workspace)
        store = None if storage is None else storage.sessions
        self.autosave = Autosave(app, workspace, store, self.documents)
        self.watch = DiskWatch(app, workspace, self.documents, self.reload)
        self.dump_job = DumpJob(app, workspace)

    def start(self) -> None:
        """Load the document of the initial draft, and start autosave and the disk watch."""
        if not self._app.screen_stack:
            return  # the app exits already
        file = self.workspace.draft.file
        if file is not None:
            # Options of the command line may have changed what the file says.
            path, editor = Path(file).expanduser().absolute(), self.workspace.editor
            try:
                self.documents.opened, pipeline = Document.load(path)
            except TdxError:
                editor.rename(None)
            else:
                editor.rename(str(path))
                saved = replace(Draft.of(pipeline), file=str(path))
                if saved != editor.draft:
                    editor.restore(saved, (), ())
                self._add_recent(path)
        self.autosave.start()
        self.watch.start()

    def open(self) -> None:
        """Ask for a file and open it."""
        screen = PathScreen("Open", "open", recent=self._recent_files())
        ask(self._app, screen, self._open_chosen)

    def open_recent(self) -> None:
        """Ask for a recently opened file and open it."""
        files = [path for path in self._recent_files() if path.exists()]
        if not files:
            self._app.notify("no recent files", timeout=2)
            return
        choices = [Choice(str(path), path.name, str(path.parent)) for path in files]
        ask(self._app, ChoiceScreen("Recent files", choices), self._open_chosen)

    def new(self) -> None:
        """Start a new, empty pipeline."""
        self._ask_to_save("Start a new pipeline?", lambda: self._load(Draft(), None))

    def open_path(self, path: str) -> None:
        """Open a file; keep the current pipeline if it cannot be read."""
        try:
            document, pipeline = Document.load(path)
        except TdxError as error:
            self._app.notify(str(error), title="Not opened", severity="error")
            return
        self._load(replace(Draft.of(pipeline), file=path), document)
        self._add_recent(path)

    def reload(self) -> None:
        """Load the file again, as an edit that can be undone."""
        env = self.workspace.draft.env
        document = self.documents.current
        if env is not None and env.code is not None:
            self.workspace.reload_code()
            if document is None:
                self._app.notify(f"{env.id} is imported again", timeout=4)
        elif document is None:
            self._app.notify("nothing to reload: the pipeline has no file", timeout=2)
        if document is None:
            return
        try:
            loaded, pipeline = Document.load(document.path)
        except TdxError as error:
            document.accept_disk()
            self._app.notify(str(error), title="Not reloaded", severity="error")
            return
        self.documents.opened = loaded
        draft = replace(Draft.of(pipeline), file=str(document.path))
        self.workspace.edit("reload from disk", draft)
        self._mark_saved()
        self._app.notify(f"reloaded {document.path.name}; u undoes this", timeout=4)

    def restore(self) -> None:
        """Ask for an unsaved session and restore it."""
        self._ask_to_save("Restore another session?", self.autosave.choose)

    def _open_chosen(self, path: str) -> None:
        if is_dump(path):
            self.watch_dump(path)
        else:
            self._ask_to_save(f"Open {Path(path).name}?", lambda: self.open_path(path))

    def _load(self, draft: Draft, document: Document | None) -> None:
        self.documents.opened = document
        self.workspace.load(draft)

    def save(self, then: Then | None = None) -> None:
        """Write the pipeline to its file and keep the comments in it."""
        draft = self.workspace.draft
        if draft.env is None:
            self._app.notify(NO_PIPELINE, timeout=3)
        elif draft.file is None:
            self.save_as(then)
        else:
            self.documents.opened = self.documents.at(draft.file)
            self._write(self.documents.opened, then)

    def save_as(self, then: Then | None = None) -> None:
        """Ask for a path and write the pipeline there."""
        draft = self.workspace.draft
        if draft.env is None:
            self._app.notify(NO_PIPELINE, timeout=3)
            return
        text = draft.file or f"{suggest_name(draft.env.id)}.yaml"
        with suppress(ValueError, OSError):  # elsewhere, or the current folder was deleted
            text = str(Path(text).relative_to(Path.cwd()))
        dialog = PathScreen("Save as", "save", text)
        ask(self._app, dialog, lambda path: self._write(self.documents.at(path), then))

    def _write(self, document: Document, then: Then | None, force: bool = False) -> None:
        template = self.documents.current
        try:
            if template is not None and template is not document:
                document.take_comments(template)
            document.save(self.workspace.draft.pipeline(), force=force)
        except ChangedOnDiskError as error:
            self._ask_to_overwrite(document, str(error), then)
            return
        except UnsyncedError as error:
            self._app.notify(str(error), title="Saved", severity="warning", timeout=10)
        except TdxError as error:
            note = "; autosave has kept the edits" if self.autosave.is_available else ""
            self._app.notify(f"{error}{note}", title="Not saved", severity="error", timeout=10)
            return
        self.documents.opened = document
        self.workspace.editor.rename(str(document.path))
        self._mark_saved()
        self._add_recent(document.path)
        self._app.notify(f"saved {document.path.name}", timeout=4)
        if then is not None:
            then()

    def _ask_to_overwrite(self, document: Document, why: str, then: Then | None) -> None:
        def answer(reply: str | None) -> None:
            if reply == "write":
                self._write(document, then, force=True)
            elif reply == "diff":
                again: Then = lambda: self._ask_to_overwrite(document, why, then)  # noqa: E731
                self.watch.show_difference(document, again)
            elif reply == "other":
                self.save_as(then)

        replies = [
            Reply("other", "Another name"),
            Reply("diff", "Show differences"),
            Reply("write", "Overwrite", is_destructive=True),
        ]
        self._app.push_screen(QuestionScreen("Overwrite the file?", why, replies), answer)

    def _mark_saved(self) -> None:
        self.workspace.editor.mark_saved()
        self.workspace.edited.publish(self.workspace.draft)

    def quit(self) -> None:
        """Quit the app; ask first about unsaved edits and a running dump."""
        if not self.dump_job.is_running:
            self._ask_to_save("Quit tdx?", self._exit, quitting=True)
            return

        def answer(reply: str | None) -> None:
            if reply == "quit":
                self._ask_to_save("Quit tdx?", self._exit, quitting=True)

        text = "Finished shards are kept; `tdx rollout --resume` resumes the dump."
        replies = [Reply("stay", "Stay"), Reply("quit", "Quit", is_destructive=True)]
        self._app.push_screen(QuestionScreen("A dump is running", text, replies), answer)

    def _exit(self) -> None:
        self.autosave.discard()
        self._app.exit()

    def _ask_to_save(self, title: str, then: Then, quitting: bool = False) -> None:
        """Call a function that ends this session, after asking about unsaved edits."""
        editor = self.workspace.editor
        if not editor.is_modified:
            then()
            return

        def answer(reply: str | None) -> None:
            if reply == "save":
                self.save(then)
            elif reply == "keep":
                self.autosave.keep_for_next_start()
                self._app.exit(message="tdx: unsaved edits are kept for the next start of tdx tui")
            elif reply == "discard":
                then()

        replies = [Reply("save", "Save")]
        if quitting and self.autosave.is_available:
            replies.append(Reply("keep", "Keep for next time"))
        replies.append(Reply("discard", "Discard", is_destructive=True))
        edits = count_text(len(editor.done), "unsaved edit")
        last = f"; the last one: {editor.done[-1].label}" if editor.done else ""
        text = f"The pipeline has {edits}{last}."
        self._app.push_screen(QuestionScreen(title, text, replies), answer)

    def dump(self) -> None:
        """Open the dialog that dumps a rollout, or shows the progress of a running dump."""
        if self.workspace.draft.env is None:
            self._app.notify(NO_PIPELINE, timeout=3)
            return
        self._app.push_screen(DumpScreen(self.dump_job, self.workspace))

    def watch_dump(self, path: str) -> None:
        """Show the progress of a dump that any process records."""
        self._app.push_screen(WatchScreen(path, self.workspace))

    def _recent_files(self) -> list[Path]:
        return [] if self._storage is None else self._storage.recent.all()

    def _add_recent(self, path: str | Path) -> None:
        if self._storage is not None:
            try:
                self._storage.recent.add(path)
            except TdxError as error:
                self.autosave.warn_once(str(error))
