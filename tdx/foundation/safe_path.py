"""Start Python processes that import nothing from the current folder.

``python -c`` and ``python -m`` put the current folder first on ``sys.path``: a ``pickle.py`` beside
a pipeline would run before the first line of a child process. So do the fork server, the resource
tracker and spawned processes of :mod:`multiprocessing`, which are ``python -c`` too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"


def python_command(*arguments: str) -> list[str]:
    """Return the command line of a Python process whose path has no current folder."""
    return [sys.executable, "-P", *arguments]


@contextmanager
def safe_path() -> Iterator[None]:
    """Start processes inside with a path without the current folder.

    For processes that a library starts, whose command line tdx does not choose; Python reads the
    variable unless it ignores its environment (``-E``). It is removed again in children of tdx, so
    that a script that an env starts finds the modules of its own folder.
    """
    with environment_variable(SAFE_PATH, "1"):
        yield


@contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set a variable inside, also for the processes that are started there."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
