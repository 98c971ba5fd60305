"""Ctrl-C that is heard also where a library swallows it, and that ends the process in time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from select import select
from typing import Any, Self

from tdx.errors import EnvError, ExitCode

GRACE = 4.0
"""Seconds that a run has to end by itself after Ctrl-C."""


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


class InterruptWatch:
    """Notes Ctrl-C, and ends the process where it does not end by itself soon after.

    Whatever the main thread is busy with, an import, a call into C, or waiting for a worker that
    starts, a thread hears the signal through the wakeup descriptor. It has :data:`GRACE` seconds of
    patience; then it ends the worker processes, and this one with exit code 130.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._pressed = False
        self._reading, self._writing = -1, -1
        self._before = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._reading, self._writing = os.pipe()
            os.set_blocking(self._writing, False)
            self._before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, name="tdx-interrupts", daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        if self._writing >= 0:
            signal.set_wakeup_fd(self._before)
            # The thread gets the end of the pipe, and closes the other side.
            os.close(self._writing)

    @property
    def pressed(self) -> bool:
        """True if the user has pressed Ctrl-C."""
        return self._pressed or (self._reading >= 0 and bool(select([self._reading], (), (), 0)[0]))

    def _watch(self) -> None:
        while numbers := os.read(self._reading, 16):
            if signal.SIGINT in numbers:
                self._pressed = True
                if not self._ended.wait(GRACE):
                    end_children()
                    os._exit(ExitCode.INTERRUPTED)
                break
        if not self._pressed:
            os.close(self._reading)
            self._reading = -1


def end_children() -> None:
    """Kill the worker processes of this one, and the server that forks them."""
    children = sys.modules.get("multiprocessing.process")
    for child in children.active_children() if children is not None else ():
        with contextlib.suppress(OSError, ValueError, AssertionError):
            child.kill()
            child.join(1.0)
    server = sys.modules.get("multiprocessing.forkserver")
    pid = None if server is None else getattr(server._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        server._forkserver._forkserver_pid = None  # type: ignore[union-attr]
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    stop = None if tracker is None else getattr(tracker._resource_tracker, "_stop", None)
    if stop is not None:
        # It removes what the workers left in shared memory, and ends.
        with contextlib.suppress(Exception):
            stop()


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
