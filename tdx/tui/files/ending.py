"""What happens when the app is ended from outside: a signal, or a terminal that is closed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.files.files import Files

SECONDS = 1.0
_STDIN = 0
_MESSAGE = "tdx: ended by a signal; what was not saved is kept, the next tdx tui has it"


def watch_signals(app: App[None], files: Files, close: Callable[[], None]) -> None:
    """Keep the session when the process is told to end.

    Args:
        app: left in good order on SIGTERM and SIGINT, so that the terminal is as it was.
        files: keeps the session.
        close: ends what the app has started.
    """
    loop = asyncio.get_running_loop()

    def told(number: int) -> None:
        files.keeper.leave_for_later()
        app.exit(return_code=128 + number, message=_MESSAGE)

    def hung_up() -> None:
        files.keeper.leave_for_later()
        close()
        # There is no terminal any more that could be put in order.
        os._exit(128 + signal.SIGHUP)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, number)
    loop.add_signal_handler(signal.SIGHUP, hung_up)
    if os.isatty(_STDIN):
        # Only the leader of a session is told; others would live on with nobody to see them.
        app.set_interval(SECONDS, lambda: None if os.isatty(_STDIN) else hung_up())
