"""Requests to inspect, check and dump the chain, and the functions that answer them in a worker."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.foundation.errors import TdxError
from tdx.foundation.keys import NestedKey
from tdx.inspection.check_report import Finding, check_pipeline
from tdx.inspection.lineage import Lineage, inspect_keys
from tdx.inspection.overview import ChainOverview, EnvCache, inspect_overview
from tdx.pipeline.model import Pipeline
from tdx.pipeline.values import StageConfig
from tdx.tui.backend.messages import Job, Request

if TYPE_CHECKING:
    from tdx.envs.gym.registry import RegisteredEnv
    from tdx.rollouts.dump.progress import Progress, ShardProgress


@dataclass(frozen=True, slots=True)
class InspectChain(Request[ChainOverview]):
    """Inspect the specs of each stage."""

    pipeline: Pipeline
    allow_code: bool = False


@dataclass(frozen=True, slots=True)
class CheckChain(Request[tuple[Finding, ...]]):
    """Check the chain as ``tdx check`` does."""

    pipeline: Pipeline
    allow_code: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True)
class ObserveKeys(Request[Lineage | None]):
    """Observe the keys of a stack of another library in random steps; ``None`` if cancelled."""

    pipeline: Pipeline
    allow_code: bool = False


@dataclass(frozen=True, slots=True)
class ListEnvs(Request["tuple[RegisteredEnv, ...]"]):
    """List the envs."""


def inspect_chain(request: InspectChain, job: Job) -> ChainOverview:
    """Inspect the chain up to the first failing stage."""
    cache = job.get_cached("envs", lambda: EnvCache(request.allow_code))
    if not request.pipeline.is_factory:
        return inspect_overview(request.pipeline, cache)
    from tdx.inspection.stack_overview import inspect_target

    return inspect_target(request.pipeline, cache)


def check_chain(request: CheckChain, job: Job) -> tuple[Finding, ...]:
    """Check the chain with the rules, and with steps if requested.

    The wrappers of other libraries are only checked with steps, because they declare nothing.
    """
    cache = job.get_cached("envs", lambda: EnvCache(request.allow_code))
    stack = cache.stack(request.pipeline)
    if stack is not None and stack.chain_env is None:
        from tdx.inspection.stack_check import check

        env = request.pipeline.env
        return check(stack, env.id, seed=env.seed).findings if request.steps else ()
    base = None
    if stack is not None:
        base = stack.chain_env
    elif not request.steps:
        # The rules only read its specs. If it cannot be made, the report says why.
        with suppress(TdxError):
            base = cache.base(request.pipeline.env)
    report = check_pipeline(
        request.pipeline, allow_code=request.allow_code, steps=request.steps, base=base
    )
    if stack is not None:
        return report.findings
    return tuple(_with_draft_stage(finding, report.env_stages) for finding in report.findings)


def _with_draft_stage(finding: Finding, env_stages: int) -> Finding:
    """Renumber the stage of a finding from the first stage of the draft."""
    stage = finding.where.stage
    if stage is None or not env_stages:
        return finding
    at = stage - env_stages
    return replace(finding, where=replace(finding.where, stage=at if at >= 0 else None))


def observe_keys(request: ObserveKeys, job: Job) -> Lineage | None:
    """Trace every key of a stack as ``tdx inspect keys`` does."""
    cache = job.get_cached("envs", lambda: EnvCache(request.allow_code))
    stack = cache.stack(request.pipeline)

    def stop_if_cancelled(trace: object) -> None:
        if job.is_cancelled:
            raise _CancelledError

    with suppress(_CancelledError):
        return inspect_keys(stack, request.pipeline.env.id, on_trace=stop_if_cancelled)
    return None


def list_env_choices(request: ListEnvs, job: Job) -> tuple[RegisteredEnv, ...]:
    """Return all envs: installed ones, then missing ones, then those with a newer version."""
    from tdx.inspection.envs import list_envs

    envs = list_envs(missing=True)
    return tuple(sorted(envs, key=lambda env: (env.replaced_by is not None, not env.installed)))


@dataclass(frozen=True, slots=True)
class MeasureNorm(Request[tuple[StageConfig, ...]]):
    """Measure the normalizer at the end of a chain; the answer replaces it.

    Args:
        pipeline: The chain up to the normalizer.
        steps: Number of random steps.
        allow_code: Allow importing Python objects.
    """

    pipeline: Pipeline
    steps: int
    allow_code: bool = False


@dataclass(frozen=True, slots=True)
class FindUnstorable(Request[tuple[NestedKey, ...]]):
    """Find the entries of the env's output that a dump cannot store."""

    pipeline: Pipeline
    allow_code: bool = False


