"""Where a key goes: the order of keys, the widget that has the focus, and the displayed panes.

:class:`InputQueue` delivers keys one after another, :class:`FocusGuard` keeps the focus on
displayed widgets, and :class:`PaneLayout` decides which panes are displayed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from textual import events
from textual.errors import NoWidget
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.widget import Widget

if TYPE_CHECKING:
    from textual.app import App
    from textual.css.scalar import Scalar
    from textual.dom import DOMNode


KeyboardEvent = events.Key | events.Paste
MouseButtonEvent = events.MouseDown | events.MouseUp
MouseScrollEvent = (
    events.MouseScrollDown | events.MouseScrollUp | events.MouseScrollLeft | events.MouseScrollRight
)
QueuedEvent = KeyboardEvent | MouseButtonEvent | MouseScrollEvent
INPUT_TIMEOUT = 5.0
"""Seconds after which the next event is delivered even if the previous one is not complete."""


class InputQueue:
    """Delays keys, clicks and scrolling until the effect of the previous key or click is complete.

    Textual hands a key to the widget that has the focus when the key arrives, and a click to the
    widget under the mouse; that widget acts on it when its queue gets there. Under load, a key that
    moves the focus, such as ``Tab``, may not have been handled when the next events arrive: keys
    would then go to the wrong widget, and a click would move the focus before earlier keys arrive.

    An event passes through the queues of the widget, of its ancestors, of the screen and of the
    app, which runs the bound action; messages posted by the action pass through the same queues
    again. So an event is complete when a callback queued after it has passed through them twice.

    ``tests/tui/test_typing.py`` fails without the queue, at 10 ms between two keys.

    Scrolling waits for earlier keys and clicks, but later events do not wait for it: it neither
    moves the focus nor opens a dialog. Mouse moves are not queued.

    Args:
        app: The app.
        deliver: Hands an event to its widget.
    """

    def __init__(self, app: App[None], deliver: Callable[[QueuedEvent], Awaitable[None]]) -> None:
        self._app = app
        self._deliver = deliver
        self._waiting: deque[QueuedEvent] = deque()
        self._serial = 0
        self._is_busy = self._is_held = False
        self._timeout: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """True if all events are delivered and complete."""
        return not self._is_busy and not self._waiting

    def hold(self) -> None:
        """Delay all events until :meth:`release`, because their target does not exist yet."""
        self._is_held = True

    async def release(self) -> None:
        """Deliver the delayed events, and all later ones."""
        self._is_held = False
        await self._deliver_waiting()

    async def put(self, event: QueuedEvent) -> None:
        """Deliver an event now, or when the previous keys and clicks are complete."""
        self._waiting.append(event)
        await self._deliver_waiting()

    def press(self, key: str) -> None:
        """Press a key on behalf of the event that is being handled, before the waiting events.

        Args:
            key: Name of the key.
        """
        self._waiting.appendleft(events.Key(key, None))
        self._app.call_later(self._deliver_waiting)

    async def _deliver_waiting(self) -> None:
        """Deliver events up to the first one whose effect must be complete before the next."""
        while self._waiting and not self._is_busy and not self._is_held:
            event = self._waiting.popleft()
            if isinstance(event, MouseScrollEvent):
                await self._deliver(event)
            else:
                await self._deliver_and_follow(event)

    async def _deliver_and_follow(self, event: KeyboardEvent | MouseButtonEvent) -> None:
        self._is_busy = True
        self._serial = serial = self._serial + 1
        screen = self._app.screen
        path: Sequence[MessagePump] = self._target(event).ancestors_with_self
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(
            INPUT_TIMEOUT, lambda: self._app.call_later(self._complete, serial)
        )
        await self._deliver(event)
        self._follow([*path, *path], lambda: self._settle(serial, screen))

    def _target(self, event: KeyboardEvent | MouseButtonEvent) -> Widget:
        """Return the widget that gets an event."""
        if isinstance(event, KeyboardEvent):
            return self._app.focused or self._app.screen
        if self._app.mouse_captured is not None:
            return self._app.mouse_captured
        try:
            return self._app.get_widget_at(event.x, event.y)[0]
        except NoWidget:
            return self._app.screen

    def _follow(self, path: Sequence[MessagePump], then: Callable[[], Awaitable[None]]) -> None:
        """Pass a callback through the queues of a path, skipping closed ones."""
        for at, node in enumerate(path):
            rest = path[at + 1 :]
            step = partial(self._follow, rest, then) if rest else then
            if node.call_later(step):
                return

    async def _settle(self, serial: int, screen: MessagePump) -> None:
        """Wait for a dialog that the event has opened or closed."""
        if serial != self._serial:
            return
        now = self._app.screen
        if now is screen:
            await self._complete(serial)
        else:
            self._follow((now, self._app), lambda: self._complete(serial))

    async def _complete(self, serial: int) -> None:
        if serial != self._serial or not self._is_busy:
            return
        self._is_busy = False
        if self._timeout is not None:
            self._timeout.cancel()
        await self._deliver_waiting()


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
        """Focus a widget; use the fallback if it is not displayed.

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
        self._mark_focused_pane()

    def _mark_focused_pane(self) -> None:
        """Set the class ``-focused`` of the panes. It changes the style of the pane alone."""
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
_MIN_CHAIN = 30
"""Minimum width of the chain, as in the style sheet."""
_MAX_SHARE = 1 / 3
"""Share of the screen that the chain takes at most."""
_CATALOG_WIDTH = 30
_MIN_TABS = 50
"""Width of the tabs that a wider chain leaves."""


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
        self._is_resized = False
        self._chain_width = 0

    def fit(self, width: int) -> None:
        """Display the panes that fit on a screen of this width."""
        self._is_narrow = width < THREE_PANES
        if self._is_narrow:
            self._screen.query_one(f"#{CATALOG_PANE}").styles.width = None
        self._display()
        self.widen_chain(self._chain_width)

    def widen_chain(self, width: int) -> None:
        """Show the lines of the chain in full, if there is room and the user has set no width.

        The pane never shrinks, so the tabs do not jump at each edit.

        Args:
            width: Width of the longest line.
        """
        self._chain_width = max(self._chain_width, width)
        if self._is_resized or self._expanded is not None:
            return
        total = self._screen.size.width
        room = total - _MIN_TABS - (0 if self._is_narrow else _CATALOG_WIDTH)
        room = min(room, int(total * _MAX_SHARE))
        pane = self._screen.query_one(f"#{CHAIN_PANE}")
        pane.styles.width = max(_MIN_CHAIN, min(self._chain_width + 2, room))

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

    def _visible_panes(self) -> set[str]:
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
        displayed = self._visible_panes()
        for pane in self._screen.query(".pane"):
            pane.display = pane.id in displayed
        self._screen.move_hidden_focus()

    def _focused_pane(self) -> Widget | None:
        focused = self._screen.focused
        if focused is None:
            return None
        panes = (node for node in focused.ancestors_with_self if "pane" in node.classes)
        return next(panes, None)  # type: ignore[return-value]
