"""What the spec tree shows at a place of the chain, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tdx.inspection.leaf import INPUT_PARTS, PARTS, LeafSpec
from tdx.inspection.spec_report import KeyChange
from tdx.tui.workspace import ENV, Seen, Workspace

Freshness = Literal["fresh", "old", "none"]
DIRECTIONS = {"forward": "from the env to the outside", "inverse": "from the outside into the env"}


@dataclass(frozen=True, slots=True)
class PlaceSpecs:
    """The specs at one place.

    Args:
        title: what the place is called.
        changes: every key there, beside what it was before.
        freshness: whether it is what the chain does now, or what was seen of it before.
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


def place_specs(workspace: Workspace, at: int | None = None) -> PlaceSpecs:
    """What is known of the specs at a place, by default where the selection is."""
    seen = workspace.seen
    place = workspace.place if at is None else at
    if seen.overview is None:
        return PlaceSpecs("specs", (), "none")
    current = seen.revision == workspace.editor.revision
    if place == ENV:
        own = ", ".join(seen.overview.env_stages)
        title = f"the env with its own {own}" if own else "the env alone"
        return PlaceSpecs(title, _same(seen.overview.base), _freshness(current, seen, None))
    stages = workspace.draft.stages
    stage = stages[place] if 0 <= place < len(stages) else None
    if stage is None:
        return PlaceSpecs(
            "output, beside the env", seen.overview.changes, _freshness(current, seen, None)
        )
    known = seen.good.get(stage.number)
    title = f"after {place} {stage.config.name}"
    if known is None and stage.number in seen.numbers:
        given = seen.overview.before(seen.numbers.index(stage.number))
        return PlaceSpecs(f"before {place} {stage.config.name}", _same(given))
    if known is None:
        return PlaceSpecs(title, (), "none")
    working = seen.overview.working
    index = working.index(known.index) if known.index in working else None
    fresh = _freshness(current and stage.enabled, seen, stage.number)
    return PlaceSpecs(title, known.changes, fresh, index)


def _freshness(current: bool, seen: Seen, number: int | None) -> Freshness:
    return "fresh" if current and number not in seen.problems else "old"


def _same(leaves: Sequence[LeafSpec]) -> tuple[KeyChange, ...]:
    return tuple(KeyChange(leaf.part, leaf.key, leaf, leaf) for leaf in leaves)
