"""Ctrl-C and workers: it is the parent's to handle, never theirs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.connection import wait

_GRACE = 5.0


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Deliver Ctrl-C only when the block has ended.

    A process that is started inside has it blocked from its first instruction on, so that it
    cannot be interrupted, and print a traceback, before it is able to say that it ignores it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    # Blocking is not enough: the signal may reach another thread, and is handled in this one.
    handler = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if pressed and callable(handler):
            handler(signal.SIGINT, None)


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, and let it end this process with ``SIGTERM``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_with_parent() -> None:
    """End this process soon after its parent has ended, whatever it is busy with."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    wait([sentinel])
    time.sleep(_GRACE)
    os._exit(1)
