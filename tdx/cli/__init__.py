"""The command line: parses arguments, calls a job and renders its result."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run ``tdx`` with the arguments of this process and exit with its exit code."""
    try:
        from tdx.cli.process import run

        code = run(sys.argv[1:])
        if code != _INTERRUPTED and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # The result is complete. Callbacks at exit would swallow a KeyboardInterrupt.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        # Another Ctrl-C would print a traceback during shutdown.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Python kills itself with SIGINT if the last exec() of a string was interrupted, as those
        # of dataclasses are, even if the exception was handled. This one becomes the last exec().
        exec("")
    sys.exit(code)
