"""Which panes of the tab are shown: all side by side, two, or one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pane = Literal["values", "curves", "pictures", "episodes", "hand"]
Form = Literal["broad", "middle", "slim"]
PANES: tuple[Pane, ...] = ("values", "curves", "pictures", "episodes", "hand")
TITLES: dict[Pane, str] = {
    "values": "values",
    "curves": "charts",
    "pictures": "pixels",
    "episodes": "episodes",
    "hand": "hand",
}
_BROAD = (92, 20)
_TALL = 24


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What is shown.

    Args:
        form: ``broad`` with the values beside the others, ``middle`` with one more below them,
            ``slim`` with one alone.
        shown: the panes.
    """

    form: Form
    shown: frozenset[Pane]


def arranged(width: int, height: int, front: Pane, *, pixels: bool, by_hand: bool) -> Arrangement:
    """The panes that there is room for.

    Args:
        width: of the tab.
        height: likewise.
        front: the one that the user wants to see.
        pixels: whether there are images.
        by_hand: whether actions are chosen by hand.

    Example:
        >>> sorted(arranged(50, 20, "curves", pixels=False, by_hand=False).shown)
        ['curves']
        >>> sorted(arranged(50, 40, "curves", pixels=False, by_hand=False).shown)
        ['curves', 'values']
    """
    if width >= _BROAD[0] and height >= _BROAD[1]:
        wanted: set[Pane] = {"values", "curves", "episodes", front}
        wanted |= {"pictures"} if pixels else set()
        wanted |= {"hand"} if by_hand else set()
        return Arrangement("broad", frozenset(wanted))
    if height >= _TALL:
        beside: Pane = "curves" if front == "values" else front
        return Arrangement("middle", frozenset({"values", beside}))
    return Arrangement("slim", frozenset({front}))
