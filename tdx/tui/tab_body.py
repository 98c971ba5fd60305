"""What all tabs have in common: where the focus goes, and when they draw."""

from __future__ import annotations

from textual.containers import Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import TabPane

from tdx.tui.workspace import Workspace

DELAY = 0.04
"""Seconds for which a tab waits for more to change before it draws, so that keys go first."""


class TabBody(Vertical):
    """The widget of a tab.

    A subclass draws in :meth:`update`, and calls :meth:`changed` whenever something is another
    way than it was drawn; many changes in a row are drawn once, and none while another tab is in
    front. One whose keys are to be at hand as soon as it is seen names its :attr:`home`.

    Args:
        workspace: the state of the app.
        id: of the widget.
    """

    def __init__(self, workspace: Workspace, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.workspace = workspace
        self._stale = True
        self._timer: Timer | None = None
        self._is_entered = False

    def update(self) -> None:
        """Draw what is to be seen now; one that draws by itself has nothing to do here."""

    @property
    def home(self) -> Widget | None:
        """What has the focus when the tab comes to the front; None leaves it where it is."""
        return None

    def enter(self) -> None:
        """Take the focus, from whatever has it, now or as soon as the tab is seen."""
        self._is_entered = True
        if self.is_seen and self.is_mounted:
            self._take_focus()

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
        self.call_later(self._take_focus)

    def _take_focus(self) -> None:
        is_wanted = self._is_entered or self.screen.focused is None
        self._is_entered = False
        # By now another tab may be in front: to focus a widget brings its tab back.
        if is_wanted and self.is_seen and not self.has_focus_within:
            self.focus_home()

    def focus_home(self) -> None:
        """Put the focus where it is when the tab comes to the front."""
        if self.home is not None:
            self.screen.set_focus(self.home)

    def _draw(self) -> None:
        self._timer = None
        if self._stale and self.is_seen and self.is_mounted:
            self._stale = False
            self.update()
