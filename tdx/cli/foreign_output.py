"""What envs and their libraries print is kept out of the result on stdout."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

_OUT, _ERR = 1, 2


@contextmanager
def on_stderr() -> Iterator[None]:
    """Let all that is printed inside go to stderr, also by C code and by worker processes."""
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
        if stream is not None:
            stream.flush()
    # C code has a buffer of its own, which it would empty into the result later.
    ctypes.CDLL(None).fflush(None)
