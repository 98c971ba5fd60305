"""An event loop that reports when it is idle, so that tests wait exactly as long as the app."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from textual.pilot import Pilot

from tests.processes import PATIENCE

LONGEST_WAIT = 1.0
"""Seconds after which an app that is never idle, such as one that plays, counts as idle."""
MOST_TURNS = 500
"""Turns of the event loop that it needs for that too: a slow machine makes few in a second."""
_SOON = 0.005
"""Time to the next timer, in seconds, from which on a waiting app is idle."""


class IdleSelector(selectors.DefaultSelector):
    """Selector that wakes waiting coroutines when the loop is about to block."""

    current: ClassVar[IdleSelector | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._waiters: list[asyncio.Future[None]] = []
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for file descriptors, or report that the loop is idle.

        Args:
            timeout: Seconds until the next timer. ``None``: no timer.
        """
        self._turns += 1
        if not self._waiters or (timeout is not None and timeout <= _SOON):
            return super().select(timeout)
        found = super().select(0)
        if not found:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        return found

    async def wait(self) -> None:
        """Wait until the loop has nothing to do."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        most = self._turns + MOST_TURNS
        await asyncio.wait([waiter], timeout=LONGEST_WAIT)
        while not waiter.done() and self._turns < most:
            await asyncio.wait([waiter], timeout=0.01)


async def wait_for_idle(min_sleep: float = 0.0, max_sleep: float = LONGEST_WAIT) -> None:
    """Wait until the app has nothing to do; replaces the function of Textual, which polls.

    Args:
        min_sleep: Not used: an idle app stays idle.
        max_sleep: Not used.
    """
    assert IdleSelector.current is not None
    await IdleSelector.current.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Args:
        condition: Polled between the turns of the event loop.

    Raises:
        TimeoutError: :data:`~tests.processes.PATIENCE` ran out, as only a hang makes it.
    """
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def resize(pilot: Pilot[Any], width: int, height: int) -> None:
    """Resize the terminal, and wait until the app applies it, 1/120 s later."""
    await pilot.resize_terminal(width, height)
    await asyncio.sleep(0.05)
    await wait_for_idle()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in its own event loop, which reports when it is idle.

    Args:
        main: The coroutine.
    """
    selector = IdleSelector.current = IdleSelector()
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            runner.run(main)
    finally:
        IdleSelector.current = None
