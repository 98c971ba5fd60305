"""The process that answers requests: one thread listens, the main thread works."""

from __future__ import annotations

import ctypes
import faulthandler
import io
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from tdx.tui.backend.answering import answer
from tdx.tui.backend.job import Job
from tdx.tui.backend.messages import Ask, Cancel, Push, Ready, Tell

_PR_SET_PDEATHSIG = 1


def main(descriptor: int) -> None:
    """Answer what comes through the pipe until its other end is closed.

    Args:
        descriptor: this end of the pipe.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Where a library crashes, the output says in which call.
    faulthandler.enable()
    # What an env prints is in the log at once.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    _end_with_parent()
    # Where processors are few, the screen goes before what is computed for it.
    os.nice(10)
    _Worker(Connection(descriptor)).run()


def _end_with_parent() -> None:
    """Have the kernel end this process when the app is gone.

    The listening thread does so too, but cannot while a library that is stuck holds the lock of
    the interpreter. Only Linux knows how.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end() -> NoReturn:
    """End this process and all that it has started: there is nobody to answer any more."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class _Worker:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        self._jobs: dict[int, Job] = {}
        self._sending = threading.Lock()
        self._shelf: dict[str, Any] = {}

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        self._send(Ready())
        while True:
            ask = self._waiting.get()
            job = self._jobs[ask.number]
            if not job.cancelled:
                self._send(answer(ask.number, ask.request, job))
            del self._jobs[ask.number]

    def _listen(self) -> None:
        """Sort what comes in; where nothing can come any more the process ends, busy or not."""
        with suppress(EOFError, OSError):
            while True:
                message = self._pipe.recv()
                if isinstance(message, Ask):
                    number = message.number
                    self._jobs[number] = Job(self._pusher(number), self._shelf)
                    self._waiting.put(message)
                elif isinstance(message, Cancel | Tell):
                    self._pass_on(message)
        _end()

    def _pass_on(self, message: Cancel | Tell) -> None:
        job = self._jobs.get(message.number)
        if job is None:
            return
        if isinstance(message, Cancel):
            job.cancel()
        else:
            job.tell(message.value)

    def _pusher(self, number: int) -> Callable[[str, Any], None]:
        return lambda topic, value: self._send(Push(number, topic, value))

    def _send(self, message: object) -> None:
        try:
            with self._sending:
                self._pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            _end()
