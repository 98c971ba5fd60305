"""Worker process: one thread receives messages, the main thread answers requests.

:data:`_HANDLERS` maps each request to the function that answers it. The modules of the tabs are
imported when their first request comes.
"""

from __future__ import annotations

import io
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from tdx.foundation.errors import TdxError
from tdx.foundation.processes import prepare_program
from tdx.inspection.overview import Problem, find_user_line
from tdx.tui.backend.activity import ActivityRecord
from tdx.tui.backend.messages import (
    Answer,
    Cancel,
    Failure,
    Job,
    Push,
    Request,
    Send,
    Submit,
)
from tdx.tui.backend.requests import (
    CheckChain,
    DumpRollout,
    FindUnstorable,
    FollowDump,
    InspectChain,
    ListEnvs,
    MeasureNorm,
    ObserveKeys,
    check_chain,
    dump_rollout,
    find_unstorable,
    inspect_chain,
    list_env_choices,
    measure_norm,
    observe_keys,
    report_dump,
)
from tdx.tui.contract.messages import CompareContract, FreezeContract
from tdx.tui.live.messages import RunSession
from tdx.tui.profile.messages import FindAdvice, MeasurePipeline

Handler = Callable[[Any, Job], Any]


def _run_session(request: RunSession, job: Job) -> None:
    from tdx.tui.live.worker import run_session

    run_session(request, job)


def _measure_pipeline(request: MeasurePipeline, job: Job) -> Any:
    from tdx.tui.profile.worker import measure_pipeline

    return measure_pipeline(request, job)


def _find_advice(request: FindAdvice, job: Job) -> Any:
    from tdx.tui.profile.worker import find_advice

    return find_advice(request, job)


def _compare_contract(request: CompareContract, job: Job) -> Any:
    from tdx.tui.contract.worker import compare_contract

    return compare_contract(request, job)


def _freeze_contract(request: FreezeContract, job: Job) -> Any:
    from tdx.tui.contract.worker import freeze_contract

    return freeze_contract(request, job)


_HANDLERS: dict[type[Request[Any]], Handler] = {
    InspectChain: inspect_chain,
    CheckChain: check_chain,
    ListEnvs: list_env_choices,
    ObserveKeys: observe_keys,
    DumpRollout: dump_rollout,
    FollowDump: report_dump,
    MeasureNorm: measure_norm,
    FindUnstorable: find_unstorable,
    RunSession: _run_session,
    MeasurePipeline: _measure_pipeline,
    FindAdvice: _find_advice,
    CompareContract: _compare_contract,
    FreezeContract: _freeze_contract,
}


def register_handler(kind: type[Request[Any]], handler: Handler) -> None:
    """Let a function answer all requests of a class.

    Args:
        kind: Class of the requests. The module that defines it calls this, so that the worker knows
            the handler as soon as it unpickles a request.
        handler: Called in the worker with the request and its job; returns the answer.
    """
    _HANDLERS[kind] = handler


def find_handler(kind: type[Request[Any]]) -> Handler:
    """Return the function that answers requests of a class."""
    return _HANDLERS[kind]


def answer(number: int, request: Request[Any], job: Job) -> Answer | Failure:
    """Call the handler of a request."""
    try:
        return Answer(number, find_handler(type(request))(request, job))
    except TdxError as error:
        return Failure(number, Problem.of(error), traceback.format_exc())
    except (Exception, SystemExit) as error:
        return Failure(number, _unexpected_problem(error), traceback.format_exc())


def _unexpected_problem(error: BaseException) -> Problem:
    lines = str(error).strip().splitlines() or ["no message"]
    message = f"{type(error).__name__}: {lines[0]}"
    return Problem("TDX000", message, "F12 shows the traceback", origin=find_user_line(error))


def main(descriptor: int, shared: int) -> None:
    """Answer requests until the other end of the pipe is closed.

    Args:
        descriptor: File descriptor of this end of the pipe.
        shared: File descriptor of the memory for what this process is doing.
    """
    prepare_program(_NICE)
    # Show the output of an env in the log at once.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    activity = ActivityRecord(shared)
    os.close(shared)
    _Worker(Connection(descriptor), activity).run()


_NICE = 2
"""Enough for the app to come first; a worker with more gets next to nothing on a busy machine."""


def _exit_group() -> NoReturn:
    """Exit this process and its child processes, because the app is gone."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class _Worker:
    def __init__(self, pipe: Connection, activity: ActivityRecord) -> None:
        self._pipe, self._activity = pipe, activity
        self._queue: queue.SimpleQueue[Submit] = queue.SimpleQueue()
        self._jobs: dict[int, Job] = {}
        self._send_lock = threading.Lock()
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
                    number = message.number
                    self._jobs[number] = Job(self._pusher(number), self._cache, self._activity)
                    self._queue.put(message)
                elif isinstance(message, Cancel | Send):
                    self._dispatch(message)
        _exit_group()

    def _dispatch(self, message: Cancel | Send) -> None:
        job = self._jobs.get(message.number)
        if job is None:
            return
        if isinstance(message, Cancel):
            job.cancel()
        else:
            job.send(message.value)

    def _pusher(self, number: int) -> Callable[[str, Any], None]:
        return lambda topic, value: self._send(Push(number, topic, value))

    def _send(self, message: object) -> None:
        try:
            with self._send_lock:
                self._pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            _exit_group()
