"""Build what ``tdx profile`` measures, and measure it."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from tdx.cli.options import PipelineOptions
from tdx.errors import EnvError

if TYPE_CHECKING:
    from tdx.core import TransformedEnv
    from tdx.envs import EnvBase
    from tdx.pipeline import Pipeline
    from tdx.profiling.candidates import Candidate
    from tdx.profiling.marginal import MarginalCosts
    from tdx.profiling.result import Mode, Profile
    from tdx.profiling.run import ProfilePlan
    from tdx.profiling.suggestions import Suggestions
    from tdx.profiling.sweep import SweepResult

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be measured.

    Args:
        config: the pipeline.
        options: how it was given.
        modes: ways of running it.
        plan: steps, repeats and so on.
        policy: value of ``--policy``; without it the policy of the pipeline acts.
    """

    config: Pipeline
    options: PipelineOptions
    modes: tuple[Mode, ...]
    plan: ProfilePlan
    policy: str | None = None

    def actor(self, env: EnvBase) -> Any:
        """What gives the actions in an env."""
        from tdx.cli.policy import acting

        longest = max(self.plan.steps, self.plan.warmup)
        allow_code = self.options.allow_code
        return acting(self.policy, self.config, env, longest, allow_code=allow_code)


def silence_torch() -> None:
    """Have torch's own profiler write nothing to stderr; it asks when torch is imported."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def subject_of(config: Pipeline) -> str:
    """What is measured: the pipeline as options, without what says how it is measured."""
    from tdx.pipeline import to_flags

    bare = replace(config, policy=None, env=replace(config.env, seed=None))
    return shlex.join(to_flags(bare))


def measured(
    request: Request, *, with_marginal: bool = False
) -> tuple[Profile, tuple[MarginalCosts, ...]]:
    """Build the env and measure it, and what each stage costs the others if that is asked for.

    Raises:
        TdxError: it cannot be built.
        KeyboardInterrupt: the user pressed Ctrl-C before anything was measured.
    """
    from tdx.cli.progress import counting_on
    from tdx.cli.source import built_env
    from tdx.profiling.run import profile_env

    found: list[Profile] = []
    costs: list[MarginalCosts] = []
    try:
        with (
            counting_on(sys.stderr) as on_progress,
            built_env(request.config, request.options) as env,
        ):
            plan = replace(request.plan, policy=request.actor(env), on_progress=on_progress)
            found.append(profile_env(env, request.modes, plan))
            if with_marginal and error_of(found[0]) is None:
                costs += _marginal(env, request.modes, plan)
    except KeyboardInterrupt:
        if not found:
            raise
    return found[0], tuple(costs)


def _marginal(env: EnvBase, modes: tuple[Mode, ...], plan: ProfilePlan) -> list[MarginalCosts]:
    from tdx.profiling.marginal import measure_marginal_costs

    found: list[MarginalCosts] = []
    for mode in modes:
        found.append(measure_marginal_costs(env, mode, plan))
        if found[-1].error is not None:
            break
    return found


def advised(request: Request, found: Profile) -> tuple[tuple[Mode, Suggestions], ...]:
    """Try what may make the pipeline cheaper, in each mode that was measured.

    Args:
        request: what was measured.
        found: the profile.
    """
    from tdx.cli.foreign_code import foreign_code
    from tdx.cli.progress import counting_on
    from tdx.profiling.suggestions import Suggestions, try_changes

    tried: list[tuple[Mode, Suggestions]] = []
    try:
        with counting_on(sys.stderr) as on_progress, foreign_code():
            plan = replace(request.plan, on_progress=on_progress)
            further = _mended(request)
            for mode in found.modes:
                advice = try_changes(
                    request.config,
                    mode,
                    plan,
                    allow_code=request.options.allow_code,
                    further=further,
                    policy_of=request.actor,
                )
                tried.append((mode.mode, advice))
                if advice.interrupted:
                    break
    except KeyboardInterrupt:
        if not any(advice.interrupted for _, advice in tried):
            tried.append((found.modes[-1].mode, Suggestions((), (), (), interrupted=True)))
    return tuple(tried)


def _mended(request: Request) -> list[Candidate]:
    """What the linter would change."""
    from tdx.cli.source import built_env
    from tdx.inspection.lint.run import lint, lint_context
    from tdx.inspection.stage_text import env_stage_count
    from tdx.profiling.candidates import Candidate

    config = request.config
    with built_env(config, request.options) as env:
        findings = lint(lint_context(config, cast("TransformedEnv", env)))
        first = env_stage_count(env, config)
    return [
        Candidate(
            "lint",
            () if each.found.stage is None else (first + each.found.stage,),
            f"{each.rule.code}: {each.found.message}",
            each.found.fix.title,
            each.found.fix.applied_to(config),
        )
        for each in findings
        if each.found.fix is not None
    ]


def swept(request: Request, texts: list[str]) -> SweepResult:
    """Measure the pipeline with every combination of some settings.

    Args:
        request: what is measured.
        texts: the settings, as they were given.

    Raises:
        TdxError: there is no such setting.
    """
    from tdx.cli.foreign_code import foreign_code
    from tdx.cli.progress import counting_on
    from tdx.profiling.sweep import run_sweep
    from tdx.profiling.sweep_axes import parse_sweep

    axes = parse_sweep(texts, request.config)
    found: list[SweepResult] = []
    try:
        with counting_on(sys.stderr) as on_progress, foreign_code():
            found.append(
                run_sweep(
                    request.config,
                    axes,
                    request.modes,
                    replace(request.plan, on_progress=on_progress),
                    allow_code=request.options.allow_code,
                    policy_of=request.actor,
                )
            )
    except KeyboardInterrupt:
        if not found:
            raise
    return found[0]


def error_of(found: Profile) -> str | None:
    """Why it ended early, if it did."""
    return next((mode.error for mode in found.modes if mode.error is not None), None)


def end_with(error: str | None) -> None:
    """End as the measurement ended, after all that it found is shown.

    Raises:
        KeyboardInterrupt: the user ended it.
        EnvError: the env did.
    """
    if error == INTERRUPTED:
        print("interrupted: this is what was measured until then", file=sys.stderr)
        raise KeyboardInterrupt
    if error is not None:
        sys.stdout.flush()
        raise EnvError(error, hint="what was measured until then is shown")
