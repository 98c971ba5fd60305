"""A request to print something."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from tdx.tui.backend.job import Job
from tdx.tui.backend.messages import Request


@dataclass(frozen=True, slots=True)
class Print(Request[None]):
    """Write a line to the output and one to the errors."""

    handler: ClassVar[str] = "tests.tui.printing:write"
    text: str


def write(request: Print, job: Job) -> None:
    sys.stdout.write(f"{request.text}\n")
    sys.stderr.write(f"careful, {request.text}\n")
