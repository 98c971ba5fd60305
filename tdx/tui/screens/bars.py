"""One-line bars of the main screen: status at the top, hints and keys at the bottom."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol, runtime_checkable

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from tdx.foundation.errors import StorageError
from tdx.pipeline.editing.documents import read_json, write_json
from tdx.tui.chain_status import ChainStatus
from tdx.tui.input_queue import InputQueue
from tdx.tui.workspace import Workspace

SLOW_SECONDS = 5.0
"""Seconds after which the status bar shows how long the worker has been busy."""
_BUSY = ("inspecting", "checking")


class StatusBar(Static):
    """Shows the file, unsaved edits, problems and what the worker does."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(id="status")
        self.workspace = workspace
        self._since: float | None = None
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        self._timer = self.set_interval(
            1.0, lambda: self.refresh() if self._delay_text() else None, pause=True
        )
        self.workspace.edited.subscribe(self, lambda _: self.refresh())
        self.workspace.inspected.subscribe(self, self._update_phase)
        self.workspace.commanded.subscribe(self, lambda _: self.refresh())

    def _update_phase(self, status: ChainStatus) -> None:
        assert self._timer is not None
        if status.phase not in _BUSY:
            self._since = None
            self._timer.pause()
        elif self._since is None:
            self._since = time.monotonic()
            self._timer.resume()
        self.refresh()

    def _delay_text(self) -> str:
        """Return for how long the worker has been busy, if that is unusually long."""
        seconds = 0.0 if self._since is None else time.monotonic() - self._since
        return f" for {seconds:.0f} s · Ctrl+K kills the worker" if seconds > SLOW_SECONDS else ""

    def render(self) -> Content:
        draft, status, errors = self.workspace.draft, self.workspace.status, self.workspace.errors
        source = draft.file
        is_opened = self.workspace.is_unread or self.workspace.stack is not None
        if source is None and draft.env is not None and is_opened:
            # A checkpoint or a function: there is no pipeline file.
            source = draft.env.id
        name = "new pipeline" if source is None else Path(source).name
        dot = " ●" if self.workspace.editor.is_modified else ""
        left = Content.assemble((" tdx ", "bold $primary reverse"), f"  {name}", (dot, "$accent"))
        parts = []
        after = None if status.overview is None else status.overview.after
        if after is not None:
            batch = f"batch {list(after.batch_size)} · " if after.batch_size else ""
            parts.append(Content.styled(f"{batch}{after.device}", "dim"))
        broken = {error.number for error in errors.all()}
        failed, warned = len(errors.all()), 0
        for number, lints in status.lints.items():
            severities = [lint.finding.severity for lint in lints]
            failed += 0 if number in broken else severities.count("error")
            warned += severities.count("warning")
        counts = [Content.styled(f"✕ {failed}", "$error")] if failed else []
        counts += [Content.styled(f"▲ {warned}", "$warning")] if warned else []
        if counts:
            parts.append(Content(" ").join(counts))
        if status.phase in _BUSY:
            parts.append(Content.styled(f"⟳ {status.phase}{self._delay_text()}", "$accent"))
        elif status.phase == "failed":
            parts.append(Content.styled("✕ worker failed", "$error"))
        if self.workspace.running:
            doing = self.workspace.running[-1][1]
            parts = [Content.styled(f"⟳ {doing} · Ctrl+K cancels", "$accent")]
        right = Content.assemble(Content.styled(" · ", "dim").join(parts), " ")
        gap = max(2, self.size.width - left.cell_length - right.cell_length)
        return Content.assemble(left, " " * gap, right)


@dataclass(frozen=True, slots=True)
class Hint:
    """A first step to try."""

    # Key under which completion is stored; the id of a tab is completed when it is opened
    name: str
    command: str  # id of the binding
    text: str


