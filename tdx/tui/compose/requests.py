"""Requests of the compose panes, and the functions that answer them in a worker."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tdx.inspection.check_report import Finding, check_pipeline
from tdx.inspection.overview import ChainOverview, EnvBench, overview
from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Job, Request


@dataclass(frozen=True, slots=True)
class InspectChain(Request[ChainOverview]):
    """What does each stage do?"""

    pipeline: Pipeline
    allow_code: bool = False


@dataclass(frozen=True, slots=True)
class CheckChain(Request[tuple[Finding, ...]]):
    """What does ``tdx check`` find?"""

    pipeline: Pipeline
    allow_code: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True)
class EnvChoice:
    """An env that can be chosen.

    Args:
        id: its id.
        package: where it comes from.
        hint: what to install first; none where it is there.
    """

    id: str
    package: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class ListEnvs(Request[tuple[EnvChoice, ...]]):
    """Which envs are there?"""


def inspect_chain(request: InspectChain, job: Job) -> ChainOverview:
    """Look at the specs of a pipeline as far as it works."""
    bench = job.cached("bench", lambda: EnvBench(request.allow_code))
    return overview(request.pipeline, bench)


def check_chain(request: CheckChain, job: Job) -> tuple[Finding, ...]:
    """Hold a pipeline against the rules, with steps where they are asked for."""
    report = check_pipeline(request.pipeline, allow_code=request.allow_code, steps=request.steps)
    return tuple(_with_draft_stage(finding, report.env_stages) for finding in report.findings)


def _with_draft_stage(finding: Finding, env_stages: int) -> Finding:
    """Count the stage of a finding from the draft's first; stages of the env are the env's."""
    stage = finding.where.stage
    if stage is None or not env_stages:
        return finding
    at = stage - env_stages
    return replace(finding, where=replace(finding.where, stage=at if at >= 0 else None))


def list_env_choices(request: ListEnvs, job: Job) -> tuple[EnvChoice, ...]:
    """Every env, those that can be made first."""
    from tdx.inspection.env_list import list_envs

    found = [EnvChoice(env.id, env.package, env.hint) for env in list_envs(missing=True)]
    return tuple(sorted(found, key=lambda env: env.hint is not None))
