"""Specs at a place of the chain, as a tree of foldable lines and their text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from textual.content import Content

from tdx.foundation.keys import format_key, split_key
from tdx.foundation.text import count_text
from tdx.inspection.chain import Direction
from tdx.inspection.spec_report import KeyChange
from tdx.specs.leaf import INPUT_PARTS, PARTS, LeafSpec, domain_text
from tdx.tui.chain_status import ENV, ChainStatus, compact_shape, truncate_middle
from tdx.tui.workspace import Workspace

Freshness = Literal["fresh", "old", "none"]
DIRECTIONS = {"forward": "from the env", "inverse": "towards the env"}


@dataclass(frozen=True, slots=True)
class PlaceSpecs:
    """Specs at a place of the chain."""

    title: str
    changes: tuple[KeyChange, ...]
    # ``fresh`` if the specs are current, ``old`` if they are from an earlier inspection
    freshness: Freshness = "fresh"
    index: int | None = None  # index in the lineage. ``None`` for the env and the output

    def lane(self, name: str) -> list[KeyChange]:
        """Return the keys of one direction, sorted by part."""
        inverse = name == "inverse"
        changes = [change for change in self.changes if (change.part in INPUT_PARTS) is inverse]
        return sorted(changes, key=lambda change: PARTS.index(change.part))

    def leaves(self) -> Iterator[LeafSpec]:
        """Return the spec of each key: the one after the stage, or that of a removed key."""
        for change in self.changes:
            yield from [side for side in (change.after, change.before) if side is not None][:1]


def specs_at(workspace: Workspace, at: int | None = None) -> PlaceSpecs:
    """Return the specs at a place. ``None``: the selected place."""
    status = workspace.status
    place = workspace.place if at is None else at
    if status.overview is None:
        return PlaceSpecs("specs", (), "none")
    current = status.revision == workspace.editor.revision
    if place == ENV:
        own = ", ".join(status.overview.env_stages)
        title = f"env with its own {own}" if own else "env"
        return PlaceSpecs(
            title, _make_unchanged(status.overview.base), _freshness(current, status, None)
        )
    stages = workspace.draft.stages
    stage = stages[place] if 0 <= place < len(stages) else None
    if stage is None:
        return PlaceSpecs(
            "output, compared with the env",
            status.overview.changes,
            _freshness(current, status, None),
        )
    known = status.last_good.get(stage.number)
    title = f"after {place} {stage.config.name}"
    if known is None and stage.number in status.numbers:
        specs_before = status.overview.before(status.numbers.index(stage.number))
        return PlaceSpecs(f"before {place} {stage.config.name}", _make_unchanged(specs_before))
    if known is None:
        return PlaceSpecs(title, (), "none")
    working = status.overview.working
    index = working.index(known.index) if known.index in working else None
    fresh = _freshness(current and stage.enabled, status, stage.number)
    return PlaceSpecs(title, known.changes, fresh, index)


def _freshness(current: bool, status: ChainStatus, number: int | None) -> Freshness:
    return "fresh" if current and number not in status.problems else "old"


def _make_unchanged(leaves: Sequence[LeafSpec]) -> tuple[KeyChange, ...]:
    return tuple(KeyChange(leaf.part, leaf.key, leaf, leaf) for leaf in leaves)


LinePath = tuple[str, ...]
LineKind = Literal["place", "lane", "part", "group", "key", "nothing"]
_MIN_KEY, _MIN_DOMAIN, _MAX_DOMAIN = 10, 5, 16
"""Width that a key keeps, that a domain needs, and for which keys are shortened."""
_GAPS = 7
"""Width of the sign and the spaces between the columns."""
LANES: tuple[Direction, ...] = ("forward", "inverse")


@dataclass(frozen=True, slots=True)
class SpecLine:
    """A line of the tree."""

    path: LinePath  # identity: place, lane, part and names of a nested key
    kind: LineKind
    depth: int
    text: str
    change: KeyChange | None = None  # the key, if the line is one
    members: tuple[KeyChange, ...] = ()  # keys below a foldable line
    is_folded: bool = False  # true if the members are hidden

    @property
    def lane(self) -> Direction:
        """Direction of the line."""
        return "inverse" if "inverse" in self.path[:2] else "forward"

    @property
    def key(self) -> str | None:
        """The key as text, with dots."""
        return None if self.change is None else format_key(self.change.key)


def build_spec_lines(
    specs: PlaceSpecs,
    place: str,
    is_shown: Callable[[KeyChange], bool],
    is_folded: Callable[[LinePath], bool],
    *,
    with_place: bool = False,
) -> Iterator[SpecLine]:
    """Yield the lines for a place of the chain, whose name begins their paths."""
    lanes = {name: tuple(filter(is_shown, specs.lane(name))) for name in LANES}
    if with_place:
        folded = is_folded((place,))
        members = (*lanes["forward"], *lanes["inverse"])
        yield SpecLine((place,), "place", 0, specs.title, None, members, folded)
        if folded:
            return
    depth = int(with_place)
    for name, changes in lanes.items():
        path = (place, name)
        folded = is_folded(path)
        yield SpecLine(path, "lane", depth, name, None, changes, folded)
        if not folded:
            yield from _key_lines(path, changes, depth, is_folded)
            if not changes:
                yield SpecLine((*path, ""), "nothing", depth + 1, "nothing")


def _key_lines(
    lane: LinePath, changes: Sequence[KeyChange], depth: int, is_folded: Callable[[LinePath], bool]
) -> Iterator[SpecLine]:
    above: LinePath = ()
    for change in changes:
        *groups, name = (change.part, *split_key(change.key))
        hidden = False
        for level in range(1, len(groups) + 1):
            head = tuple(groups[:level])
            path = (*lane, *head)
            if above[:level] != head and not hidden:
                members = tuple(
                    other
                    for other in changes
                    if (other.part, *split_key(other.key)[:-1])[:level] == head
                )
                kind: LineKind = "part" if level == 1 else "group"
                at = depth + level - 1
                yield SpecLine(path, kind, at, head[-1], None, members, is_folded(path))
            hidden = hidden or is_folded(path)
        above = tuple(groups)
        if not hidden:
            # A group and a key may have the same name, so the path of a key has one more part.
            yield SpecLine((*lane, *groups, name, ""), "key", depth + len(groups), name, change)


_SIGNS = {"added": "+", "gone": "-", "changed": "~", "same": " "}
_COLORS = {"added": "$success", "gone": "$error", "changed": "$warning", "same": ""}


@dataclass(frozen=True, slots=True)
class ColumnWidths:
    """Widths of the columns."""

    key: int  # width of the keys with their indentation
    shape: int
    dtype: int
    device: int  # width of the devices; 0 if all are equal
    has_domain: bool = True

    @classmethod
    def of(
        cls, keys: Iterable[int], leaves: Iterable[LeafSpec], room: int | None = None
    ) -> ColumnWidths:
        """Return widths that fit all keys and specs.

        In a room, keys are shortened to leave some for shape, dtype and domain.
        """
        known = list(leaves)
        devices = {leaf.device for leaf in known}
        key = max(keys, default=0)
        shape = max((len(compact_shape(leaf)) for leaf in known), default=0)
        dtype = max((len(leaf.dtype) for leaf in known), default=0)
        device = max(map(len, devices)) if len(devices) > 1 else 0
        if room is not None:
            domain = max(
                (len(domain_text(leaf, whole=False, digits=4)) for leaf in known), default=0
            )
            left = room - shape - dtype - device - _GAPS
            if left - min(key, _MIN_KEY) < min(domain, _MIN_DOMAIN):
                return cls(min(key, max(_MIN_KEY, left + 1)), shape, dtype, device, False)
            key = min(key, max(_MIN_KEY, left - min(domain, _MAX_DOMAIN)))
        return cls(key, shape, dtype, device)


def key_label(
    name: str, change: KeyChange, widths: ColumnWidths, indent: int, *, found: bool = False
) -> Content:
    """Return the label of a key; a changed key shows its previous spec too."""
    color = _COLORS[change.change]
    struck = " strike" if change.change == "gone" else ""
    line = " bold underline" if found else ""
    name = truncate_middle(name, widths.key - indent)
    gap = " " * (widths.key - indent - cell_len(name))
    head = Content.assemble(
        (f"{_SIGNS[change.change]} ", f"bold {color}".strip()),
        (name, f"{color or '$foreground'}{struck}{line}"),
        f"{gap}  ",
    )
    leaf = change.after or change.before
    assert leaf is not None
    if change.change != "changed":
        style = color or "dim"
        shown = _columns(leaf, widths)[: 4 if widths.has_domain else 3]
        return Content.assemble(head, (" ".join(shown).rstrip(), style + struck))
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
        if differs and was and was != new.strip():
            old.append(was)
    if change.fields == ("kind",):
        old.append(before.kind)
    yield ("← " + " ".join(old), "dim")


def _columns(leaf: LeafSpec, widths: ColumnWidths) -> tuple[str, str, str, str]:
    shape, dtype, device, domain = _leaf_texts(leaf)
    device = device.ljust(widths.device) if widths.device else ""
    return shape.ljust(widths.shape), dtype.ljust(widths.dtype), device, domain


def _leaf_texts(leaf: LeafSpec) -> tuple[str, str, str, str]:
    domain = domain_text(leaf, whole=False, digits=4)
    return compact_shape(leaf), leaf.dtype, leaf.device, domain


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
        counts = [(f"  {count_text(len(line.members), 'key')}", "dim")]
        kinds: Counter[str] = Counter(change.change for change in line.members)
        for kind, mark, color in _COUNT_SIGNS:
            if kinds[kind]:
                counts.append((f" {mark}{kinds[kind]}", color))
        return Content.assemble((sign, "dim"), name, *counts)
    note = f"  {DIRECTIONS[line.text]}" if line.kind == "lane" else ""
    return Content.assemble((sign, "dim"), name, (note, "dim"))
