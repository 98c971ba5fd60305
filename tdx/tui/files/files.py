"""What can be done with pipeline files: each method is a command of the app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.errors import TdxError
from tdx.pipeline.editing.documents import ChangedOnDiskError, Document, RecentFiles
from tdx.pipeline.editing.draft import Draft
from tdx.pipeline.editing.sessions import SessionStore
from tdx.tui.files.asking import AskScreen, Reply
from tdx.tui.files.dump_job import DumpJob
from tdx.tui.files.keeping import Keeper
from tdx.tui.files.path_screen import PathScreen
from tdx.tui.files.watching import Watch
from tdx.tui.screens.choosing import Choice, ChooseScreen

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.workspace import Workspace

Then = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Kept:
    """What outlives the app.

    Args:
        sessions: where the session is kept.
        recent: the recent files.
    """

    sessions: SessionStore
    recent: RecentFiles


class Files:
    """Opens, saves and keeps the pipeline of a workspace.

    Args:
        app: shows the dialogs and the notices.
        workspace: the state of the app.
        kept: what outlives the app; none for an app that keeps nothing.
    """

    def __init__(self, app: App[None], workspace: Workspace, kept: Kept | None = None) -> None:
        self._app, self.workspace = app, workspace
        self._kept = kept
        self.document: Document | None = None
        self.keeper = Keeper(app, workspace, None if kept is None else kept.sessions, self)
        self.watch = Watch(app, self)
        self.dumping = DumpJob(app, workspace)

    @property
    def current(self) -> Document | None:
        """The file that the chain belongs to now; undo may lead to one that has none."""
        document = self.document
        same = document is not None and str(document.path) == self.workspace.draft.file
        return document if same else None

    def start(self) -> None:
        """Take up the file that the app began with, and sessions that were left."""
        if not self._app.screen_stack:
            return  # left while it was starting
        file = self.workspace.draft.file
        if file is not None:
            self._adopt(file)
        self.keeper.start()
        self.watch.start()

    def run(self, name: str) -> None:
        """Do what a key asks for."""
        command: Then = getattr(self, name)
        command()

    # ------------------------------------------------------------------ open

    def open(self) -> None:
        """Ask for a file and open it."""
        self._app.push_screen(PathScreen("Open", "open", recent=self._recent()), self._chosen)

    def recent(self) -> None:
        """Ask for one of the files that were opened last."""
        files = [path for path in self._recent() if path.exists()]
        if not files:
            self._app.notify("no file was opened yet", timeout=2)
            return
        choices = [Choice(str(path), path.name, str(path.parent)) for path in files]
        self._app.push_screen(ChooseScreen("Recent files", choices), self._chosen)

    def new(self) -> None:
        """Begin anew, with nothing."""
        self._when_safe("Begin a new pipeline?", lambda: self._load(Draft(), None))

    def open_path(self, path: str) -> None:
        """Open a file; nothing changes where it cannot be read."""
        try:
            document, pipeline = Document.load(path)
        except TdxError as error:
            self._app.notify(str(error), title="Not opened", severity="error")
            return
        self._load(replace(Draft.of(pipeline), file=path), document)
        self._remember(path)

    def reload(self) -> None:
        """Take what is on disk, as an edit that can be undone."""
        document = self.current
        if document is None:
            self._app.notify("there is no file yet", timeout=2)
            return
        try:
            found, pipeline = Document.load(document.path)
        except TdxError as error:
            document.accept_disk()
            self._app.notify(str(error), title="Not reloaded", severity="error")
            return
        self.document = found
        draft = replace(Draft.of(pipeline), file=str(document.path))
        self.workspace.edit("reload from disk", draft)
        self._saved()
        self._app.notify(f"reloaded {document.path.name}; u takes it back", timeout=4)

    def restore(self) -> None:
        """Ask for a session that was left, and take it up."""
        self._when_safe("Take up another session?", self.keeper.choose)

    def _chosen(self, path: str | None) -> None:
        if path is not None:
            name = Path(path).name
            self._when_safe(f"Open {name}?", lambda: self.open_path(path))

    def _load(self, draft: Draft, document: Document | None) -> None:
        self.document = document
        self.workspace.load(draft)

    def _adopt(self, file: str) -> None:
        """Know the file that the app was started with; options may have changed its pipeline."""
        path = Path(file).expanduser().absolute()
        editor = self.workspace.editor
        try:
            self.document, pipeline = Document.load(path)
        except TdxError:
            editor.rename(None)
            return
        editor.rename(str(path))
        saved = replace(Draft.of(pipeline), file=str(path))
        if saved != editor.draft:
            editor.restore(saved, (), ())
        self._remember(path)

    # ------------------------------------------------------------------ save

    def save(self, then: Then | None = None) -> None:
        """Write the pipeline to its file, with the comments that are in it."""
        draft = self.workspace.draft
        if draft.env is None:
            self._app.notify("choose an env first: there is no pipeline yet", timeout=3)
        elif draft.file is None:
            self.save_as(then)
        else:
            self._write(self._document_of(draft.file), then)

    def save_as(self, then: Then | None = None) -> None:
        """Ask for a name, and write the pipeline there."""
        draft = self.workspace.draft
        if draft.env is None:
            self._app.notify("choose an env first: there is no pipeline yet", timeout=3)
            return

        def named(path: str | None) -> None:
            if path is not None:
                self._write(self._document_for(path), then)

        text = draft.file or f"{draft.env.id.rpartition('/')[2].partition('-v')[0].lower()}.yaml"
        self._app.push_screen(PathScreen("Save as", "save", _relative(text)), named)

    def _document_of(self, file: str) -> Document:
        if self.document is None or str(self.document.path) != file:
            self.document = Document(file)
        return self.document

    def _document_for(self, path: str) -> Document:
        """The document for another place; the comments go there too."""
        if self.document is not None and str(self.document.path) == path:
            return self.document
        return Document(path)

    def _write(self, document: Document, then: Then | None, force: bool = False) -> None:
        template = self.current
        try:
            if template is not None and template is not document:
                document.take_comments(template)
            document.save(self.workspace.draft.pipeline(), force=force)
        except ChangedOnDiskError as error:
            self._ask_to_overwrite(document, str(error), then)
            return
        except TdxError as error:
            kept = "; the edits are kept all the same" if self.keeper.works else ""
            self._app.notify(f"{error}{kept}", title="Not saved", severity="error", timeout=10)
            return
        self.document = document
        self.workspace.editor.rename(str(document.path))
        self._saved()
        self._remember(document.path)
        self._app.notify(f"saved {document.path.name}", timeout=4)
        if then is not None:
            then()

    def _ask_to_overwrite(self, document: Document, why: str, then: Then | None) -> None:
        def answered(reply: str | None) -> None:
            if reply == "write":
                self._write(document, then, force=True)
            elif reply == "diff":
                again: Then = lambda: self._ask_to_overwrite(document, why, then)  # noqa: E731
                self.watch.show_difference(document, again)
            elif reply == "other":
                self.save_as(then)

        replies = [
            Reply("other", "Another name"),
            Reply("diff", "Show the difference"),
            Reply("write", "Write over it", harms=True),
        ]
        self._app.push_screen(AskScreen("Write over it?", why, replies), answered)

    def _saved(self) -> None:
        self.workspace.editor.mark_saved()
        self.workspace.edited.publish(self.workspace.draft)

    # ------------------------------------------------------------------ leave

    def quit(self) -> None:
        """Leave the app; what is not saved, or not finished, is asked about."""
        if not self.dumping.runs:
            self._when_safe("Leave tdx?", self._leave, leaving=True)
            return

        def answered(reply: str | None) -> None:
            if reply == "leave":
                self._when_safe("Leave tdx?", self._leave, leaving=True)

        text = "What is finished of it stays, and `tdx rollout --resume` goes on with it."
        replies = [Reply("stay", "Stay"), Reply("leave", "Leave", harms=True)]
        self._app.push_screen(AskScreen("A dump is being made", text, replies), answered)

    def _leave(self) -> None:
        self.keeper.forget()
        self._app.exit()

    def _when_safe(self, title: str, then: Then, leaving: bool = False) -> None:
        """Do something that ends this session, once what is not saved is taken care of."""
        editor = self.workspace.editor
        if not editor.is_modified:
            then()
            return

        def answered(reply: str | None) -> None:
            if reply == "save":
                self.save(then)
            elif reply == "keep":
                self.keeper.leave_for_later()
                self._app.exit(message="tdx: what was not saved is kept; the next tdx tui has it")
            elif reply == "discard":
                then()

        replies = [Reply("save", "Save")]
        if leaving and self.keeper.works:
            replies.append(Reply("keep", "Keep for next time"))
        replies.append(Reply("discard", "Discard", harms=True))
        self._app.push_screen(AskScreen(title, self._unsaved_text(), replies), answered)

    def _unsaved_text(self) -> str:
        editor = self.workspace.editor
        count = len(editor.done)
        edits = f"{count} edit{'' if count == 1 else 's'}"
        last = f", the last one: {editor.done[-1].label}" if editor.done else ""
        return f"The pipeline is not saved: {edits}{last}."

    # ------------------------------------------------------------------ dumps

    def dump(self) -> None:
        """Ask what to roll out and where to, or show how far it is."""
        if self.workspace.draft.env is None:
            self._app.notify("choose an env first: there is no pipeline yet", timeout=3)
            return
        from tdx.tui.files.dump_screen import DumpScreen

        self._app.push_screen(DumpScreen(self.dumping, self.workspace))

    # ------------------------------------------------------------------ what is recent

    def _recent(self) -> list[Path]:
        return [] if self._kept is None else self._kept.recent.all()

    def _remember(self, path: str | Path) -> None:
        if self._kept is not None:
            try:
                self._kept.recent.add(path)
            except TdxError as error:
                self.keeper.complain(str(error))


def _relative(path: str) -> str:
    """The path as short as it can be written."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the current folder was removed
        return path
