"""Keys and clicks are delivered one after another, also under load."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from textual import events
from textual.errors import NoWidget
from textual.message_pump import MessagePump
from textual.widget import Widget

if TYPE_CHECKING:
    from textual.app import App


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
    """

    def __init__(self, app: App[None], deliver: Callable[[QueuedEvent], Awaitable[None]]) -> None:
        self._app = app
        self._deliver = deliver
        self._waiting: deque[QueuedEvent] = deque()
        self._serial = 0
        self._is_busy = False
        self._timeout: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """True if all events are delivered and complete."""
        return not self._is_busy and not self._waiting

    async def put(self, event: QueuedEvent) -> None:
        """Deliver an event now, or when the previous keys and clicks are complete."""
        self._waiting.append(event)
        await self._deliver_waiting()

    def press(self, key: str) -> None:
        """Press a key on behalf of the event that is being handled, before the waiting events."""
        self._waiting.appendleft(events.Key(key, None))
        self._app.call_later(self._deliver_waiting)

    async def _deliver_waiting(self) -> None:
        """Deliver events up to the first one whose effect must be complete before the next."""
        while self._waiting and not self._is_busy:
            event = self._waiting.popleft()
            if isinstance(event, MouseScrollEvent):
                await self._deliver(event)
                continue
            self._is_busy = True
            self._serial += 1
            path: Sequence[MessagePump] = self._target(event).ancestors_with_self
            settle = partial(self._settle, self._serial, self._app.screen)
            give_up = partial(self._app.call_later, self._complete, self._serial)
            self._timeout = asyncio.get_running_loop().call_later(INPUT_TIMEOUT, give_up)
            await self._deliver(event)
            self._follow([*path, *path], settle)

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
            self._follow((now, self._app), partial(self._complete, serial))

    async def _complete(self, serial: int) -> None:
        if serial != self._serial or not self._is_busy:
            return
        self._is_busy = False
        if self._timeout is not None:
            self._timeout.cancel()
        await self._deliver_waiting()
