"""Shutdown after a crash, a signal or a closed terminal: keep unsaved edits and report."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from tdx.errors import TdxError, summarize_error
from tdx.files import write_atomically
from tdx.settings import state_path

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.files.autosave import Autosave

REPORT_NAME = "crash.txt"
TERMINAL_CHECK_INTERVAL = 1.0
_STDIN = 0
_SIGNAL_MESSAGE = "tdx: stopped by a signal; unsaved edits are kept for the next start of tdx tui"


def report_crash(autosave: Autosave) -> Text:
    """Save the session and the traceback of the current exception.

    Args:
        autosave: Keeps the session.

    Returns:
        The message for the user.
    """
    error = sys.exception()
    what = "unknown" if error is None else summarize_error(error)
    lines = [f"error: internal error in tdx: {what}"]
    report = traceback.format_exc()
    path = state_path() / REPORT_NAME
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, report.encode("utf-8", "backslashreplace"))
    except (OSError, TdxError):
        lines.append(report)
    else:
        lines.append(f"hint: the traceback is in {path}; please attach it to a bug report")
    is_kept = autosave.is_available
    autosave.keep_for_next_start()
    if is_kept:
        lines.append("unsaved edits are kept for the next start of tdx tui")
    return Text("\n".join(lines))


def watch_signals(app: App[None], autosave: Autosave, close: Callable[[], None]) -> None:
    """Keep the session when the process is asked to exit.

    Args:
        app: Exits on SIGTERM and SIGINT, so that the terminal is restored.
        autosave: Keeps the session.
        close: Ends the worker processes.
    """
    loop = asyncio.get_running_loop()

    def exit_app(number: int) -> None:
        autosave.keep_for_next_start()
        app.exit(return_code=128 + number, message=_SIGNAL_MESSAGE)

    def hang_up() -> None:
        autosave.keep_for_next_start()
        close()
        # The terminal is gone, so nothing can be restored.
        os._exit(128 + signal.SIGHUP)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, exit_app, number)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    if os.isatty(_STDIN):
        # Only the session leader gets SIGHUP; any other process would outlive its terminal.
        app.set_interval(TERMINAL_CHECK_INTERVAL, lambda: None if os.isatty(_STDIN) else hang_up())
