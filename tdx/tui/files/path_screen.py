"""Dialog that asks for a path: typed, completed or chosen from the folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tdx.tui.screens.dialogs import walk_options

Purpose = Literal["open", "save"]
SUFFIXES = (".yaml", ".yml")
MAX_ENTRIES = 300


def suggest_name(env: str) -> str:
    """Return a name for files about an env: that of its task, or of its factory.

    Example:
        >>> suggest_name("ALE/Pong-v5"), suggest_name("src/my_envs.py:make")
        ('pong', 'make')
    """
    return env.rpartition("/")[2].rpartition(":")[2].partition("-v")[0].lower()


def is_dump(path: str) -> bool:
    """Return True if a path is that of a folder with a dump."""
    return os.path.isfile(os.path.join(os.path.expanduser(path), "manifest.json"))


@dataclass(frozen=True, slots=True)
class PathEntry:
    """An entry of the list."""

    text: str  # text of the field after the entry is chosen
    name: str  # text that is shown
    note: str = ""  # remark after the name
    is_folder: bool = False  # true for folders


def list_entries(typed: str, recent: Sequence[Path] = ()) -> list[PathEntry]:
    """List files and folders that match a typed path; recent files if nothing is typed."""
    entries: list[PathEntry] = []
    for path in [path for path in recent if path.exists()][:10] if not typed else ():
        home, parent = str(Path.home()), str(path.parent)
        note = f"~{parent.removeprefix(home)}" if parent.startswith(f"{home}/") else parent
        entries.append(PathEntry(str(path), path.name, note))
    head, _, prefix = typed.rpartition("/")
    folder = Path(f"{head}/" if "/" in typed else ".").expanduser()
    lead = f"{head}/" if "/" in typed else ""
    try:
        inside = sorted(
            os.scandir(folder), key=lambda entry: (not entry.is_dir(), entry.name.lower())
        )
    except OSError:
        return entries
    for entry in inside:
        if not entry.name.startswith(prefix) or (entry.name.startswith(".") and not prefix):
            continue
        if entry.is_dir():
            entries.append(PathEntry(f"{lead}{entry.name}/", f"{entry.name}/", is_folder=True))
        elif entry.name.endswith(SUFFIXES):
            entries.append(PathEntry(f"{lead}{entry.name}", entry.name))
    return entries[:MAX_ENTRIES]


class PathScreen(ModalScreen[str | None]):
    """Asks for a path; returns it, or ``None``.

    ``open`` accepts existing files and dumps, and offers recent ones while nothing is typed;
    ``save`` accepts any name.
    """

    BINDINGS = [
        Binding("escape", "dismiss(None)", "back", id="path.back"),
        Binding("down", "walk(1)", "down", show=False),
        Binding("up", "walk(-1)", "up", show=False),
        Binding("tab", "complete", "complete", id="path.complete", priority=True),
    ]

    def __init__(
        self, title: str, purpose: Purpose, text: str = "", recent: Sequence[Path] = ()
    ) -> None:
        super().__init__()
        self._title, self._purpose, self._text = title, purpose, text
        self._recent = recent
        self._entries: list[PathEntry] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            dialog.border_subtitle = "Tab completes · Enter accepts · Esc cancels"
            yield Input(self._text, placeholder="path …", id="path-input", compact=True)
            yield OptionList(id="path-list", compact=True)
            yield Static("", id="path-note")

    def on_mount(self) -> None:
        field = self.query_one("#path-input", Input)
        field.focus()
        field.cursor_position = len(self._text)
        self._fill()

    @on(Input.Changed, "#path-input")
    def _list_matches(self, event: Input.Changed) -> None:
        event.stop()
        self._fill()

    def _fill(self) -> None:
        typed = self.query_one("#path-input", Input).value
        self._entries = list_entries(typed, self._recent if self._purpose == "open" else ())
        options = self.query_one("#path-list", OptionList)
        listed = []
        for entry in self._entries:
            style = "bold $text-primary" if entry.is_folder else ""
            note = f"  {entry.note}" if entry.note else ""
            listed.append(Option(Content.assemble((entry.name, style), (note, "dim"))))
        options.clear_options()
        options.add_options(listed)
        chosen = self._purpose == "open" or typed.endswith("/")
        options.highlighted = 0 if self._entries and chosen else None
        self.query_one("#path-note", Static).update(Content(self._note(typed)))

    def _note(self, typed: str) -> str:
        if not typed:
            return os.path.abspath(".") if os.path.isdir(".") else ""
        path = Path(typed).expanduser()
        if self._purpose == "save" and not typed.endswith("/"):
            return f"writes {path.absolute()}" + (", which already exists" if path.exists() else "")
        if self._is_dump(typed):
            return "a dump: Enter shows its progress"
        return "" if self._entries or path.exists() else "no such file or folder"

    def _is_dump(self, typed: str) -> bool:
        return self._purpose == "open" and is_dump(typed)

    def action_walk(self, by: int) -> None:
        walk_options(self.query_one("#path-list", OptionList), by)

    def action_complete(self) -> None:
        names = [entry.text for entry in self._entries]
        typed = self.query_one("#path-input", Input).value
        at = self.query_one("#path-list", OptionList).highlighted
        shared = os.path.commonprefix(names)  # noqa: RUF071 - completes characters
        if at is not None and len(shared) <= len(typed):
            shared = names[at]
        if len(shared) > len(typed):
            self._type(shared)

    @on(Input.Submitted, "#path-input")
    def _accept_path(self, event: Input.Submitted) -> None:
        event.stop()
        typed = event.value.strip()
        at = self.query_one("#path-list", OptionList).highlighted
        if (typed and not typed.endswith("/") and (self._purpose == "save" and at is None)) or (
            typed and (Path(typed).expanduser().is_file() or self._is_dump(typed))
        ):
            self._take(typed)
        elif at is not None:
            self._choose(self._entries[at])

    @on(OptionList.OptionSelected, "#path-list")
    def _choose_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._choose(self._entries[event.option_index])

    def _choose(self, entry: PathEntry) -> None:
        if entry.is_folder or self._purpose == "save":
            self._type(entry.text)
        else:
            self._take(entry.text)

    def _type(self, text: str) -> None:
        field = self.query_one("#path-input", Input)
        field.value = text
        field.cursor_position = len(text)
        field.focus()

    def _take(self, text: str) -> None:
        self.dismiss(str(Path(text).expanduser().absolute()))
