"""What is left of a fault in the app itself: the edits, a traceback in a file, a few lines."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

from rich.text import Text

from tdx.errors import TdxError, summarize_error
from tdx.files import write_atomically
from tdx.settings import state_path

if TYPE_CHECKING:
    from tdx.tui.files.files import Files

NAME = "crash.txt"


def told_of_crash(files: Files) -> Text:
    """Put the session and the traceback of the error that is being dealt with in safety.

    Args:
        files: keeps the session.

    Returns:
        What the user is told.
    """
    error = sys.exception()
    what = "unknown" if error is None else summarize_error(error)
    lines = [f"error: tdx has a fault: {what}"]
    report = traceback.format_exc()
    path = state_path() / NAME
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, report.encode("utf-8", "backslashreplace"))
    except (OSError, TdxError):
        lines.append(report)
    else:
        lines.append(f"hint: {path} has the traceback, for whoever is to mend it")
    kept = files.keeper.works
    files.keeper.leave_for_later()
    if kept:
        lines.append("what was not saved is kept; the next tdx tui has it")
    return Text("\n".join(lines))
