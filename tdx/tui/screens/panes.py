"""Visibility and width of the panes of the main screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdx.tui.keyboard import FocusGuard

if TYPE_CHECKING:
    from textual.css.scalar import Scalar
    from textual.dom import DOMNode
    from textual.widget import Widget


THREE_PANES = 116
"""Minimum width for three panes; the titles of all tabs must fit."""
CATALOG_PANE, CHAIN_PANE, TABS_PANE = "catalog-pane", "chain-pane", "tabs-pane"
_MIN_WIDTH = 18


class PaneLayout:
    """Shows, expands and resizes the panes of the main screen.

    On a narrow screen the catalog replaces the tabs while it is open.

    Args:
        screen: The main screen.
    """

    def __init__(self, screen: FocusGuard) -> None:
        self._screen = screen
        self._width: Scalar | None = None
        self._expanded: str | None = None
        self._has_catalog = False
        self._is_narrow = True

    def fit(self, width: int) -> None:
        """Display the panes that fit on a screen of this width."""
        self._is_narrow = width < THREE_PANES
        self._display()

    def show_catalog(self) -> None:
        """Display the catalog."""
        self._has_catalog = True
        if self._expanded != CATALOG_PANE:
            self.shrink()
        self._display()

    def hide_catalog_if_narrow(self) -> None:
        """On a narrow screen, display the tabs instead of the catalog."""
        self._has_catalog = False
        self._display()

    def reveal(self, name: str) -> None:
        """Restore the other panes if an expanded one hides the pane with this id."""
        if self._expanded not in (None, name):
            self.shrink()
        if name == TABS_PANE:
            self.hide_catalog_if_narrow()

    def reveal_around(self, node: DOMNode) -> None:
        """Restore the other panes if an expanded one hides a node."""
        pane = next((each for each in node.ancestors_with_self if each.has_class("pane")), None)
        if pane is not None and pane.id is not None and not pane.display:
            self.reveal(pane.id)

    @property
    def is_expanded(self) -> bool:
        """True if one pane has the full width."""
        return self._expanded is not None

    def expand(self) -> None:
        """Give the focused pane the full width, or restore the others."""
        pane = self._focused_pane()
        if self._expanded is not None:
            self.shrink()
        elif pane is not None:
            self._width, pane.styles.width = pane.styles.width, None
            self._expanded = pane.id
            pane.add_class("-expanded")
            self._display()

    def shrink(self) -> None:
        """Restore the panes that an expanded one hides."""
        if self._expanded is None:
            return
        pane = self._screen.query_one(f"#{self._expanded}")
        if self._width is not None:
            pane.styles.width = self._width
        pane.remove_class("-expanded")
        self._expanded = None
        self._display()

    def resize(self, by: int) -> None:
        """Make the focused pane wider or narrower."""
        pane = self._focused_pane()
        if pane is None:
            return
        if pane.id == TABS_PANE:
            pane, by = self._screen.query_one(f"#{CHAIN_PANE}"), -by
        width = max(_MIN_WIDTH, min(pane.size.width + 2 + by, self._screen.size.width - 30))
        pane.styles.width = width

    def _displayed(self) -> set[str]:
        if self._expanded is not None:
            return {self._expanded}
        if self._is_narrow:
            return {CHAIN_PANE, CATALOG_PANE if self._has_catalog else TABS_PANE}
        return {CATALOG_PANE, CHAIN_PANE, TABS_PANE}

    def _display(self) -> None:
        """Set ``display`` on each pane.

        Style classes would take effect only after the next refresh, but a caller may move the focus
        at once.
        """
        displayed = self._displayed()
        for pane in self._screen.query(".pane"):
            pane.display = pane.id in displayed
        self._screen.move_hidden_focus()

    def _focused_pane(self) -> Widget | None:
        focused = self._screen.focused
        if focused is None:
            return None
        return next((each for each in focused.ancestors_with_self if "pane" in each.classes), None)  # type: ignore[return-value]
