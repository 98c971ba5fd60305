"""Layout of the Live tab: which panes have room, and the style sheet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pane = Literal["values", "plots", "images", "episodes", "manual"]
ArrangementForm = Literal["broad", "middle", "slim"]
PANES: tuple[Pane, ...] = ("values", "plots", "images", "episodes", "manual")
TITLES: dict[Pane, str] = {
    "values": "values",
    "plots": "plots",
    "images": "images",
    "episodes": "episodes",
    "manual": "manual",
}
_BROAD_SIZE = (92, 20)
_TALL_HEIGHT = 24


@dataclass(frozen=True, slots=True)
class PaneArrangement:
    """Panes that are displayed.

    Args:
        form: ``broad``: values next to the others; ``middle``: one more pane below; ``slim``: one
            pane.
        shown: Names of the panes.
    """

    form: ArrangementForm
    shown: frozenset[Pane]


def arrange_panes(
    width: int, height: int, front: Pane, *, has_images: bool, is_manual: bool
) -> PaneArrangement:
    """Choose the panes that have room.

    Args:
        width: Width of the tab.
        height: Height of the tab.
        front: Pane that is shown in any case.
        has_images: True if there are images.
        is_manual: True if actions are set by hand.

    Example:
        >>> sorted(arrange_panes(50, 20, "plots", has_images=False, is_manual=False).shown)
        ['plots']
        >>> sorted(arrange_panes(50, 40, "plots", has_images=False, is_manual=False).shown)
        ['plots', 'values']
    """
    if width >= _BROAD_SIZE[0] and height >= _BROAD_SIZE[1]:
        shown: set[Pane] = {"values", "plots", "episodes", front}
        shown |= {"images"} if has_images else set()
        shown |= {"manual"} if is_manual else set()
        return PaneArrangement("broad", frozenset(shown))
    if height >= _TALL_HEIGHT:
        second: Pane = "plots" if front == "values" else front
        return PaneArrangement("middle", frozenset({"values", second}))
    return PaneArrangement("slim", frozenset({front}))


CSS = """
LiveTab {
    height: 1fr;

    #live-choose { height: 1; width: 1fr; }
    #live-choose ActionLabel { margin-right: 2; }
    #live-body { height: 1fr; layout: vertical; }
    #live-main, #live-side { height: 1fr; }

    .live-pane {
        border-top: solid $foreground 25%;
        border-title-color: $text-muted;
        border-subtitle-color: $text-disabled;
    }
    .live-pane:focus {
        border-top: solid $primary;
        border-title-color: $text-primary;
        border-title-style: bold;
    }

    &.-slim .live-pane { border-top: none; }
    &.-middle {
        #live-side, #live-images { height: 14; }
        &.-small-side #live-side, &.-small-side #live-manual { height: auto; max-height: 14; }
    }

    &.-broad {
        #live-choose { display: none; }
        #live-body { layout: horizontal; }
        #live-main { width: 5fr; margin-right: 2; }
        #live-side { width: 3fr; }
        #live-episodes { height: 1fr; }
        #live-plots { height: 2fr; }
        #live-images { height: 1fr; min-height: 12; }
        #live-manual { height: auto; max-height: 10; }
    }
}
"""
