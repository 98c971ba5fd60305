"""Requests of the compose panes, and the functions that answer them in a worker."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tdx.inspection.check_report import Finding, check_pipeline
from tdx.inspection.overview import ChainOverview, EnvCache, inspect_overview
from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Job, Request


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
class EnvChoice:
    """An env that can be chosen.

    Args:
        id: Id of the env.
        package: Package that provides it.
        hint: What to install first. ``None``: it is installed.
    """

    id: str
    package: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class ListEnvs(Request[tuple[EnvChoice, ...]]):
    """List the envs."""


def inspect_chain(request: InspectChain, job: Job) -> ChainOverview:
    """Inspect the chain up to the first failing stage."""
    bench = job.cached("bench", lambda: EnvCache(request.allow_code))
    return inspect_overview(request.pipeline, bench)


def check_chain(request: CheckChain, job: Job) -> tuple[Finding, ...]:
    """Check the chain with the rules, and with steps if requested."""
    report = check_pipeline(request.pipeline, allow_code=request.allow_code, steps=request.steps)
    return tuple(_with_draft_stage(finding, report.env_stages) for finding in report.findings)


def _with_draft_stage(finding: Finding, env_stages: int) -> Finding:
    """Renumber the stage of a finding from the first stage of the draft."""
    stage = finding.where.stage
    if stage is None or not env_stages:
        return finding
    at = stage - env_stages
    return replace(finding, where=replace(finding.where, stage=at if at >= 0 else None))


def list_env_choices(request: ListEnvs, job: Job) -> tuple[EnvChoice, ...]:
    """Return all envs, the installed ones first."""
    from tdx.inspection.envs import list_envs

    found = [EnvChoice(env.id, env.package, env.hint) for env in list_envs(missing=True)]
    return tuple(sorted(found, key=lambda env: env.hint is not None))
