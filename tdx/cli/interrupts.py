"""Ctrl-C that is heard also where a library swallows it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def heard_interrupts() -> Iterator[Callable[[], None]]:
    """Give a function that raises again what was swallowed.

    Python drops an exception that is raised while an object is taken away, so an interrupt that
    comes just then is lost. Libraries that take many small objects away, as h5py does, lose a
    good part of them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    pressed = False

    def on_signal(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    def on_unraisable(lost: Any) -> None:
        if lost.exc_type is not KeyboardInterrupt:
            hook(lost)

    signal.signal(signal.SIGINT, on_signal)
    sys.unraisablehook = on_unraisable
    try:
        yield check
        check()
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook
