"""Dumps a rollout; runs in a worker."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tdx.rollouts.dump.manifest import Goal, Manifest
from tdx.rollouts.recording.request import DumpRequest
from tdx.rollouts.recording.run import roll_out
from tdx.rollouts.recording.stream import Progress
from tdx.tui.backend.job import Job
from tdx.tui.files.dump_requests import PROGRESS, DumpDone, DumpProgress, RecordDump


class _StoppedError(Exception):
    """Nobody wants the rest."""


def record(request: RecordDump, job: Job) -> DumpDone:
    """Roll out; what is finished when it is cancelled stays in the dump."""

    def on_chunk(progress: Progress) -> None:
        goal = progress.goal
        told = DumpProgress(progress.steps, progress.episodes, goal.steps, goal.episodes)
        job.push(PROGRESS, told)
        if job.cancelled:
            raise _StoppedError

    goal = None
    if request.steps is not None or request.episodes is not None:
        goal = Goal(request.steps, request.episodes)
    asked = DumpRequest(
        request.pipeline,
        goal,
        seed=request.seed,
        # What the form offers is the name that the pipeline file has, not one that the user typed.
        policy=None if request.policy == request.pipeline.policy else request.policy,
        chunk_steps=None,
        allow_code=request.allow_code,
    )
    folder = Path(request.path)
    with suppress(_StoppedError):
        roll_out(asked, folder, force=request.force, on_chunk=on_chunk)
    return _done(folder)


def _done(folder: Path) -> DumpDone:
    manifest = Manifest.load(folder)
    goal = manifest.goal
    progress = DumpProgress(manifest.steps, len(manifest.episodes), goal.steps, goal.episodes)
    return DumpDone(str(folder), progress, manifest.complete, manifest.seed)
