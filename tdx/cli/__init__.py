"""The command line: reads what the user asks for, and shows what the jobs return."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run ``tdx`` on the arguments of this process, and end it with the right exit code."""
    try:
        from tdx.cli.process import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        # Another Ctrl-C would print a traceback while Python ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Python ends itself by SIGINT if an interrupt came from within the last exec of a text,
        # as dataclasses do it, even where it was handled; this exec is then the last one.
        exec("")
    sys.exit(code)
