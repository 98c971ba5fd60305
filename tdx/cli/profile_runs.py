"""Measurements of ``tdx profile``, and the files that it writes."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from tdx.cli.output import STDOUT, check_target, write_file
from tdx.cli.pipelines import PipelineOptions
from tdx.cli.runtime import report_interrupt
from tdx.foundation.errors import ArgumentError, EnvError, ExitCode

if TYPE_CHECKING:
    from tdx.cli.options import OutputOptions
    from tdx.cli.views.profile import Extras
    from tdx.core import TransformedEnv
    from tdx.envs import EnvBase
    from tdx.pipeline import Pipeline
    from tdx.profiling.compare import Limit
    from tdx.profiling.interleaved import MarginalCosts
    from tdx.profiling.result import Mode, Profile
    from tdx.profiling.run import ProfilePlan
    from tdx.profiling.suggestions import Candidate, Suggestions
    from tdx.profiling.sweep import SweepResult
    from tdx.stacks import Stack
    from tdx.stacks.device_calls import DeviceCalls

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What to measure.

    Args:
        as_stack: If True, an env of another library runs in its own loop, not in rollouts of tdx.
        is_summary: If True, also find changes that may help.
    """

    config: Pipeline
    options: PipelineOptions
    modes: tuple[Mode, ...]
    plan: ProfilePlan
    policy: str | None = None
    as_stack: bool = False
    samples: str | None = None
    is_summary: bool = False

    def load_policy(self, target: EnvBase | Stack) -> Any:
        """Load the policy for an env or a stack."""
        from tdx.rollouts.policies.policy import load_actor

        steps = max(self.plan.steps, self.plan.warmup)
        allow_code = self.options.allow_code
        return load_actor(self.config, target, name=self.policy, steps=steps, allow_code=allow_code)