def measure_norm(request: MeasureNorm, job: Job) -> tuple[StageConfig, ...]:
    """Measure the statistics of a normalizer in random steps."""
    from tdx.inspection import measured_norms

    return measured_norms.measure_norm(
        request.pipeline, request.steps, allow_code=request.allow_code
    )


def find_unstorable(request: FindUnstorable, job: Job) -> tuple[NestedKey, ...]:
    """Return the entries that are not tensors, and that an ``ExcludeTransform`` can drop."""
    from tdx.rollouts.dump import entries
    from tdx.stacks.building import build_env

    env = build_env(request.pipeline, request.allow_code)
    try:
        keys = entries.find_unstorable(env)
        return tuple(key for key in keys if key in env.output_spec["full_observation_spec"])
    finally:
        env.close()


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


class _CancelledError(Exception):
    """The request was cancelled."""


def dump_rollout(request: DumpRollout, job: Job) -> DumpResult:
    """Roll out in the worker; keep what is complete if the job is cancelled."""
    from tdx.rollouts.dump.manifest import Goal
    from tdx.rollouts.recording.request import DumpRequest
    from tdx.rollouts.recording.rollout import roll_out

    def on_chunk(progress: Progress) -> None:
        goal = progress.goal
        update = DumpProgress(progress.steps, progress.episodes, goal.steps, goal.episodes)
        job.push(PROGRESS, update)
        if job.is_cancelled:
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


@dataclass(frozen=True, slots=True)
class DumpState:
    """Progress of a dump that other processes record.

    Args:
        share: Recorded share, from 0 to 1.
        text: Description for the user: shards by their state, and steps.
        is_complete: True if everything is recorded; only in the last one.
    """

    share: float
    text: str
    is_complete: bool


@dataclass(frozen=True, slots=True)
class FollowDump(Request[DumpState]):
    """Push the :class:`DumpState` of a dump every second, until it is complete."""

    path: str


def report_dump(request: FollowDump, job: Job) -> DumpState:
    """Follow a dump until it is complete or the job is cancelled."""
    from tdx.rollouts.dump.progress import follow_dump

    state = DumpState(0.0, "", False)
    for progress in follow_dump(request.path):
        state = _dump_state(progress)
        job.push(PROGRESS, state)
        if job.is_cancelled:
            return state
    return replace(state, is_complete=True)


def _dump_state(progress: Progress | ShardProgress) -> DumpState:
    from tdx.rollouts.dump.progress import ShardProgress

    goal = progress.goal
    if not isinstance(progress, ShardProgress):
        plain = DumpProgress(progress.steps, progress.episodes, goal.steps, goal.episodes)
        return DumpState(plain.share, plain.text, False)
    parts = [
        f"{progress.committed:,} of {progress.shards:,} shards",
        f"{progress.running:,} running",
        f"{progress.failed:,} failed",
    ]
    share = progress.committed / progress.shards
    if goal.steps is not None:
        parts.append(f"{progress.steps:,} of {goal.steps:,} steps")
        share = min(1.0, progress.steps / max(goal.steps, 1))
    return DumpState(share, "  ".join(parts), False)
