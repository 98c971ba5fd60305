"""Collect the data of the HTML report on a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.inspection.chain import ChainReport, find_flow, report_flow
from tdx.inspection.check_report import Finding
from tdx.inspection.doctor import installed_version
from tdx.inspection.lineage import Lineage, trace_flow
from tdx.inspection.plan_report import PlanReport, inspect_plan
from tdx.inspection.rollout_summary import OnSteps, RolloutSummary, summarize_rollout
from tdx.inspection.spec_report import SpecReport, inspect_spec
from tdx.pipeline import Pipeline, write_pipeline
from tdx.pipeline.build import count_env_stages

if TYPE_CHECKING:
    from tdx.stacks import Stack

_PACKAGES = ("torch", "tensordict", "torchvision", "gymnasium")
_MAX_TITLE_STAGES = 3


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """Data of the report.

    Args:
        name: Pipeline file, or the target that the user named.
        env: Name of the env.
        text: Pipeline file.
        calls: Each stage as the text of ``--t``.
        chain: What each stage does.
        lineage: Versions of all keys.
        specs: Specs before and after the chain.
        plan: How a rollout runs. ``None``: another library steps the env.
        lints: Findings of the linter.
        rollout: Summary of a rollout.
        versions: Versions of tdx and its dependencies.
    """

    name: str
    env: str
    text: str
    calls: tuple[str, ...]
    chain: ChainReport
    lineage: Lineage
    specs: SpecReport
    plan: PlanReport | None
    lints: tuple[Finding, ...]
    rollout: RolloutSummary
    versions: tuple[tuple[str, str], ...]

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages."""
        return tuple(stage.name for stage in self.chain.stages)

    @property
    def title(self) -> str:
        """Env and stages on one short line.

        Example:
            >>> from tdx.pipeline import Pipeline
            >>> from tdx.stacks.building import build_stack
            >>> pipeline = Pipeline.of("Pendulum-v1", "InitTracker", "RewardSum")
            >>> build_report(build_stack(pipeline), pipeline, "Pendulum-v1", steps=1).title
            'Pendulum-v1 with InitTracker and RewardSum'
        """
        if not self.stages:
            return self.env
        *first, last = self.stages
        if len(first) >= _MAX_TITLE_STAGES:
            first, last = first[:_MAX_TITLE_STAGES], f"{len(self.stages) - _MAX_TITLE_STAGES} more"
        names = f"{', '.join(first)} and {last}" if first else last
        return f"{self.env} with {names}"


def build_report(
    stack: Stack,
    pipeline: Pipeline,
    name: str,
    *,
    steps: int = 200,
    seed: int = 0,
    on_steps: OnSteps | None = None,
) -> PipelineReport:
    """Collect the data of the report; the env is reset and stepped.

    Args:
        stack: The stack of the pipeline.
        pipeline: The pipeline.
        name: Name of the pipeline.
        steps: Minimum length of the rollout, in which each env finishes its last episode.
        seed: Seed of the rollout.
        on_steps: Called with the progress of the rollout.

    Raises:
        TdxError: The env or a stage raised an error.
    """
    from tdx import __version__

    flow = find_flow(stack)
    known = [(package, installed_version(package)) for package in _PACKAGES]
    env = stack.name if stack.chain_env is None else pipeline.env.id
    return PipelineReport(
        name=name,
        env=env,
        text=write_pipeline(pipeline),
        calls=tuple(stack.calls),
        chain=report_flow(stack, flow, env),
        lineage=trace_flow(flow, env),
        specs=inspect_spec(stack, env),
        plan=None if stack.chain_env is None else inspect_plan(stack.chain_env, env),
        lints=tuple(_find_lints(stack, pipeline, seed)),
        rollout=summarize_rollout(stack, steps, seed, on_steps),
        versions=(("tdx", __version__), *((name, text) for name, text in known if text)),
    )


def _find_lints(stack: Stack, pipeline: Pipeline, seed: int) -> Sequence[Finding]:
    """Return the findings of the rules for the pipeline, or those for the stack of its factory."""
    from tdx.core import TransformedEnv
    from tdx.inspection.lint.linter import build_lint_context, lint
    from tdx.inspection.stack_check import check

    env = stack.chain_env
    if env is None or pipeline.is_factory:
        return check(stack, pipeline.env.id, seed=seed).findings
    first = count_env_stages(env, pipeline)
    context = build_lint_context(pipeline, env if isinstance(env, TransformedEnv) else None)
    return [Finding.from_lint(finding, pipeline, first) for finding in lint(context)]
