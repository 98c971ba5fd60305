"""Which panes are shown, and how wide they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.css.scalar import Scalar
    from textual.widget import Widget

    from tdx.tui.screens.main import MainScreen

THREE_PANES = 116
"""Columns from which there is room for three panes; the names of all tabs must be seen."""
_NARROWEST = 18


class Panes:
    """Shows, expands and resizes the panes of the main screen.

    On a narrow screen the catalogue takes the place of the tabs while it is open.

    Args:
        screen: the screen.
    """

    def __init__(self, screen: MainScreen) -> None:
        self._screen = screen
        self._width: Scalar | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether there is no room for three panes."""
        return self._screen.size.width < THREE_PANES

    def show_catalogue(self) -> None:
        """Let the catalogue be seen."""
        self._screen.add_class("-catalogue")
        if self._expanded not in (None, "catalogue-pane"):
            self._shrink()

    def hide_catalogue_if_narrow(self) -> None:
        """Give its place back to the tabs."""
        self._screen.remove_class("-catalogue")

    def expand(self) -> None:
        """Give the focused pane the whole width, or bring the others back."""
        pane = self._focused_pane()
        if self._expanded is not None:
            self._shrink()
        elif pane is not None:
            self._width, pane.styles.width = pane.styles.width, None
            self._screen.add_class("-expanded")
            pane.add_class("-expanded")

    def resize(self, by: int) -> None:
        """Make the focused pane wider or narrower."""
        pane = self._focused_pane()
        if pane is None:
            return
        if pane.id == "tabs-pane":
            pane, by = self._screen.query_one("#chain-pane"), -by
        width = max(_NARROWEST, min(pane.size.width + 2 + by, self._screen.size.width - 30))
        pane.styles.width = width

    @property
    def _expanded(self) -> str | None:
        found = self._screen.query(".pane.-expanded")
        return found.first().id if found else None

    def _shrink(self) -> None:
        expanded = self._screen.query(".pane.-expanded")
        if expanded and self._width is not None:
            expanded.first().styles.width = self._width
        self._screen.remove_class("-expanded")
        self._screen.query(".pane").remove_class("-expanded")

    def _focused_pane(self) -> Widget | None:
        focused = self._screen.focused
        if focused is None:
            return None
        return next((each for each in focused.ancestors_with_self if "pane" in each.classes), None)  # type: ignore[return-value]
