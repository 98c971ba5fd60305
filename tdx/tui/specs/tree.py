"""Specs at a place of the chain, as a tree of foldable lines (plain data)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tdx.inspection.leaf import INPUT_PARTS, PARTS, LeafSpec
from tdx.inspection.spec_report import KeyChange
from tdx.inspection.stage_flow import LaneName
from tdx.keys import format_key, key_parts
from tdx.tui.workspace import ENV, ChainStatus, Workspace

Freshness = Literal["fresh", "old", "none"]
DIRECTIONS = {"forward": "from the env to the outside", "inverse": "from the outside into the env"}


@dataclass(frozen=True, slots=True)
class PlaceSpecs:
    """The specs at one place.

    Args:
        title: what the place is called.
        changes: every key there, beside what it was before.
        freshness: whether it is what the chain does now, or what was status of it before.
        index: its stage in the overview's lineage; none for the env and the output.
    """

    title: str
    changes: tuple[KeyChange, ...]
    freshness: Freshness = "fresh"
    index: int | None = None

    def lane(self, name: str) -> list[KeyChange]:
        """The keys of one direction, part after part."""
        inverse = name == "inverse"
        found = [each for each in self.changes if (each.part in INPUT_PARTS) is inverse]
        return sorted(found, key=lambda change: PARTS.index(change.part))

    def leaves(self) -> Iterator[LeafSpec]:
        """Every spec on both sides."""
        for change in self.changes:
            yield from (side for side in (change.before, change.after) if side is not None)


def specs_at(workspace: Workspace, at: int | None = None) -> PlaceSpecs:
    """What is known of the specs at a place, by default where the selection is."""
    status = workspace.status
    place = workspace.place if at is None else at
    if status.overview is None:
        return PlaceSpecs("specs", (), "none")
    current = status.revision == workspace.editor.revision
    if place == ENV:
        own = ", ".join(status.overview.env_stages)
        title = f"the env with its own {own}" if own else "the env alone"
        return PlaceSpecs(
            title, _unchanged(status.overview.base), _freshness(current, status, None)
        )
    stages = workspace.draft.stages
    stage = stages[place] if 0 <= place < len(stages) else None
    if stage is None:
        return PlaceSpecs(
            "output, beside the env", status.overview.changes, _freshness(current, status, None)
        )
    known = status.last_good.get(stage.number)
    title = f"after {place} {stage.config.name}"
    if known is None and stage.number in status.numbers:
        given = status.overview.before(status.numbers.index(stage.number))
        return PlaceSpecs(f"before {place} {stage.config.name}", _unchanged(given))
    if known is None:
        return PlaceSpecs(title, (), "none")
    working = status.overview.working
    index = working.index(known.index) if known.index in working else None
    fresh = _freshness(current and stage.enabled, status, stage.number)
    return PlaceSpecs(title, known.changes, fresh, index)


def _freshness(current: bool, status: ChainStatus, number: int | None) -> Freshness:
    return "fresh" if current and number not in status.problems else "old"


def _unchanged(leaves: Sequence[LeafSpec]) -> tuple[KeyChange, ...]:
    return tuple(KeyChange(leaf.part, leaf.key, leaf, leaf) for leaf in leaves)


LinePath = tuple[str, ...]
LineKind = Literal["place", "lane", "part", "group", "key", "nothing"]
LANES: tuple[LaneName, ...] = ("forward", "inverse")


@dataclass(frozen=True, slots=True)
class SpecLine:
    """One line of the tree.

    Args:
        path: what it stands for: the place, the lane, the part, the names of a nested key.
        kind: what it is.
        depth: how far it stands to the right.
        text: its name.
        change: the key, where it is one.
        members: the keys below it, where it can be folded.
        is_folded: whether they are hidden.
    """

    path: LinePath
    kind: LineKind
    depth: int
    text: str
    change: KeyChange | None = None
    members: tuple[KeyChange, ...] = ()
    is_folded: bool = False

    @property
    def lane(self) -> LaneName:
        """The direction that it belongs to."""
        return "inverse" if "inverse" in self.path[:2] else "forward"

    @property
    def counts(self) -> Counter[str]:
        """How many of the keys below are added, gone, changed or the same."""
        return Counter(change.change for change in self.members)

    @property
    def key(self) -> str | None:
        """The key, with dots."""
        return None if self.change is None else format_key(self.change.key)


def build_spec_lines(
    specs: PlaceSpecs,
    place: str,
    is_shown: Callable[[KeyChange], bool],
    is_folded: Callable[[LinePath], bool],
    *,
    with_place: bool = False,
) -> Iterator[SpecLine]:
    """The lines for one place of the chain.

    Args:
        specs: what is known of it.
        place: its name in the paths.
        is_shown: which keys are wanted.
        is_folded: whether what is below a path is hidden.
        with_place: whether the place has a line of its own, over all others.
    """
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
        *groups, name = (change.part, *key_parts(change.key))
        hidden = False
        for level in range(1, len(groups) + 1):
            head = tuple(groups[:level])
            path = (*lane, *head)
            if above[:level] != head and not hidden:
                members = tuple(each for each in changes if _key_groups(each)[:level] == head)
                kind: LineKind = "part" if level == 1 else "group"
                at = depth + level - 1
                yield SpecLine(path, kind, at, head[-1], None, members, is_folded(path))
            hidden = hidden or is_folded(path)
        above = tuple(groups)
        if not hidden:
            # A group and a key may have the same name: the key's path has one more part.
            yield SpecLine((*lane, *groups, name, ""), "key", depth + len(groups), name, change)


def _key_groups(change: KeyChange) -> LinePath:
    return (change.part, *key_parts(change.key)[:-1])
