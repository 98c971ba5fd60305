"""What to do first: one line at a time, until it is done or no longer wanted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from textual.content import Content
from textual.widgets import Static

from tdx.errors import StorageError
from tdx.pipeline.editing.state_files import read_json, write_json
from tdx.tui.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Hint:
    """One thing to try.

    Args:
        name: what it is kept by; that of a tab is done when the tab was seen.
        command: the id of the key that does it.
        text: what it is good for.
    """

    name: str
    command: str
    text: str


HINTS = (
    Hint("env", "screen.env", "choose an env; p begins with a sample pipeline"),
    Hint("stages", "screen.catalogue", "add a transform from the catalogue"),
    Hint("specs", "screen.tab2", "see the specs after each stage, and what it changes"),
    Hint("live", "screen.tab3", "step through it and watch every value"),
    Hint("profile", "screen.tab4", "measure what each stage costs"),
)
_END = "That is all. Ctrl+P finds every command, F1 helps with what has the focus."


class HintBook:
    """Which hints are done, and whether they are wanted, from one run to the next.

    Args:
        path: the file; none for nowhere, and then no hints unless they are asked for.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.done: set[str] = set()
        self.is_hidden = path is None
        if path is not None:
            with suppress(StorageError):
                self._read(read_json(path))

    def finish(self, name: str) -> bool:
        """Take a hint as done; whether it was not."""
        if name in self.done:
            return False
        self.done.add(name)
        self._write()
        return True

    def toggle(self) -> None:
        """Hide them for good, or show them again."""
        self.is_hidden = not self.is_hidden
        self._write()

    @property
    def next(self) -> Hint | None:
        """The first that is not done."""
        return next((hint for hint in HINTS if hint.name not in self.done), None)

    def _read(self, kept: object) -> None:
        if isinstance(kept, dict):
            done = kept.get("done")
            names = done if isinstance(done, list) else []
            self.done = {name for name in names if isinstance(name, str)}
            self.is_hidden = kept.get("hidden") is True or self.next is None

    def _write(self) -> None:
        if self._path is not None:
            with suppress(StorageError):
                kept = {"done": sorted(self.done), "hidden": self.is_hidden}
                write_json(self._path, kept)


class HintLine(Static):
    """Shows the hint that is due.

    Args:
        workspace: the state of the app.
        book: what is done.
    """

    def __init__(self, workspace: Workspace, book: HintBook) -> None:
        super().__init__(id="hints")
        self.workspace = workspace
        self.book = book

    def on_mount(self) -> None:
        self.display = not self.book.is_hidden
        self.workspace.edited.subscribe(self, lambda _: self._edited())
        self.call_after_refresh(self._edited)

    def saw(self, tab: str) -> None:
        """A tab was brought to the front."""
        if any(hint.name == tab for hint in HINTS) and self.book.finish(tab):
            self.refresh()

    def toggle(self) -> None:
        """Hide the hints for good, or show them again."""
        self.book.toggle()
        self.display = not self.book.is_hidden

    def render(self) -> Content:
        hint = self.book.next
        away = (f"{self._key('screen.hints')} hides this", "dim")
        count = f"first steps {len(self.book.done)}/{len(HINTS)}"
        if hint is None:
            left = Content.assemble((" ✓ ", "bold $success"), _END)
        else:
            key = (f" {self._key(hint.command)} ", "bold $accent reverse")
            narrow = self.size.width < 90
            head = (" ▸ " if narrow else f" {count} ▸ ", "$accent")
            left = Content.assemble(head, key, f" {hint.text}")
        right = Content.assemble(away, " ")
        gap = self.size.width - left.cell_length - right.cell_length
        return Content.assemble(left, " " * gap, right) if gap > 0 else left

    def _key(self, command: str) -> str:
        found = (each.binding for each in self.screen.active_bindings.values())
        binding = next((each for each in found if each.id == command), None)
        return "" if binding is None else self.app.get_key_display(binding)

    def _edited(self) -> None:
        draft = self.workspace.draft
        if draft.env is not None:
            self.book.finish("env")
        if draft.stages:
            self.book.finish("stages")
        self.refresh()
