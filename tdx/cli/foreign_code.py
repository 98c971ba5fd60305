"""What envs and their libraries do to the process does not reach the user's terminal."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from tdx.errors import EnvError

_OUT, _ERR = 1, 2


@contextmanager
def foreign_code() -> Iterator[None]:
    """Run code of others inside.

    What it prints, also from C or in a worker process, goes to stderr: stdout holds the result
    and nothing else. Where it swallows a Ctrl-C, that is raised again at the end.

    Raises:
        EnvError: it called ``sys.exit``.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    with _interrupts_kept(), _printing_to_stderr():
        try:
            yield
        except SystemExit as error:
            raise EnvError(
                f"the env, or a library that it needs, called sys.exit({error.code!r})",
                hint="--debug shows where",
            ) from error


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupts:
            raise KeyboardInterrupt


@contextmanager
def _printing_to_stderr() -> Iterator[None]:
    with redirect_stdout(sys.stderr):
        _flush()
        try:
            kept = os.dup(_OUT)
            os.dup2(_ERR, _OUT)
        except OSError:
            # One of the two is closed: then there is nothing to keep apart.
            yield
            return
        try:
            yield
        finally:
            _flush()
            os.dup2(kept, _OUT)
            os.close(kept)


def _flush() -> None:
    for stream in (sys.__stdout__, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    # C code has a buffer of its own, which it would empty into the result later.
    ctypes.CDLL(None).fflush(None)
