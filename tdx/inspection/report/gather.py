"""Look at a pipeline from all sides."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from tdx.inspection.chain_report import inspect_chain
from tdx.inspection.lineage import inspect_keys
from tdx.inspection.report.contents import Lint, PipelineReport
from tdx.inspection.report.observe import observe
from tdx.inspection.spec_report import inspect_spec
from tdx.inspection.stage_flow import chain_flow
from tdx.inspection.stage_text import env_stage_count, stage_texts
from tdx.pipeline import Pipeline, write_pipeline

if TYPE_CHECKING:
    from tdx.envs import EnvBase

_PACKAGES = ("torch", "tensordict", "torchvision", "gymnasium")


def gather(
    env: EnvBase, pipeline: Pipeline, name: str, *, steps: int = 200, seed: int = 0
) -> PipelineReport:
    """All that a page about a pipeline says; the env is reset and stepped.

    Args:
        env: the env of the pipeline, with its chain.
        pipeline: the pipeline.
        name: what it is called.
        steps: how long the rollout is.
        seed: the seed of the rollout.

    Raises:
        TdxError: the env or a stage raised.
    """
    return PipelineReport(
        name=name,
        text=write_pipeline(pipeline),
        calls=stage_texts(env, pipeline),
        chain=inspect_chain(env, pipeline.env.id),
        flow=chain_flow(env),
        lineage=inspect_keys(env, pipeline.env.id),
        specs=inspect_spec(env, pipeline.env.id),
        lints=tuple(_lints(env, pipeline)),
        rollout=observe(env, steps, seed),
        versions=tuple(_versions()),
    )


def _lints(env: EnvBase, pipeline: Pipeline) -> Sequence[Lint]:
    from tdx.core import TransformedEnv
    from tdx.inspection.lint.run import lint, lint_context

    found = []
    first = env_stage_count(env, pipeline)
    context = lint_context(pipeline, env if isinstance(env, TransformedEnv) else None)
    for finding in lint(context):
        stage = finding.found.stage
        place = "" if stage is None else f"{first + stage} {pipeline.transforms[stage].name}"
        rule = finding.rule
        message, hint = finding.found.message, finding.found.hint
        found.append(Lint(rule.code, rule.severity, rule.title, place, message, hint))
    return found


def _versions() -> Sequence[tuple[str, str]]:
    from tdx import __version__

    found = [("tdx", __version__)]
    for package in _PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return found
