"""Answer one request, whatever it does."""

from __future__ import annotations

import traceback
from importlib import import_module
from typing import Any

from tdx.errors import TdxError
from tdx.inspection.overview import Problem, find_user_line
from tdx.tui.backend.job import Job
from tdx.tui.backend.messages import Answer, Failure, Request


def answer(number: int, request: Request[Any], job: Job) -> Answer | Failure:
    """Run the function that a request names."""
    try:
        module, _, name = request.handler.partition(":")
        return Answer(number, getattr(import_module(module), name)(request, job))
    except TdxError as error:
        return Failure(number, Problem.of(error), traceback.format_exc())
    except (Exception, SystemExit) as error:
        return Failure(number, _unexpected(error), traceback.format_exc())


def _unexpected(error: BaseException) -> Problem:
    lines = str(error).strip().splitlines() or ["no message"]
    message = f"{type(error).__name__}: {lines[0]}"
    return Problem("TDX000", message, "F12 shows the traceback", origin=find_user_line(error))
