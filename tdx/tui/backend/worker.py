"""Worker process: one thread receives messages, the main thread answers requests."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from tdx.foundation.errors import TdxError, find_user_line
from tdx.foundation.processes import MessagePipe, open_parent_pipe, prepare_program, serve_forks
from tdx.inspection.overview import Problem
from tdx.tui.backend.activity import ActivityRecord
from tdx.tui.backend.messages import (
    TRACEBACK_HINT,
    Answer,
    Cancel,
    Failure,
    Job,
    Push,
    Request,
    Send,
    Submit,
)


def answer(number: int, request: Request[object], job: Job) -> Answer | Failure:
    """Answer a request, or say why it cannot be answered."""
    try:
        return Answer(number, request.answer(job))
    except TdxError as error:
        return Failure(number, Problem.of(error), traceback.format_exc())
    except (Exception, SystemExit) as error:
        lines = str(error).strip().splitlines() or ["no message"]
        message = f"{type(error).__name__}: {lines[0]}"
        problem = Problem("TDX000", message, TRACEBACK_HINT, origin=find_user_line(error))
        return Failure(number, problem, traceback.format_exc())


def main(pipe: MessagePipe, activity_path: str) -> None:
    """Answer requests until the other end of the pipe is closed."""
    prepare_program(_NICE)
    activity = ActivityRecord(activity_path)
    # Both have it open. Windows deletes no file that is in use: there the app does it at the end.
    with suppress(OSError):
        os.unlink(activity_path)
    _Worker(pipe, activity).run()


def serve(bootstrap: str) -> NoReturn:
    """Fork workers from this process; ``bootstrap`` is the source of one that cannot be forked."""
    # What an inspection needs; plugins and code of users are imported in the forks.
    import numpy as np

    import tdx.core.transformed_env
    import tdx.envs.gym.gym_env
    import tdx.stacks.building
    import tdx.tui.backend.requests  # noqa: F401

    def run() -> None:
        # Forks would draw the same numbers.
        np.random.seed()
        main(open_parent_pipe(), sys.argv[-1])

    def preload() -> None:
        import tdx.tui.live.worker
        import tdx.tui.profile.worker  # noqa: F401

    serve_forks(run, bootstrap, preload)


_NICE = 2
"""Enough for the app to come first; a worker with more gets next to nothing on a busy machine."""


def _exit_group() -> NoReturn:
    """Exit this process and its child processes, because the app is gone."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class _Worker:
    def __init__(self, pipe: MessagePipe, activity: ActivityRecord) -> None:
        self._pipe, self._activity = pipe, activity
        self._queue: queue.SimpleQueue[Submit] = queue.SimpleQueue()
        self._jobs: dict[int, Job] = {}
        self._cache: dict[str, Any] = {}

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            message = self._queue.get()
            job = self._jobs[message.number]
            if not job.is_cancelled:
                reply = answer(message.number, message.request, job)
                self._activity.end()
                self._send(reply)
            del self._jobs[message.number]

    def _listen(self) -> None:
        """Sort incoming messages; exit when the pipe is closed, even if a request is running."""
        with suppress(EOFError, OSError):
            while True:
                message = self._pipe.recv()
                if isinstance(message, Submit):
                    push = partial(self._push, message.number)
                    self._jobs[message.number] = Job(push, self._cache, self._activity)
                    self._queue.put(message)
                elif isinstance(message, Cancel | Send):
                    job = self._jobs.get(message.number)
                    if job is not None and isinstance(message, Cancel):
                        job.cancel()
                    elif job is not None and isinstance(message, Send):
                        job.send(message.value)
        _exit_group()

    def _push(self, number: int, topic: str, value: object) -> None:
        self._send(Push(number, topic, value))

    def _send(self, message: object) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            _exit_group()
