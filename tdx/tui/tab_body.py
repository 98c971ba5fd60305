"""What all tabs have in common: they draw only while they are seen, once for many changes."""

from __future__ import annotations

from textual.containers import Vertical
from textual.timer import Timer
from textual.widgets import TabPane

from tdx.tui.workspace import Workspace

DELAY = 0.04
"""Seconds for which a tab waits for more to change before it draws, so that keys go first."""


class TabBody(Vertical):
    """The widget of a tab.

    A subclass draws in :meth:`update`, and calls :meth:`changed` whenever something is another
    way than it was drawn; many changes in a row are drawn once, and none while another tab is in
    front.

    Args:
        workspace: the state of the app.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self.workspace = workspace
        self._stale = True
        self._timer: Timer | None = None

    def update(self) -> None:
        """Draw what is to be seen now."""
        raise NotImplementedError

    def enter(self) -> None:
        """What happens when a key brings the tab to the front; the focus stays where it is."""

    def begin_search(self) -> bool:
        """Put the cursor into the search field; whether there is one."""
        return False

    @property
    def is_seen(self) -> bool:
        """Whether this tab is the one in front."""
        pane = next((each for each in self.ancestors if isinstance(each, TabPane)), None)
        return pane is None or pane.display

    @property
    def is_drawn(self) -> bool:
        """Whether nothing waits to be drawn."""
        return not (self._stale and self.is_seen)

    def changed(self) -> None:
        """Draw soon, or when the tab comes to the front."""
        self._stale = True
        if self._timer is None and self.is_seen:
            self._timer = self.set_timer(DELAY, self._draw)

    def on_show(self) -> None:
        self.changed()

    def _draw(self) -> None:
        self._timer = None
        if self._stale and self.is_seen and self.is_mounted:
            self._stale = False
            self.update()