HINTS = (
    Hint("env", "screen.env", "choose an env; p starts with a sample pipeline"),
    Hint("stages", "screen.catalog", "add a transform from the catalog"),
    Hint("specs", "screen.tab2", "inspect the specs after each stage"),
    Hint("live", "screen.tab3", "step the env and watch every value"),
    Hint("profile", "screen.tab4", "measure what each stage costs"),
)
_HINT_COMMANDS = {"screen.hints", *(hint.command for hint in HINTS)}
_ALL_DONE = "Done. Ctrl+P lists all commands, ? shows help for the focused pane."


class HintState:
    """Which hints are done, and whether they are hidden; stored between runs.

    Without a file, nothing is stored, and hints are hidden.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.done: set[str] = set()
        self.is_hidden = path is None
        if path is not None:
            with suppress(StorageError):
                stored = read_json(path)
                if isinstance(stored, dict):
                    done = stored.get("done")
                    names = done if isinstance(done, list) else []
                    self.done = {name for name in names if isinstance(name, str)}
                    self.is_hidden = stored.get("hidden") is True or self.next is None

    def mark_done(self, name: str) -> bool:
        """Mark a hint as done; return True if it was not."""
        if name in self.done:
            return False
        self.done.add(name)
        self._write()
        return True

    def toggle(self) -> None:
        """Hide the hints for good, or show them again."""
        self.is_hidden = not self.is_hidden
        self._write()

    @property
    def next(self) -> Hint | None:
        """The first hint that is not done."""
        return next((hint for hint in HINTS if hint.name not in self.done), None)

    def _write(self) -> None:
        if self._path is not None:
            with suppress(StorageError):
                kept = {"done": sorted(self.done), "hidden": self.is_hidden}
                write_json(self._path, kept)


class HintBar(Static):
    """Shows the next hint."""

    def __init__(self, workspace: Workspace, hints: HintState) -> None:
        super().__init__(id="hints")
        self.workspace = workspace
        self.hints = hints
        self._keys: dict[str, str] = {}

    def on_mount(self) -> None:
        self.set_class(self.hints.is_hidden, "-off")
        self.workspace.edited.subscribe(self, lambda _: self._update_hints())
        # The stages of a factory are known after its inspection.
        self.workspace.inspected.subscribe(self, lambda _: self._update_hints())
        self.call_after_refresh(self._update_hints)

    def mark_visited(self, tab: str) -> None:
        """Mark the hint of a tab as done."""
        if any(hint.name == tab for hint in HINTS) and self.hints.mark_done(tab):
            self.refresh()

    def toggle(self) -> None:
        """Hide the hints for good, or show them again."""
        self.hints.toggle()
        self.set_class(self.hints.is_hidden, "-off")

    def render(self) -> Content:
        hint = self.hints.next
        away = (f"{self._key('screen.hints')} hides this", "dim")
        count = f"first steps {len(self.hints.done)}/{len(HINTS)}"
        if hint is None:
            left = Content.assemble((" ✓ ", "bold $success"), _ALL_DONE)
        else:
            key = (f" {self._key(hint.command)} ", "bold $accent reverse")
            narrow = self.size.width < 90
            head = (" ▸ " if narrow else f" {count} ▸ ", "$accent")
            left = Content.assemble(head, key, f" {hint.text}")
        right = Content.assemble(away, " ")
        gap = self.size.width - left.cell_length - right.cell_length
        return Content.assemble(left, " " * gap, right) if gap > 0 else left

    def _key(self, command: str) -> str:
        # A text field that has the focus hides the keys, and may still have it at the next hint.
        for active in self.screen.active_bindings.values():
            if active.binding.id in _HINT_COMMANDS:
                self._keys[active.binding.id] = self.app.get_key_display(active.binding)
        return self._keys.get(command, "")

    def _update_hints(self) -> None:
        draft = self.workspace.draft
        if draft.env is not None:
            self.hints.mark_done("env")
        if draft.stages or self.workspace.is_unread:
            self.hints.mark_done("stages")
        self.refresh()


@runtime_checkable
class LimitsKeys(Protocol):
    """A widget with actions that do not apply at the moment, and only show why."""

    def is_applicable(self, action: str) -> bool:
        """Return False for an action whose key is not listed."""


def is_listed(node: DOMNode, binding: Binding) -> bool:
    """Return True if the key bar, the help and the palette list a binding of a widget."""
    name = binding.action.partition("(")[0]
    return not isinstance(node, LimitsKeys) or node.is_applicable(name)


_TRAILING_IDS = ("app.palette", "app.help")
"""Bindings at the right end, shown even if there is little room."""
_GAP = "  "
_DIVIDER = " │ "


@dataclass(frozen=True, slots=True)
class KeyHint:
    """A key, or several that belong together."""

    area: str  # part of the app, the first part of the binding id
    keys: tuple[tuple[str, str], ...]  # each key as it is shown, and as it is pressed
    text: str  # what the keys do

    @property
    def shown(self) -> str:
        """The keys as text."""
        return "".join(shown for shown, _ in self.keys)

    @property
    def width(self) -> int:
        """Width in cells."""
        return Content(f"{self.shown} {self.text}").cell_length


class KeyBar(Static):
    """Shows the keys of the focused widget; a click on a key presses it."""

    def __init__(self, input_queue: InputQueue) -> None:
        super().__init__(id="keys")
        self._input_queue = input_queue
        self._spots: list[tuple[int, int, str]] = []

    def on_mount(self) -> None:
        def refresh(screen: Screen[object]) -> None:
            if self.is_attached and screen is self.screen:
                self.refresh()

        self.screen.bindings_updated_signal.subscribe(self, refresh)

    def on_click(self, event: events.Click) -> None:
        for start, end, key in self._spots:
            if start <= event.x < end:
                self._input_queue.press(key)

    def render(self) -> Content:
        parts = list(self._list_key_hints())
        right = [part for part in parts if part.area == "app"]
        left = [part for part in parts if part.area != "app"]
        end = sum(part.width for part in right) + len(_GAP) * len(right)
        line = _BarLayout()
        for index, part in enumerate(left):
            apart = _DIVIDER if index and left[index - 1].area != part.area else _GAP
            if line.width + len(apart) + part.width + end > self.size.width - 1:
                break
            line.add(apart if index else " ", part)
        gap = max(1, self.size.width - 1 - line.width - end + len(_GAP))
        for index, part in enumerate(right):
            line.add(_GAP if index else " " * gap, part)
        self._spots = line.spots
        return Content.assemble(*line.texts)

    def _list_key_hints(self) -> Iterator[KeyHint]:
        shown = [
            active.binding
            for active in self.screen.active_bindings.values()
            if active.enabled and active.binding.show and is_listed(active.node, active.binding)
        ]
        shown.sort(key=lambda binding: binding.id in _TRAILING_IDS)
        for _, group in groupby(shown, lambda binding: binding.group or binding.action):
            by_action = {binding.action: binding for binding in reversed(list(group))}
            ordered = list(reversed(by_action.values()))
            first = ordered[0]
            keys = tuple((self.app.get_key_display(each), each.key) for each in ordered)
            text = first.description if first.group is None else first.group.description
            area = "app" if first.id in _TRAILING_IDS else (first.id or "").partition(".")[0]
            yield KeyHint(area, keys, text)


class _BarLayout:
    """Texts and clickable ranges of the bar."""

    def __init__(self) -> None:
        self.width = 0
        self.texts: list[tuple[str, str]] = []
        self.spots: list[tuple[int, int, str]] = []

    def add(self, apart: str, part: KeyHint) -> None:
        """Append a key hint; a click on its text presses its last key."""
        self._put(apart, "dim")
        for shown, key in part.keys:
            start = self.width
            self._put(shown, "bold $footer-key-foreground")
            self.spots.append((start, self.width, key))
        start = self.width
        self._put(f" {part.text}", "$footer-description-foreground")
        self.spots.append((start, self.width, part.keys[-1][1]))

    def _put(self, text: str, style: str) -> None:
        self.texts.append((text, style))
        self.width += Content(text).cell_length
