"""Requests to inspect, check, repair and dump the chain."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.foundation.errors import TdxError
from tdx.foundation.keys import NestedKey
from tdx.inspection.check_report import Finding, check_pipeline
from tdx.inspection.lineage import Lineage, inspect_keys
from tdx.inspection.overview import ChainOverview, EnvCache
from tdx.pipeline.model import Pipeline
from tdx.pipeline.values import StageConfig
from tdx.tui.backend.messages import Job, Request

if TYPE_CHECKING:
    from tdx.envs.gym.registry import RegisteredEnv
    from tdx.rollouts.dump.progress import Progress, ShardProgress


def _get_env_cache(job: Job, allow_code: bool) -> EnvCache:
    from tdx.rollouts.samples import read_samples

    return job.get_cached("envs", lambda: EnvCache(allow_code, read_samples))


@dataclass(frozen=True, slots=True)
class InspectChain(Request[ChainOverview]):
    """Inspect the specs of each stage, leaving out stages that fail."""

    pipeline: Pipeline
    allow_code: bool = False
    samples: str | None = None

    def answer(self, job: Job) -> ChainOverview:
        cache = _get_env_cache(job, self.allow_code)
        from tdx.inspection.overview import inspect_overview

        return inspect_overview(self.pipeline, cache, self.samples)


@dataclass(frozen=True, slots=True)
class CheckChain(Request[tuple[Finding, ...]]):
    """Check the chain as ``tdx check`` does, with steps if requested.

    The wrappers of other libraries are only checked with steps, because they declare nothing, and
    checkpoints without steps, because their rules read only the files.
    """

    pipeline: Pipeline
    allow_code: bool = False
    steps: bool = False
    samples: str | None = None

    def answer(self, job: Job) -> tuple[Finding, ...]:
        cache, env = _get_env_cache(job, self.allow_code), self.pipeline.env
        stack = cache.stack(self.pipeline, self.samples)
        if stack is not None and stack.chain_env is None:
            from tdx.inspection.checkpoint_check import check_stages
            from tdx.inspection.stack_check import check
            from tdx.stacks.checkpoints.stack import CheckpointStack, DatasetStack

            if isinstance(stack, CheckpointStack):
                return check_stages(stack.checkpoint)
            if isinstance(stack, DatasetStack):
                return ()
            return check(stack, env.id, seed=env.seed).findings if self.steps else ()
        base = None
        if stack is not None:
            base = stack.chain_env
        elif not self.steps:
            # The rules only read its specs. If it cannot be made, the report says why.
            with suppress(TdxError):
                base = cache.base(env)
        report = check_pipeline(
            self.pipeline, allow_code=self.allow_code, steps=self.steps, base=base
        )
        if stack is not None or not report.env_stages:
            return report.findings
        findings = []
        for finding in report.findings:
            # Stages are numbered from the first one of the draft.
            where, stage = finding.where, finding.where.stage
            if stage is not None:
                at = stage - report.env_stages
                where = replace(where, stage=at if at >= 0 else None)
            findings.append(replace(finding, where=where))
        return tuple(findings)


class _CancelledError(Exception):
    """The request was cancelled."""


@dataclass(frozen=True, slots=True)
class ObserveKeys(Request[Lineage | None]):
    """Trace every key of a stack of another library in random steps; ``None`` if cancelled."""

    pipeline: Pipeline
    allow_code: bool = False
    samples: str | None = None

    def answer(self, job: Job) -> Lineage | None:
        def stop_if_cancelled(trace: object) -> None:
            if job.is_cancelled:
                raise _CancelledError

        stack = _get_env_cache(job, self.allow_code).stack(self.pipeline, self.samples)
        with suppress(_CancelledError):
            return inspect_keys(stack, self.pipeline.env.id, on_trace=stop_if_cancelled)
        return None


@dataclass(frozen=True, slots=True)
class ListEnvs(Request["tuple[RegisteredEnv, ...]"]):
    """List all envs: installed ones, then missing ones, then those with a newer version."""

    def answer(self, job: Job) -> tuple[RegisteredEnv, ...]:
        from tdx.inspection.envs import list_envs

        envs = list_envs(missing=True)
        return tuple(sorted(envs, key=lambda env: (env.replaced_by is not None, not env.installed)))


@dataclass(frozen=True, slots=True)
class MeasureNorm(Request[tuple[StageConfig, ...]]):
    """Measure the normalizer at the end of a chain in random steps; the answer replaces it."""

    pipeline: Pipeline
    steps: int
    allow_code: bool = False

    def answer(self, job: Job) -> tuple[StageConfig, ...]:
        from tdx.inspection.measured_norms import measure_norm

        return measure_norm(self.pipeline, self.steps, allow_code=self.allow_code)


@dataclass(frozen=True, slots=True)
class FindUnstorable(Request[tuple[NestedKey, ...]]):
    """Find the entries that a dump cannot store, and that an ``ExcludeTransform`` can drop."""

    pipeline: Pipeline
    allow_code: bool = False

    def answer(self, job: Job) -> tuple[NestedKey, ...]:
        from tdx.rollouts.dump import entries
        from tdx.stacks.building import build_env

        env = build_env(self.pipeline, self.allow_code)
        try:
            keys = entries.find_unstorable(env)
            return tuple(key for key in keys if key in env.output_spec["full_observation_spec"])
        finally:
            env.close()


@dataclass(frozen=True, slots=True)
class DumpProgress:
    """Progress of a dump."""

    share: float
    text: str

    @classmethod
    def of(cls, progress: Progress | ShardProgress) -> DumpProgress:
        """Describe the progress of a dump."""
        from tdx.rollouts.dump.progress import ShardProgress

        goal = progress.goal
        if isinstance(progress, ShardProgress):
            parts = [
                f"{progress.committed:,} of {progress.shards:,} shards",
                f"{progress.running:,} running",
                f"{progress.failed:,} failed",
            ]
            share = progress.committed / progress.shards
            if goal.steps is not None:
                parts.append(f"{progress.steps:,} of {goal.steps:,} steps")
                share = min(1.0, progress.steps / max(goal.steps, 1))
            return cls(share, "  ".join(parts))
        if goal.steps is not None:
            share = progress.steps / max(goal.steps, 1)
        else:
            share = progress.episodes / max(goal.episodes or 1, 1)
        steps = f"{progress.steps:,}" + (f" of {goal.steps:,}" if goal.steps else "")
        of_all = f" of {goal.episodes:,}" if goal.episodes else ""
        return cls(min(1.0, share), f"{steps} steps, {progress.episodes:,}{of_all} episodes")


@dataclass(frozen=True, slots=True)
class DumpResult:
    """What a finished dump contains."""

    path: str
    progress: DumpProgress
    complete: bool
    seed: int


@dataclass(frozen=True, slots=True)
class DumpRollout(Request[DumpResult]):
    """Dump a rollout; pushes :class:`DumpProgress` after each chunk.

    What is complete is kept if the request is cancelled.
    """

    pipeline: Pipeline
    path: str
    steps: int | None = None
    episodes: int | None = None
    seed: int | None = None
    policy: str | None = None
    force: bool = False
    allow_code: bool = False

    def answer(self, job: Job) -> DumpResult:
        from tdx.rollouts.dump.manifest import Goal, Manifest
        from tdx.rollouts.dump.progress import Progress
        from tdx.rollouts.recording.request import DumpRequest
        from tdx.rollouts.recording.rollout import roll_out

        def on_chunk(progress: Progress) -> None:
            job.push("progress", DumpProgress.of(progress))
            if job.is_cancelled:
                raise _CancelledError

        goal = None
        if self.steps is not None or self.episodes is not None:
            goal = Goal(self.steps, self.episodes)
        request = DumpRequest(
            self.pipeline,
            goal,
            seed=self.seed,
            # The default of the form is the policy of the pipeline file, not one that was typed.
            policy=None if self.policy == self.pipeline.policy else self.policy,
            chunk_steps=None,
            allow_code=self.allow_code,
        )
        folder = Path(self.path)
        with suppress(_CancelledError):
            roll_out(request, folder, force=self.force, on_chunk=on_chunk)
        manifest = Manifest.load(folder)
        final = Progress(manifest.steps, len(manifest.episodes), manifest.goal, 0)
        return DumpResult(str(folder), DumpProgress.of(final), manifest.complete, manifest.seed)


@dataclass(frozen=True, slots=True)
class FollowDump(Request[DumpProgress]):
    """Push the progress of a dump every second; answered when it is complete or cancelled."""

    path: str

    def answer(self, job: Job) -> DumpProgress:
        from tdx.rollouts.dump.progress import follow_dump

        shown = DumpProgress(0.0, "")
        for progress in follow_dump(self.path):
            shown = DumpProgress.of(progress)
            job.push("progress", shown)
            if job.is_cancelled:
                break
        return shown
