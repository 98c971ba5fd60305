"""The answers to what the composing part asks; runs in a worker."""

from __future__ import annotations

from dataclasses import replace

from tdx.inspection.check_report import Finding, check_pipeline
from tdx.inspection.overview import ChainOverview, EnvCache, inspect_overview
from tdx.tui.backend.job import Job
from tdx.tui.compose.requests import Check, EnvChoice, ListEnvs, Look


def look(request: Look, job: Job) -> ChainOverview:
    """Look at the specs of a pipeline as far as it works."""
    bench = job.kept("bench", lambda: EnvCache(request.allow_code))
    return inspect_overview(request.pipeline, bench)


def check(request: Check, job: Job) -> tuple[Finding, ...]:
    """Hold a pipeline against the rules, with steps where they are asked for."""
    report = check_pipeline(request.pipeline, allow_code=request.allow_code, steps=request.steps)
    return tuple(_in_draft(finding, report.env_stages) for finding in report.findings)


def _in_draft(finding: Finding, env_stages: int) -> Finding:
    """Count the stage of a finding from the draft's first; stages of the env are the env's."""
    stage = finding.where.stage
    if stage is None or not env_stages:
        return finding
    at = stage - env_stages
    return replace(finding, where=replace(finding.where, stage=at if at >= 0 else None))


def envs(request: ListEnvs, job: Job) -> tuple[EnvChoice, ...]:
    """Every env, those that can be made first."""
    from tdx.inspection.envs import list_envs

    found = [EnvChoice(env.id, env.package, env.hint) for env in list_envs(missing=True)]
    return tuple(sorted(found, key=lambda env: env.hint is not None))
