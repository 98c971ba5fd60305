"""The specs as a tree of lines that can be folded, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tdx.inspection.chain import Direction
from tdx.inspection.spec_report import KeyChange
from tdx.keys import format_key, split_key
from tdx.tui.specs.spec_lines import PlaceSpecs

Path = tuple[str, ...]
Kind = Literal["place", "lane", "part", "group", "key", "nothing"]
LANES: tuple[Direction, ...] = ("forward", "inverse")


@dataclass(frozen=True, slots=True)
class Line:
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

    path: Path
    kind: Kind
    depth: int
    text: str
    change: KeyChange | None = None
    members: tuple[KeyChange, ...] = ()
    is_folded: bool = False

    @property
    def lane(self) -> Direction:
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


def spec_tree(
    specs: PlaceSpecs,
    place: str,
    is_shown: Callable[[KeyChange], bool],
    is_folded: Callable[[Path], bool],
    *,
    with_place: bool = False,
) -> Iterator[Line]:
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
        yield Line((place,), "place", 0, specs.title, None, members, folded)
        if folded:
            return
    depth = int(with_place)
    for name, changes in lanes.items():
        path = (place, name)
        folded = is_folded(path)
        yield Line(path, "lane", depth, name, None, changes, folded)
        if not folded:
            yield from _keys(path, changes, depth, is_folded)
            if not changes:
                yield Line((*path, ""), "nothing", depth + 1, "nothing")


def _keys(
    lane: Path, changes: Sequence[KeyChange], depth: int, is_folded: Callable[[Path], bool]
) -> Iterator[Line]:
    above: Path = ()
    for change in changes:
        *groups, name = (change.part, *split_key(change.key))
        hidden = False
        for level in range(1, len(groups) + 1):
            head = tuple(groups[:level])
            path = (*lane, *head)
            if above[:level] != head and not hidden:
                members = tuple(each for each in changes if _groups(each)[:level] == head)
                kind: Kind = "part" if level == 1 else "group"
                at = depth + level - 1
                yield Line(path, kind, at, head[-1], None, members, is_folded(path))
            hidden = hidden or is_folded(path)
        above = tuple(groups)
        if not hidden:
            # A group and a key may have the same name: the key's path has one more part.
            yield Line((*lane, *groups, name, ""), "key", depth + len(groups), name, change)


def _groups(change: KeyChange) -> Path:
    return (change.part, *split_key(change.key)[:-1])
