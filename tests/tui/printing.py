"""Request that prints."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tdx.tui.backend.messages import Job, Request
from tdx.tui.backend.worker import register_handler


@dataclass(frozen=True, slots=True)
class Print(Request[None]):
    """Write a line to stdout and one to stderr."""

    text: str


def write(request: Print, job: Job) -> None:
    sys.stdout.write(f"{request.text}\n")
    sys.stderr.write(f"careful, {request.text}\n")


register_handler(Print, write)
