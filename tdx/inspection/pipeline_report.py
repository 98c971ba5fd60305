"""Collect the data of the HTML report on a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from tdx.inspection.chain import ChainFlow
from tdx.inspection.chain_report import ChainReport, find_flow, report_flow
from tdx.inspection.lineage import Lineage, trace_flow
from tdx.inspection.rollout_summary import RolloutSummary, summarize_rollout
from tdx.inspection.spec_report import SpecReport, inspect_spec
from tdx.pipeline import Pipeline, write_pipeline
from tdx.pipeline.build import count_env_stages

if TYPE_CHECKING:
    from tdx.envs import EnvBase
    from tdx.inspection.check_report import Finding
    from tdx.stacks import Stack

_PACKAGES = ("torch", "tensordict", "torchvision", "gymnasium")


@dataclass(frozen=True, slots=True)
class LintEntry:
    """One finding of the linter.

    Args:
        code: Code of the rule.
        severity: ``error``, ``warning`` or ``suggestion``.
        title: Title of the rule.
        place: Stage.
        message: What is wrong.
        hint: How to fix it.
    """

    code: str
    severity: str
    title: str
    place: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """Data of the report.

    Args:
        name: Name of the pipeline.
        text: Pipeline file.
        calls: Each stage as the text of ``--t``.
        chain: What each stage does.
        flow: Specs at each position of the chain.
        lineage: Versions of all keys.
        specs: Specs before and after the chain.
        lints: Findings of the linter.
        rollout: Summary of a short rollout.
        versions: Versions of tdx and its dependencies.
    """

    name: str
    text: str
    calls: tuple[str, ...]
    chain: ChainReport
    flow: ChainFlow
    lineage: Lineage
    specs: SpecReport
    lints: tuple[LintEntry, ...]
    rollout: RolloutSummary
    versions: tuple[tuple[str, str], ...]


def build_report(
    stack: Stack, pipeline: Pipeline, name: str, *, steps: int = 200, seed: int = 0
) -> PipelineReport:
    """Collect the data of the report; the env is reset and stepped.

    Args:
        stack: The stack of the pipeline.
        pipeline: The pipeline.
        name: Name of the pipeline.
        steps: Length of the rollout.
        seed: Seed of the rollout.

    Raises:
        TdxError: The env or a stage raised an error.
    """
    flow = find_flow(stack)
    return PipelineReport(
        name=name,
        text=write_pipeline(pipeline),
        calls=tuple(stage.call for stage in stack.stages),
        chain=report_flow(stack, flow, pipeline.env.id),
        flow=flow,
        lineage=trace_flow(flow, pipeline.env.id),
        specs=inspect_spec(stack, pipeline.env.id),
        lints=tuple(_find_lints(stack, pipeline, seed)),
        rollout=summarize_rollout(stack, steps, seed),
        versions=tuple(_versions()),
    )


def _find_lints(stack: Stack, pipeline: Pipeline, seed: int) -> Sequence[LintEntry]:
    """Return the findings of the rules for the pipeline, or those for the stack of its factory."""
    from tdx.inspection.stack_check import check

    if stack.chain_env is not None and not pipeline.is_factory:
        return _lint_entries(stack.chain_env, pipeline)
    report = check(stack, pipeline.env.id, seed=seed)
    return [_finding_entry(each) for each in report.findings]


def _finding_entry(finding: Finding) -> LintEntry:
    where = finding.where
    place = "" if where.stage is None else f"{where.stage} {where.transform or ''}".strip()
    title = finding.title or finding.message
    return LintEntry(
        finding.code, finding.severity, title, place, finding.message, finding.hint or ""
    )


def _lint_entries(env: EnvBase, pipeline: Pipeline) -> Sequence[LintEntry]:
    from tdx.core import TransformedEnv
    from tdx.inspection.lint.linter import build_lint_context, lint

    entries = []
    first = count_env_stages(env, pipeline)
    context = build_lint_context(pipeline, env if isinstance(env, TransformedEnv) else None)
    for finding in lint(context):
        stage = finding.violation.stage
        place = "" if stage is None else f"{first + stage} {pipeline.transforms[stage].name}"
        rule = finding.rule
        violation = finding.violation
        entries.append(
            LintEntry(
                rule.code, rule.severity, rule.title, place, violation.message, violation.hint
            )
        )
    return entries


def _versions() -> Sequence[tuple[str, str]]:
    from tdx import __version__

    versions = [("tdx", __version__)]
    for package in _PACKAGES:
        try:
            versions.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return versions
