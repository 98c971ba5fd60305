"""Rollout dumps: the request, the worker function, and the job that survives its dialog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdx.pipeline.model import Pipeline
from tdx.tui.backend.client import RequestError, Ticket
from tdx.tui.backend.messages import Job, Request

if TYPE_CHECKING:
    from textual.app import App

    from tdx.rollouts.dump.writing import Progress
    from tdx.tui.workspace import Workspace


PROGRESS = "progress"


@dataclass(frozen=True, slots=True)
class DumpProgress:
    """Progress of a dump.

    Args:
        steps: Steps made by each env.
        episodes: Completed episodes.
        goal_steps: Number of steps to make. ``None``: episodes are counted.
        goal_episodes: Number of episodes to complete. ``None``: steps are counted.
    """

    steps: int
    episodes: int
    goal_steps: int | None
    goal_episodes: int | None

    @property
    def share(self) -> float:
        """Completed share, from 0 to 1."""
        if self.goal_steps is not None:
            return min(1.0, self.steps / max(self.goal_steps, 1))
        return min(1.0, self.episodes / max(self.goal_episodes or 1, 1))

    @property
    def text(self) -> str:
        """Description for the user."""
        steps = f"{self.steps:,}" + (f" of {self.goal_steps:,}" if self.goal_steps else "")
        of = f" of {self.goal_episodes:,}" if self.goal_episodes else ""
        return f"{steps} steps, {self.episodes:,}{of} episodes"


@dataclass(frozen=True, slots=True)
class DumpResult:
    """What a finished dump contains.

    Args:
        path: Folder of the dump.
        progress: Final progress.
        complete: True if the goal was reached.
        seed: Seed with which the dump can be reproduced.
    """

    path: str
    progress: DumpProgress
    complete: bool
    seed: int


@dataclass(frozen=True, slots=True)
class DumpRollout(Request[DumpResult]):
    """Dump a rollout; pushes :class:`DumpProgress` after each chunk."""

    pipeline: Pipeline
    path: str
    steps: int | None = None
    episodes: int | None = None
    seed: int | None = None
    policy: str | None = None
    force: bool = False
    allow_code: bool = False


WORKER = "dump"
CANCEL_TIMEOUT = 3.0
"""Seconds that a rollout has to finish its chunk before its worker is killed."""


class DumpJob:
    """Runs a dump in the worker and reports its progress.

    Args:
        app: Shows the result.
        workspace: State of the app.
    """

    def __init__(self, app: App[None], workspace: Workspace) -> None:
        self._app, self._workspace = app, workspace
        self._ticket: Ticket[DumpResult] | None = None
        self._task: asyncio.Task[None] | None = None
        self.progress: DumpProgress | None = None
        self.path = ""
        self.on_change: Callable[[], Any] | None = None

    @property
    def is_running(self) -> bool:
        """True if a dump is running."""
        return self._ticket is not None

    def start(self, request: DumpRollout) -> None:
        """Start a dump."""
        self.progress, self.path = None, request.path
        self._ticket = self._workspace.backend.ask(request, worker=WORKER, on_push=self._pushed)
        self._task = asyncio.get_running_loop().create_task(self._wait(self._ticket))
        self._changed()

    def cancel(self) -> None:
        """Stop after the current chunk; kill the worker if that takes too long."""
        if self._ticket is not None:
            ticket = self._ticket
            self._workspace.backend.cancel(ticket)
            self._app.set_timer(CANCEL_TIMEOUT, lambda: self._kill(ticket))

    def _kill(self, ticket: Ticket[DumpResult]) -> None:
        if self._ticket is ticket:
            self._workspace.backend.restart(WORKER)

    def _pushed(self, topic: str, value: Any) -> None:
        self.progress = value
        # Pushed values arrive outside of the context of the app.
        self._app.call_later(self._changed)

    async def _wait(self, ticket: Ticket[DumpResult]) -> None:
        try:
            done = await ticket
        except RequestError as error:
            hint = f" ({error.problem.hint})" if error.problem.hint else ""
            kept = f"; the dump contains {self.progress.text}" if self.progress else ""
            text = f"{error.problem.message}{hint}{kept}"
            self._app.notify(text, title="Not dumped", severity="error", timeout=10)
        else:
            title = "Dumped" if done.complete else "Dump cancelled, finished shards kept"
            text = f"{done.path}: {done.progress.text}, seed {done.seed}"
            self._app.notify(text, title=title, timeout=8)
        finally:
            self._ticket = None
            self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


class _CancelledError(Exception):
    """The dump was cancelled."""


def dump_rollout(request: DumpRollout, job: Job) -> DumpResult:
    """Roll out in the worker; keep what is complete if the job is cancelled."""
    from tdx.rollouts.dump.manifest import Goal
    from tdx.rollouts.recording.request import DumpRequest
    from tdx.rollouts.recording.rollout import roll_out

    def on_chunk(progress: Progress) -> None:
        goal = progress.goal
        update = DumpProgress(progress.steps, progress.episodes, goal.steps, goal.episodes)
        job.push(PROGRESS, update)
        if job.cancelled:
            raise _CancelledError

    goal = None
    if request.steps is not None or request.episodes is not None:
        goal = Goal(request.steps, request.episodes)
    dump_request = DumpRequest(
        request.pipeline,
        goal,
        seed=request.seed,
        # The default of the form is the policy of the pipeline file, not one that the user typed.
        policy=None if request.policy == request.pipeline.policy else request.policy,
        chunk_steps=None,
        allow_code=request.allow_code,
    )
    folder = Path(request.path)
    with suppress(_CancelledError):
        roll_out(dump_request, folder, force=request.force, on_chunk=on_chunk)
    return _load_result(folder)


def _load_result(folder: Path) -> DumpResult:
    from tdx.rollouts.dump.manifest import Manifest

    manifest = Manifest.load(folder)
    goal = manifest.goal
    progress = DumpProgress(manifest.steps, len(manifest.episodes), goal.steps, goal.episodes)
    return DumpResult(str(folder), progress, manifest.complete, manifest.seed)
