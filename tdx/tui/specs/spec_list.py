"""The spec tree on the screen: a list of lines, of which some can be folded."""

from __future__ import annotations

from collections.abc import Sequence

from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tdx.keys import split_key
from tdx.tui.specs.line_labels import heading
from tdx.tui.specs.spec_labels import Widths, key_label
from tdx.tui.specs.spec_tree import Line, Path

_INDENT = 2


class SpecList(OptionList):
    """Shows the lines; says which are to be folded, and which line the cursor is on."""

    BINDINGS = [
        Binding("enter,space", "select", "fold", id="spec_tree.fold", key_display="⏎"),
        Binding("left", "close", "close", id="spec_tree.close", show=False),
        Binding("right", "open", "open", id="spec_tree.open", show=False),
    ]

    class Folded(Message):
        """A line is to be closed, or opened."""

        def __init__(self, path: Path, closed: bool) -> None:
            super().__init__()
            self.path = path
            self.closed = closed

    class Moved(Message):
        """The cursor is on a line."""

        def __init__(self, line: Line) -> None:
            super().__init__()
            self.line = line

    def __init__(self) -> None:
        super().__init__(id="spec-tree", compact=True)
        self.lines: list[Line] = []
        self.wanted: Path | None = None

    @property
    def line(self) -> Line | None:
        """The line under the cursor."""
        return None if self.highlighted is None else self.lines[self.highlighted]

    def fill(self, lines: Sequence[Line], widths: Widths, found: frozenset[Path]) -> None:
        """Show these lines, with the cursor where it was as far as that is there."""
        self.lines = list(lines)
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            self.add_options(_option(line, widths, line.path in found) for line in lines)
            self.highlighted = self._place_again()

    def go_to(self, path: Path) -> None:
        """Put the cursor on a line."""
        self.wanted = path
        at = next((n for n, line in enumerate(self.lines) if line.path == path), None)
        if at is not None:
            self.highlighted = at

    def action_close(self) -> None:
        """Fold what is under the cursor; from what cannot be folded go to what is above it."""
        line = self.line
        if line is None:
            return
        if line.members and not line.is_folded:
            self.post_message(self.Folded(line.path, True))
            return
        above = (each for each in self.lines if _is_above(each.path, line.path))
        parent = max(above, key=lambda each: len(each.path), default=None)
        if parent is not None:
            self.go_to(parent.path)

    def action_open(self) -> None:
        """Unfold what is under the cursor; what is open is gone into."""
        line = self.line
        if line is None or line.kind == "key":
            return
        if line.is_folded:
            self.post_message(self.Folded(line.path, False))
        else:
            self.action_cursor_down()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        line = self.lines[event.option_index]
        if line.kind != "key":
            self.wanted = line.path
            self.post_message(self.Folded(line.path, not line.is_folded))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if event.option_index < len(self.lines):
            line = self.lines[event.option_index]
            self.wanted = line.path
            self.post_message(self.Moved(line))

    def _place_again(self) -> int | None:
        paths = [line.path for line in self.lines]
        if self.wanted in paths:
            return paths.index(self.wanted)
        keys = [n for n, line in enumerate(self.lines) if line.kind == "key"]
        # At another place of the chain it is the same key that is looked at.
        tail = None if self.wanted is None else self.wanted[1:]
        again = (n for n in keys if paths[n][1:] == tail)
        return next(again, keys[0] if keys else (0 if paths else None))


def _is_above(one: Path, other: Path) -> bool:
    return len(one) < len(other) and other[: len(one)] == one


def _option(line: Line, widths: Widths, found: bool) -> Option:
    pad = " " * (_INDENT * line.depth)
    if line.change is None:
        return Option(Content.assemble(pad, heading(line)), disabled=line.kind == "nothing")
    indent = _INDENT * (len(split_key(line.change.key)) - 1)
    label = key_label(line.text, line.change, widths, indent, found=found)
    return Option(Content.assemble(pad, label))
