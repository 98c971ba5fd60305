"""Start Python processes that import nothing from the current folder.

``python -c`` and ``python -m`` put the current folder first on ``sys.path``: a ``pickle.py`` beside
a pipeline would run before the first line of a child process. So do the fork server, the resource
tracker and spawned processes of :mod:`multiprocessing`, which are ``python -c`` too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_SAFE_PATH = "PYTHONSAFEPATH"


def python_command(*arguments: str) -> list[str]:
    """Return the command line of a Python process whose path has no current folder.

    Args:
        arguments: Arguments for Python, such as ``-c`` and a program.

    Example:
        >>> python_command("-c", "print(1)")[1:]
        ['-P', '-c', 'print(1)']
    """
    return [sys.executable, "-P", *arguments]


@contextmanager
def safe_path() -> Iterator[None]:
    """Start processes inside with a path without the current folder.

    For processes that a library starts, whose command line tdx does not choose; Python reads the
    variable unless it ignores its environment (``-E``). :func:`adopt_environ` removes it in workers
    of tdx, so that a script that an env starts finds the modules of its own folder.
    """
    with environment_variable(_SAFE_PATH, "1"):
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


def adopt_environ(environ: Mapping[str, str]) -> None:
    """Take over the environment variables of the parent; those of a fork server may be outdated.

    Args:
        environ: Variables of the parent, outside of :func:`safe_path`.
    """
    if _SAFE_PATH not in environ:
        os.environ.pop(_SAFE_PATH, None)
    os.environ.update(environ)
