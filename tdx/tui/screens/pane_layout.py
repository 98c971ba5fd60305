"""Which panes of the main screen are displayed; only displayed widgets get the focus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen
from textual.widget import Widget

if TYPE_CHECKING:
    from textual.css.scalar import Scalar
    from textual.dom import DOMNode


def is_displayed(widget: Widget) -> bool:
    """Return True if a widget and its ancestors are displayed, without waiting for a layout."""
    if not widget.is_attached:
        return False
    for node in widget.ancestors_with_self:
        if isinstance(node, Screen):
            return True
        if not node.display:
            return False
    return False


class FocusGuard(Screen[None]):
    """A screen on which only displayed widgets get the focus.

    All focus changes of Textual end in :meth:`set_focus`, also those after a widget is hidden or
    removed.
    """

    AUTO_FOCUS = ""  # it would take the first widget, displayed or not

    def fallback_focus(self) -> Widget | None:
        """Return the widget to focus if the intended one is not displayed."""
        return None

    def set_focus(
        self, widget: Widget | None, scroll_visible: bool = True, from_app_focus: bool = False
    ) -> None:
        """Focus a widget; use the fallback if it is not displayed."""
        focused = self.focused
        is_lost = focused is not None and not is_displayed(focused)
        if widget is None:
            widget = self.fallback_focus() if is_lost else None
        elif not is_displayed(widget):
            if focused is not None and not is_lost:
                return
            widget = self.fallback_focus()
        super().set_focus(widget, scroll_visible, from_app_focus)
        # The class changes the style of the pane alone, not those of the widgets in it.
        around = () if self.focused is None else self.focused.ancestors
        changed = [
            pane for pane in self.query(".pane") if pane.has_class("-focused") != (pane in around)
        ]
        for pane in changed:
            pane.set_class(pane in around, "-focused", update=False)
        self.app.stylesheet.update_nodes(changed)

    def move_hidden_focus(self) -> None:
        """Move the focus away from a hidden widget."""
        if self.focused is not None and not is_displayed(self.focused):
            self.set_focus(None)


THREE_PANES = 116
"""Minimum width for three panes; the titles of all tabs must fit."""
CATALOG_PANE, CHAIN_PANE, TABS_PANE = "catalog-pane", "chain-pane", "tabs-pane"
_MIN_WIDTH = 18
_TITLES = 76
"""Minimum width at which the titles of all tabs fit; below it, the others show their number."""
_MIN_CHAIN, _MIN_TINY_CHAIN = 30, 26
"""Minimum widths of the chain, as in the style sheet, and on a tiny screen."""
_MAX_SHARE = 1 / 4
"""Share of the screen that the chain takes at most."""
_MIN_TABS = 50
"""Width of the tabs that a wider chain leaves."""


class PaneLayout:
    """Shows, expands and resizes the panes of the main screen.

    The catalog is displayed while a transform is chosen: beside the others, or instead of the tabs
    on a narrow screen.
    """

    def __init__(self, screen: FocusGuard) -> None:
        self._screen = screen
        self._width: Scalar | None = None
        self._expanded: str | None = None
        self._has_catalog = False
        self._is_narrow = True
        self._is_resized = False
        self._chain_width = 0

    def fit(self, width: int) -> None:
        """Display the panes that fit on a screen of this width."""
        self._is_narrow = width < THREE_PANES
        self._screen.set_class(width < _TITLES, "-tiny")
        if self._is_narrow:
            self._screen.query_one(f"#{CATALOG_PANE}").styles.width = None
        self._display()
        self.widen_chain(self._chain_width)

    def widen_chain(self, width: int) -> None:
        """Show the lines of the chain in full, if there is room and the user has set no width.

        The pane never shrinks, so the tabs do not jump at each edit.
        """
        self._chain_width = max(self._chain_width, width)
        if self._is_resized or self._expanded is not None:
            return
        total = self._screen.size.width
        room = min(total - _MIN_TABS, int(total * _MAX_SHARE))
        least = _MIN_CHAIN if total >= _TITLES else _MIN_TINY_CHAIN
        pane = self._screen.query_one(f"#{CHAIN_PANE}")
        pane.styles.width = max(least, min(self._chain_width + 2, room))

    def show_catalog(self) -> None:
        """Display the catalog."""
        self._has_catalog = True
        if self._expanded != CATALOG_PANE:
            self.shrink()
        self._display()

    def hide_catalog(self) -> None:
        """Give the room of the catalog back to the tabs."""
        if self._has_catalog:
            self._has_catalog = False
            self._display()

    def reveal(self, name: str) -> None:
        """Restore the other panes if an expanded one hides the pane with this id."""
        if self._expanded not in (None, name):
            self.shrink()
        if name == TABS_PANE:
            self.hide_catalog()

    def reveal_around(self, node: DOMNode) -> None:
        """Restore the other panes if an expanded one hides a node."""
        pane = next(
            (ancestor for ancestor in node.ancestors_with_self if ancestor.has_class("pane")), None
        )
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
        if pane.id == TABS_PANE or (pane.id == CATALOG_PANE and self._is_narrow):
            pane, by = self._screen.query_one(f"#{CHAIN_PANE}"), -by
        self._is_resized = True
        pane.styles.width = max(_MIN_WIDTH, pane.size.width + 2 + by)

    def _display(self) -> None:
        """Set ``display`` on each pane.

        Style classes would take effect only after the next refresh, but a caller may move the focus
        at once.
        """
        displayed = {CHAIN_PANE, TABS_PANE}
        if self._expanded is not None:
            displayed = {self._expanded}
        elif self._has_catalog:
            displayed = {CHAIN_PANE, CATALOG_PANE} | (set() if self._is_narrow else {TABS_PANE})
        for pane in self._screen.query(".pane"):
            pane.display = pane.id in displayed
        self._screen.move_hidden_focus()

    def _focused_pane(self) -> Widget | None:
        focused = self._screen.focused
        if focused is None:
            return None
        panes = (node for node in focused.ancestors_with_self if "pane" in node.classes)
        return next(panes, None)  # type: ignore[return-value]
