"""The request of the Live tab."""

from __future__ import annotations

from dataclasses import dataclass

from tdx.tui.backend.messages import Job, Request
from tdx.tui.live.messages import SessionSettings


@dataclass(frozen=True)
class RunSession(SessionSettings, Request[None]):
    """Step an env until the request is cancelled; pushes views of its history.

    Topics: ``info`` (``SessionInfo``), ``state`` (``LiveState``), and ``trace``, ``images``,
    ``plots``, ``episodes`` and ``cells`` (see :mod:`tdx.inspection.live.views`). While a call takes
    long, ``late`` with an index (``LateTrace``).
    """

    def answer(self, job: Job) -> None:
        from tdx.tui.live.worker import run_session

        run_session(self, job)
