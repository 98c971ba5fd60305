"""The spec tree on screen: foldable lines, their labels and search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tdx.inspection.chain import Direction
from tdx.inspection.leaf import LeafSpec, domain_text, shape_text
from tdx.inspection.lineage import FlowNode, KeyVersion, Lineage
from tdx.inspection.spec_report import KeyChange
from tdx.keys import split_key
from tdx.tui.specs.tree import DIRECTIONS, LinePath, SpecLine

_SIGNS = {"added": "+", "gone": "-", "changed": "~", "same": " "}
_COLORS = {
    "added": "$success",
    "gone": "$error",
    "changed": "$warning",
    "same": "",
}


@dataclass(frozen=True, slots=True)
class ColumnWidths:
    """Widths of the columns.

    Args:
        key: Width of the keys with their indentation.
        shape: Width of the shapes.
        dtype: Width of the dtypes.
        device: Width of the devices; 0 if all are equal.
    """

    key: int
    shape: int
    dtype: int
    device: int

    @classmethod
    def of(cls, keys: Iterable[int], leaves: Iterable[LeafSpec]) -> ColumnWidths:
        """Return widths that fit all keys and specs."""
        known = list(leaves)
        devices = {leaf.device for leaf in known}
        return cls(
            max(keys, default=0),
            max((len(shape_text(leaf.shape)) for leaf in known), default=0),
            max((len(leaf.dtype) for leaf in known), default=0),
            max(map(len, devices)) if len(devices) > 1 else 0,
        )


def key_label(
    name: str, change: KeyChange, widths: ColumnWidths, indent: int, *, found: bool = False
) -> Content:
    """Return the label of a key; a changed key shows its previous spec too.

    Args:
        name: Text for the key.
        change: Specs before and after.
        widths: Widths of the columns.
        indent: Indentation of the name.
        found: True if the key matches the search.
    """
    color = _COLORS[change.change]
    struck = " strike" if change.change == "gone" else ""
    line = " bold underline" if found else ""
    pad = " " * max(0, widths.key - indent - len(name))
    head = Content.assemble(
        (f"{_SIGNS[change.change]} ", f"bold {color}".strip()),
        (name, f"{color or '$foreground'}{struck}{line}"),
        f"{pad}  ",
    )
    leaf = change.after or change.before
    assert leaf is not None
    if change.change != "changed":
        style = color or "dim"
        return Content.assemble(head, (" ".join(_columns(leaf, widths)).rstrip(), style + struck))
    return Content.assemble(head, *_changed_columns(change, widths))


def _changed_columns(
    change: KeyChange, widths: ColumnWidths
) -> Iterable[Content | tuple[str, str]]:
    """Yield the new spec with its changes highlighted, then the previous values."""
    before, after = change.before, change.after
    assert before is not None
    assert after is not None
    fields = ("shape", "dtype", "device", "domain")
    old: list[str] = []
    for field, new, was in zip(fields, _columns(after, widths), _leaf_texts(before), strict=True):
        differs = getattr(before, field) != getattr(after, field)
        yield (f"{new} ", "bold $warning" if differs else "dim")
        if differs and was:
            old.append(was)
    if change.fields == ("kind",):
        old.append(before.kind)
    yield ("← " + " ".join(old), "dim")


def _columns(leaf: LeafSpec, widths: ColumnWidths) -> tuple[str, str, str, str]:
    shape, dtype, device, domain = _leaf_texts(leaf)
    device = device.ljust(widths.device) if widths.device else ""
    return shape.ljust(widths.shape), dtype.ljust(widths.dtype), device, domain


def _leaf_texts(leaf: LeafSpec) -> tuple[str, str, str, str]:
    domain = domain_text(leaf, whole=False)
    return shape_text(leaf.shape), leaf.dtype, leaf.device, domain


_COUNT_SIGNS = (("added", "+", "$success"), ("changed", "~", "$warning"), ("gone", "-", "$error"))
_STYLES = {"place": "bold", "lane": "bold $primary", "part": "$secondary", "group": "bold"}
_ARROWS = {"forward": "↓ ", "inverse": "↑ "}


def heading(line: SpecLine) -> Content:
    """Return the label of a foldable line; a folded one shows counts."""
    if line.kind == "nothing":
        return Content.styled("  none", "dim")
    sign = "▸ " if line.is_folded else "▾ "
    arrow = _ARROWS[line.text] if line.kind == "lane" else ""
    name = (f"{arrow}{line.text}", _STYLES[line.kind])
    if line.is_folded or line.kind == "place":
        return Content.assemble((sign, "dim"), name, *_member_counts(line))
    note = f"  {DIRECTIONS[line.text]}" if line.kind == "lane" else ""
    return Content.assemble((sign, "dim"), name, (note, "dim"))


def _member_counts(line: SpecLine) -> list[tuple[str, str]]:
    total = len(line.members)
    parts = [(f"  {total} key{'' if total == 1 else 's'}", "dim")]
    parts += [
        (f" {sign}{line.counts[change]}", color)
        for change, sign, color in _COUNT_SIGNS
        if line.counts[change]
    ]
    return parts


def lineage_text(
    lineage: Lineage, key: str, lane: Direction, places: Sequence[int | None]
) -> Content:
    """Return the versions of a key, one per line, in data-flow order.

    Args:
        lineage: Lineage of the whole chain.
        key: The key, with dots.
        lane: Direction.
        places: Place in the chain for each stage of the lineage; ``None`` for stages of the env
            itself.
    """
    known = lineage.only([key]).versions if key in lineage.keys() else ()
    versions = [version for version in known if version.lane == lane]
    if not versions:
        return Content.assemble((f"{key} ", "bold"), ("comes from the previous step", "dim"))
    return Content("\n").join(_version_line(version, places) for version in versions)


def _version_line(version: KeyVersion, places: Sequence[int | None]) -> Content:
    return Content.assemble(*_version_parts(version, places))


def _version_parts(version: KeyVersion, places: Sequence[int | None]) -> Iterator[tuple[str, str]]:
    yield (version.name, "bold $accent")
    yield ("  by ", "dim")
    yield (_place_name(version.writer, places), "")
    if version.source is not None:
        yield (" from ", "dim")
        yield (version.source, "")
    if version.readers:
        yield ("  → ", "dim")
        yield (", ".join(_place_name(reader, places) for reader in version.readers), "")
    if version.ended is not None:
        yield ("  removed by ", "dim")
        yield (_place_name(version.ended, places), "")


def _place_name(place: FlowNode, places: Sequence[int | None]) -> str:
    if place.kind != "stage" or place.stage is None:
        return place.kind
    at = places[place.stage] if place.stage < len(places) else place.stage
    name = f"env's {place.name}" if at is None else f"{at} {place.name}"
    return name + (" (next step)" if place.next_step else "")


class SpecSearch:
    """Search words and the lines that match them."""

    def __init__(self) -> None:
        self.words = ""
        self.matches: list[LinePath] = []
        self.opened: frozenset[LinePath] = frozenset()

    @property
    def found(self) -> frozenset[LinePath]:
        """Matching lines."""
        return frozenset(self.matches)

    def look(self, lines: Iterable[SpecLine]) -> None:
        """Search all lines, folded ones included."""
        words = self.words.casefold().split()
        self.matches = [
            line.path
            for line in lines
            if words and line.key is not None and all(w in line.key.casefold() for w in words)
        ]
        self.opened = frozenset(path[:n] for path in self.matches for n in range(1, len(path)))

    def next(self, path: LinePath | None, by: int) -> LinePath | None:
        """Return the next or previous match after a line; wrap around at the end."""
        if not self.matches:
            return None
        if path not in self.matches:
            return self.matches[-1 if by < 0 else 0]
        return self.matches[(self.matches.index(path) + by) % len(self.matches)]

    def note(self, path: LinePath | None) -> str:
        """Return the number of matches and the current one as text."""
        if not self.words.strip():
            return ""
        if not self.matches:
            return f"no key matches {self.words}"
        at = f"{self.matches.index(path) + 1} of " if path in self.matches else ""
        return f"{at}{len(self.matches)} match{'' if len(self.matches) == 1 else 'es'}"


_INDENT = 2


class SpecList(OptionList):
    """Shows the lines; posts messages for folding and cursor moves."""

    BINDINGS = [
        Binding("enter,space", "select", "fold", id="spec_tree.fold", key_display="⏎"),
        Binding("left", "close", "fold", id="spec_tree.close", show=False),
        Binding("right", "open", "unfold", id="spec_tree.open", show=False),
    ]

    class Folded(Message):
        """A line should be folded or unfolded."""

        def __init__(self, path: LinePath, closed: bool) -> None:
            super().__init__()
            self.path = path
            self.closed = closed

    class Moved(Message):
        """The cursor is on another line."""

        def __init__(self, line: SpecLine) -> None:
            super().__init__()
            self.line = line

    def __init__(self) -> None:
        super().__init__(id="spec-tree", compact=True)
        self.lines: list[SpecLine] = []
        self.wanted: LinePath | None = None

    @property
    def line(self) -> SpecLine | None:
        """The line under the cursor."""
        return None if self.highlighted is None else self.lines[self.highlighted]

    def fill(
        self, lines: Sequence[SpecLine], widths: ColumnWidths, found: frozenset[LinePath]
    ) -> None:
        """Replace the lines; keep the cursor on its line if possible."""
        self.lines = list(lines)
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            self.add_options(_option(line, widths, line.path in found) for line in lines)
            self.highlighted = self._place_again()

    def go_to(self, path: LinePath) -> None:
        """Move the cursor to a line."""
        self.wanted = path
        at = next((n for n, line in enumerate(self.lines) if line.path == path), None)
        if at is not None:
            self.highlighted = at

    def action_close(self) -> None:
        """Fold the line under the cursor, or go to its parent."""
        line = self.line
        if line is None:
            return
        if line.members and not line.is_folded:
            self.post_message(self.Folded(line.path, True))
            return
        above = (each for each in self.lines if _is_ancestor(each.path, line.path))
        parent = max(above, key=lambda each: len(each.path), default=None)
        if parent is not None:
            self.go_to(parent.path)

    def action_open(self) -> None:
        """Unfold the line under the cursor, or go to its first member."""
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
        # At another place of the chain, stay on the same key.
        tail = None if self.wanted is None else self.wanted[1:]
        again = (n for n in keys if paths[n][1:] == tail)
        return next(again, keys[0] if keys else (0 if paths else None))


def _is_ancestor(one: LinePath, other: LinePath) -> bool:
    return len(one) < len(other) and other[: len(one)] == one


def _option(line: SpecLine, widths: ColumnWidths, found: bool) -> Option:
    pad = " " * (_INDENT * line.depth)
    if line.change is None:
        return Option(Content.assemble(pad, heading(line)), disabled=line.kind == "nothing")
    indent = _INDENT * (len(split_key(line.change.key)) - 1)
    label = key_label(line.text, line.change, widths, indent, found=found)
    return Option(Content.assemble(pad, label))