def silence_kineto() -> None:
    """Keep torch's profiler from writing to stderr; torch reads this when it is imported."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def subject_of(config: Pipeline) -> str:
    """Return the arguments for the pipeline, without the seed and the policy."""
    from tdx.pipeline import to_command

    bare = replace(config, policy=None, env=replace(config.env, seed=None))
    return to_command(bare, "tdx profile").removeprefix("tdx profile ")


def measure(
    request: ProfileRequest, *, with_marginal: bool = False
) -> tuple[Profile, tuple[MarginalCosts, ...], tuple[Candidate, ...]]:
    """Build the env and measure it, optionally also without each of its stages.

    Returns the profile, the marginal costs, and for a summary the changes that may help.

    Raises:
        TdxError: The env cannot be built.
        KeyboardInterrupt: The user pressed Ctrl-C before the first measurement.
    """
    from tdx.cli.pipelines import open_env, open_pipeline
    from tdx.cli.progress import activity_on
    from tdx.core import TransformedEnv
    from tdx.profiling.context import profile_stack
    from tdx.profiling.interleaved import measure_marginal_costs
    from tdx.profiling.run import profile_env
    from tdx.profiling.suggestions import find_candidates

    if request.as_stack:
        with (
            activity_on(sys.stderr) as on_progress,
            open_pipeline(
                request.config, request.options, is_measured=True, samples=request.samples
            ) as stack,
        ):
            policy = request.load_policy(stack)
            plan = replace(request.plan, policy=policy, on_progress=on_progress)
            if stack.chain_env is not None:
                return profile_env(stack.chain_env, request.modes, plan), (), ()
            return profile_stack(stack, plan), (), ()
    result: Profile | None = None
    candidates: dict[str, Candidate] = {}
    costs: list[MarginalCosts] = []
    try:
        with (
            activity_on(sys.stderr) as on_progress,
            open_env(request.config, request.options) as env,
        ):
            plan = replace(request.plan, policy=request.load_policy(env), on_progress=on_progress)
            result = profile_env(env, request.modes, plan)
            if request.is_summary and isinstance(env, TransformedEnv):
                found = find_candidates(request.config, env)
                candidates = {candidate.change: candidate for candidate in found}
            for mode in request.modes if with_marginal and profile_error(result) is None else ():
                costs.append(measure_marginal_costs(env, mode, plan))
                if costs[-1].error is not None:
                    break
    except KeyboardInterrupt:
        if result is None:
            raise
    return result, tuple(costs), tuple(candidates.values())


def count_calls(request: ProfileRequest) -> DeviceCalls:
    """Count the launches, copies and waits of a pipeline or checkpoint on a simulated device."""
    from tdx.cli.pipelines import open_env
    from tdx.cli.runtime import third_party_code
    from tdx.rollouts.samples import read_samples
    from tdx.stacks.checkpoints import is_checkpoint, read_checkpoint
    from tdx.stacks.checkpoints.device_calls import count_checkpoint_calls
    from tdx.stacks.device_calls import count_device_calls

    if is_checkpoint(request.config.env.id):
        checkpoint = read_checkpoint(request.config.env.id)
        with third_party_code():
            return count_checkpoint_calls(
                checkpoint,
                None if request.samples is None else read_samples(request.samples),
                allow_code=request.options.allow_code,
                steps=request.plan.steps,
                seed=request.plan.seed,
            )

    # The pipeline names no device: the env is moved to it once it is built.
    config = replace(request.config, env=replace(request.config.env, device=None))
    with ExitStack() as opened:
        return count_device_calls(
            lambda: opened.enter_context(open_env(config, request.options)),
            subject=request.plan.subject,
            steps=request.plan.steps,
            load_policy=request.load_policy,
            seed=request.plan.seed,
            planned=request.modes == ("planned",),
        )


def try_advice(request: ProfileRequest, profile: Profile) -> tuple[Suggestions, ...]:
    """Try changes that may make the pipeline faster, in each measured mode."""
    from tdx.cli.progress import activity_on
    from tdx.cli.runtime import third_party_code
    from tdx.profiling.suggestions import Suggestions, try_changes

    results: list[Suggestions] = []
    try:
        with activity_on(sys.stderr) as on_progress, third_party_code():
            plan = replace(request.plan, on_progress=on_progress)
            lint_fixes = _lint_fixes(request)
            for mode in profile.modes:
                advice = try_changes(
                    request.config,
                    mode,
                    plan,
                    allow_code=request.options.allow_code,
                    further=lint_fixes,
                    policy_of=request.load_policy,
                )
                results.append(advice)
                if advice.interrupted:
                    break
    except KeyboardInterrupt:
        if not any(advice.interrupted for advice in results):
            results.append(Suggestions(profile.modes[-1].mode, (), (), (), interrupted=True))
    return tuple(results)


def _lint_fixes(request: ProfileRequest) -> list[Candidate]:
    """Return the fixes that the linter suggests."""
    from tdx.cli.pipelines import open_env
    from tdx.inspection.lint.linter import build_lint_context, lint
    from tdx.pipeline.build import count_env_stages
    from tdx.profiling.suggestions import Candidate

    config = request.config
    with open_env(config, request.options) as env:
        findings = lint(build_lint_context(config, cast("TransformedEnv", env)))
        first = count_env_stages(env, config)
    return [
        Candidate(
            "lint",
            () if finding.violation.stage is None else (first + finding.violation.stage,),
            f"{finding.rule.code}: {finding.violation.message}",
            finding.violation.fix.title,
            finding.violation.fix.applied_to(config),
        )
        for finding in findings
        if finding.violation.fix is not None
    ]


def profile_error(profile: Profile) -> str | None:
    """Return why the measurement stopped early, if it did."""
    return next((mode.error for mode in profile.modes if mode.error is not None), None)


def raise_error(error: str | None) -> None:
    """Raise the error that stopped a measurement, after its result is shown.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
        EnvError: The env failed.
    """
    if error == INTERRUPTED:
        report_interrupt("interrupted: showing the measurements so far")
        raise KeyboardInterrupt
    if error is not None:
        sys.stdout.flush()
        raise EnvError(error, hint="the measurements before the error are shown")


@dataclass(frozen=True, slots=True)
class ProfileFiles:
    """Files that ``tdx profile`` writes."""

    paths: dict[str, str | None]
    force: bool

    def __post_init__(self) -> None:
        on_stdout = [option for option, path in self.paths.items() if path == STDOUT]
        if len(on_stdout) > 1:
            raise ArgumentError(
                f"{' and '.join(on_stdout)} cannot both write to stdout",
                hint="name a file for one of them",
            )
        for path in self.paths.values():
            if path is not None:
                check_target(path, force=self.force)

    @property
    def use_stdout(self) -> bool:
        """True if one of the files is written to stdout."""
        return STDOUT in self.paths.values()

    @property
    def requested(self) -> list[str]:
        """Options of the requested files."""
        return [option for option, path in self.paths.items() if path is not None]

    def write(self, profile: Profile, extras: Extras) -> None:
        """Write the requested files."""
        from tdx.cli.html import html_page
        from tdx.cli.views.profile import profile_view
        from tdx.profiling.saved import format_profile
        from tdx.profiling.traces import describe_omitted_calls, to_chrome_trace, to_speedscope

        for option in self.requested:
            if option == "--record-trace":
                # The measurement wrote it, unless it ended before.
                if profile_error(profile) is None:
                    print(f"wrote {self.paths[option]}", file=sys.stderr)
                continue
            if option == "--out":
                text = format_profile(profile)
            elif option == "--html":
                text = html_page(profile_view(profile, extras=extras).blocks())
            else:
                if (cut := describe_omitted_calls(profile)) is not None:
                    note = f"note: {option} has {cut}; use fewer --steps to see all"
                    print(note, file=sys.stderr)
                convert = to_chrome_trace if option == "--trace" else to_speedscope
                text = json.dumps(convert(profile), allow_nan=False) + "\n"
            self.write_text(option, text)

    def write_text(self, option: str, text: str) -> None:
        """Write the file of one option."""
        path = self.paths[option]
        assert path is not None
        write_file(path, text, force=self.force)
        if path != STDOUT:
            print(f"wrote {path}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Reference:
    """Profile to compare with, and the limits of the comparison.

    Args:
        path: File of the profile; empty if there is none.
        force: If True, compare profiles of different pipelines or machines.
    """

    path: str
    profile: Profile | None
    limits: tuple[Limit, ...]
    force: bool

    @classmethod
    def read(
        cls, path: str | None, fail_if: list[str] | None, force: bool, plan: ProfilePlan
    ) -> Reference:
        """Read ``--baseline``; check before measuring that the profiles can be compared."""
        from tdx.profiling.compare import compare_profiles, parse_limits
        from tdx.profiling.machine import detect_machine
        from tdx.profiling.saved import read_profile

        limits = parse_limits(fail_if or ())
        if path is None:
            if limits:
                hint = "add --baseline FILE, a profile saved by --out"
                raise ArgumentError("--fail-if needs a profile to compare with", hint=hint)
            return cls("", None, (), force)
        before = read_profile(path)
        machine = detect_machine()
        if plan.threads is not None:
            machine = replace(machine, threads=plan.threads)
        settings = replace(
            before.settings,
            steps=plan.steps,
            warmup=plan.warmup,
            repeats=plan.repeats,
            sync=plan.sync,
        )
        now = replace(before, subject=plan.subject, settings=settings, machine=machine)
        compare_profiles(before, now, limits, force=force)
        return cls(path, before, limits, force)

    def extras(self, result: Profile) -> Extras:
        """Return the comparison with a new profile, if there is a reference and no error."""
        from tdx.cli.views.profile import Extras
        from tdx.profiling.compare import compare_profiles

        comparison = None
        if self.profile is not None and profile_error(result) is None:
            comparison = compare_profiles(self.profile, result, self.limits, force=self.force)
            comparison = replace(comparison, baseline=self.path)
        return Extras(comparison=comparison)


def show_sweep(
    request: ProfileRequest,
    settings: list[str],
    files: ProfileFiles,
    output: OutputOptions,
) -> int:
    """Measure the pipeline with each combination of some settings, and show the result."""
    from tdx.cli.html import html_page
    from tdx.cli.output import write_view
    from tdx.cli.progress import activity_on
    from tdx.cli.runtime import third_party_code
    from tdx.cli.views.profile_sweep import sweep_view
    from tdx.profiling.sweep import parse_sweep, run_sweep

    axes = parse_sweep(settings, request.config)
    result: SweepResult | None = None
    try:
        with activity_on(sys.stderr) as on_progress, third_party_code():
            result = run_sweep(
                request.config,
                axes,
                request.modes,
                replace(request.plan, on_progress=on_progress),
                allow_code=request.options.allow_code,
                policy_of=request.load_policy,
            )
    except KeyboardInterrupt:
        if result is None:
            raise
    view = sweep_view(request.plan.subject, result)
    if "--html" in files.requested:
        files.write_text("--html", html_page(view.blocks()))
    if not files.use_stdout:
        write_view(view, output)
    problems = [cell.problem for cell in result.cells]
    raise_error(INTERRUPTED if result.interrupted else problems[0] if all(problems) else None)
    return ExitCode.OK
