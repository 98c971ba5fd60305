"""The command line: reads what the user asks for, and shows what the jobs return."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run ``tdx`` on the arguments of this process, and end it with the right exit code."""
    try:
        from tdx.cli.process import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        from tdx.errors import ExitCode

        code = ExitCode.INTERRUPTED
    sys.exit(code)
