"""Which widgets may have the focus: only those that are displayed."""

from __future__ import annotations

from textual.screen import Screen
from textual.widget import Widget


def is_displayed(widget: Widget) -> bool:
    """True if a widget and everything around it is displayed; does not wait for a layout."""
    if not widget.is_attached:
        return False
    for node in widget.ancestors_with_self:
        if isinstance(node, Screen):
            return True
        if not node.display:
            return False
    return False


class FocusGuard(Screen[None]):
    """A screen on which a widget that is not displayed never has the focus.

    All focus moves of Textual end in :meth:`set_focus`, also those after a widget was hidden or
    removed, so this is the place that decides.
    """

    AUTO_FOCUS = ""  # it would take the first widget, displayed or not

    def fallback_focus(self) -> Widget | None:
        """The widget that has the focus when the one that should have it is not displayed."""
        return None

    def set_focus(
        self, widget: Widget | None, scroll_visible: bool = True, from_app_focus: bool = False
    ) -> None:
        """Give the focus to a widget; to another one where that is not displayed.

        Args:
            widget: The widget; ``None``: no focus.
            scroll_visible: Scroll to the widget.
            from_app_focus: True if the terminal has got the focus back.
        """
        focused = self.focused
        is_lost = focused is not None and not is_displayed(focused)
        if widget is None:
            widget = self.fallback_focus() if is_lost else None
        elif not is_displayed(widget):
            if focused is not None and not is_lost:
                return
            widget = self.fallback_focus()
        super().set_focus(widget, scroll_visible, from_app_focus)

    def move_hidden_focus(self) -> None:
        """Move the focus away from a widget that is no longer displayed."""
        if self.focused is not None and not is_displayed(self.focused):
            self.set_focus(None)
