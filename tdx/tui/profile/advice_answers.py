"""Tries what may make a pipeline cheaper; runs in a worker of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import cast

from tdx.core.transformed_env import TransformedEnv
from tdx.envs import EnvBase
from tdx.inspection.lint.linter import build_lint_context, lint
from tdx.pipeline import build_env
from tdx.profiling.candidates import Candidate
from tdx.profiling.run import profile_env
from tdx.profiling.suggestions import Suggestions, TriedChange, try_changes
from tdx.tui.backend.job import Job
from tdx.tui.profile.answers import interrupted_by, plan_for, policy_for
from tdx.tui.profile.requests import PROGRESS, AdviceFound, Advise, Tried
from tdx.tui.profile.requests import Progress as Told

_INTERRUPTED = "interrupted"


def advise_pipeline(request: Advise, job: Job) -> AdviceFound:
    """Measure a pipeline, then every change of it that may be worth something."""
    with suppress(KeyboardInterrupt), interrupted_by(job):
        job.push(PROGRESS, Told("making the env", 0, 1))
        env = build_env(request.pipeline, request.allow_code)
        try:
            plan = plan_for(request, env, job, ("device",))
            (measured,) = profile_env(env, [request.mode], plan).modes
            if measured.error is not None:
                return AdviceFound(request.mode, error=measured.error)
            further = list(_mended(request, env))
        finally:
            env.close()
        plan = replace(plan, policy=None, passes=())
        advised = try_changes(
            request.pipeline,
            measured,
            plan,
            allow_code=request.allow_code,
            further=further,
            policy_of=partial(policy_for, request),
        )
        return _found(request, advised)
    return AdviceFound(request.mode, error=_INTERRUPTED)


def _mended(request: Advise, env: EnvBase) -> Iterator[Candidate]:
    """What the rules of ``tdx check`` would change."""
    for each in lint(build_lint_context(request.pipeline, cast("TransformedEnv", env))):
        stage, fix = each.violation.stage, each.violation.fix
        if fix is not None:
            yield Candidate(
                "lint",
                () if stage is None else (stage,),
                f"{each.rule.code}: {each.violation.message}",
                fix.title,
                fix.applied_to(request.pipeline),
            )


def _found(request: Advise, advised: Suggestions) -> AdviceFound:
    return AdviceFound(
        request.mode,
        tuple(_tried(each) for each in advised.advice),
        tuple(_tried(each) for each in advised.without_gain),
        advised.refused,
        _INTERRUPTED if advised.interrupted else None,
    )


def _tried(advice: TriedChange) -> Tried:
    candidate, saving = advice.candidate, advice.saving
    is_edit = candidate.prepare is None and candidate.mode is None
    return Tried(
        candidate.change,
        candidate.found,
        saving.before_us,
        saving.saved_us,
        saving.noise_us,
        advice.values,
        candidate.pipeline if is_edit else None,
    )
