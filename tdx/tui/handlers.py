"""The functions that answer requests, imported in a worker when the first request comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tdx.tui.backend.messages import Job, Request
from tdx.tui.compose.requests import (
    CheckChain,
    InspectChain,
    ListEnvs,
    check_chain,
    inspect_chain,
    list_env_choices,
)
from tdx.tui.files.dumping import DumpRollout, dump_rollout
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


_HANDLERS: dict[type[Request[Any]], Handler] = {
    InspectChain: inspect_chain,
    CheckChain: check_chain,
    ListEnvs: list_env_choices,
    DumpRollout: dump_rollout,
    RunSession: _run_session,
    MeasurePipeline: _measure_pipeline,
    FindAdvice: _find_advice,
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
