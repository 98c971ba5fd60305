"""``tdx profile`` and ``tdx profile compare``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from tdx.cli.commands.profile_options import (
    MODES,
    PASSES,
    Advices,
    After,
    AllWrappers,
    Baseline,
    Before,
    DryRun,
    FailIf,
    Force,
    ForceCompare,
    Histograms,
    Html,
    Marginals,
    Modes,
    Passes,
    Repeat,
    Save,
    Sort,
    Speedscope,
    Steps,
    Sweeps,
    Sync,
    Threads,
    Top,
    Trace,
    Warmup,
    parse_names,
)
from tdx.cli.options import FileArgument, OutputOptions, PipelineOptions
from tdx.cli.pipelines import PolicyName
from tdx.cli.profile_runs import (
    INTERRUPTED,
    ProfileFiles,
    ProfileRequest,
    measure,
    measure_sweep,
    profile_error,
    raise_error,
    silence_kineto,
    subject_of,
    try_advice,
)
from tdx.errors import ArgumentError, ExitCode

if TYPE_CHECKING:
    from tdx.cli.views.profile import Extras
    from tdx.profiling.compare import Limit
    from tdx.profiling.result import Profile
    from tdx.profiling.run import ProfilePlan


def profile(
    pipeline: PipelineOptions,
    output: OutputOptions,
    file: FileArgument = None,
    steps: Steps = 1000,
    warmup: Warmup = 100,
    repeat: Repeat = 5,
    mode: Modes = None,
    policy: PolicyName = None,
    threads: Threads = None,
    passes: Passes = None,
    marginal: Marginals = False,
    advice: Advices = False,
    sweep: Sweeps = None,
    sync: Sync = False,
    all_wrappers: AllWrappers = False,
    dry_run: DryRun = False,
    sort: Sort = "chain",
    top: Top = None,
    histogram: Histograms = False,
    save: Save = None,
    trace: Trace = None,
    speedscope: Speedscope = None,
    html: Html = None,
    baseline: Baseline = None,
    fail_if: FailIf = None,
    force: Force = False,
) -> int:
    """Measure the cost of each part of a rollout: env, policy, every stage, and tdx itself.

    If the env fails or you press Ctrl-C, the measurements so far are shown.
    `tdx profile compare A.json B.json` compares two profiles saved by --save.

    tdx profile --env Pendulum-v1 --t RewardSum --mode all
    """
    silence_kineto()
    from tdx.cli.pipelines import names_stack
    from tdx.cli.views.profile import Layout
    from tdx.profiling.run import ProfilePlan

    paths = {"--save": save, "--trace": trace, "--speedscope": speedscope, "--html": html}
    files = ProfileFiles(paths, force)
    plan = ProfilePlan(
        steps=steps,
        warmup=warmup,
        repeats=repeat,
        threads=threads,
        passes=_pass_names(passes),
        sync=sync,
        all_wrappers=all_wrappers,
    )
    request = _request(pipeline, file, plan, mode, policy)
    rollout_options = (mode, passes, sweep, sync, marginal, advice)
    if names_stack(request.config) and not any(rollout_options):
        request = replace(request, as_stack=True)
    if sweep:
        others = {"--marginal": marginal, "--advice": advice, "--baseline": baseline}
        _refuse(files, others | {"--dry-run": dry_run, "--fail-if": fail_if})
        return _sweep(request, sweep, files, output)
    if dry_run:
        return _estimate(request, output)
    reference = _Reference.read(baseline, fail_if, force, request.plan)
    layout = Layout(cast(Any, sort), top, histogram)
    return _measure(request, reference, files, layout, output, marginal=marginal, advice=advice)


def _pass_names(values: list[str] | None) -> Any:
    names = parse_names(values, PASSES, "--passes", none_name="none")
    return PASSES if names is None else names


def _request(
    pipeline: PipelineOptions,
    file: str | None,
    plan: ProfilePlan,
    mode: list[str] | None,
    policy: str | None,
) -> ProfileRequest:
    """Return what to measure, with what the plan needs to know of the pipeline."""
    from tdx.cli.pipelines import read_pipeline, with_file

    modes: Any = parse_names(mode, MODES, "--mode", all_name="all") or ("planned",)
    config = read_pipeline(with_file(pipeline, file))
    plan = replace(
        plan,
        policy_name=policy or config.policy or "random",
        seed=config.env.seed,
        subject=subject_of(config),
    )
    return ProfileRequest(config, pipeline, modes, plan, policy)


def _measure(
    request: ProfileRequest,
    reference: _Reference,
    files: ProfileFiles,
    layout: Any,
    output: OutputOptions,
    *,
    marginal: bool,
    advice: bool,
) -> int:
    """Measure, write the files, show the profile, and raise the error that stopped it early."""
    from tdx.cli.output.write import write_view
    from tdx.cli.views.profile import profile_view

    result, costs = measure(request, with_marginal=marginal)
    error = profile_error(result) or next((cost.error for cost in costs if cost.error), None)
    advised = try_advice(request, result) if advice and error is None else ()
    extras = replace(reference.extras(result), marginal=costs, advice=advised)
    files.write(result, extras)
    if not files.use_stdout:
        write_view(profile_view(result, layout, extras), output)
    raise_error(INTERRUPTED if any(each.interrupted for _, each in advised) else error)
    return ExitCode.FINDINGS if extras.failed else ExitCode.OK


def _estimate(request: ProfileRequest, output: OutputOptions) -> int:
    """Measure a few steps and show how long the whole measurement would take."""
    from tdx.cli.output.write import write_view
    from tdx.cli.views.profile_sweep import estimate_view
    from tdx.profiling.run import estimate_duration, shorten_plan

    result, _ = measure(replace(request, plan=shorten_plan(request.plan)))
    raise_error(profile_error(result))
    write_view(estimate_view(request.plan, estimate_duration(result, request.plan)), output)
    return ExitCode.OK


def _refuse(files: ProfileFiles, options: dict[str, Any]) -> None:
    """Refuse options that do not work with ``--sweep``."""
    conflicts = [option for option, value in options.items() if value]
    conflicts += [option for option in files.requested if option != "--html"]
    if conflicts:
        raise ArgumentError(
            f"--sweep and {conflicts[0]} cannot be combined",
            hint="--format json and --html contain the whole sweep",
        )


def _sweep(
    request: ProfileRequest, settings: list[str], files: ProfileFiles, output: OutputOptions
) -> int:
    from tdx.cli.html.profile import sweep_page
    from tdx.cli.output.write import write_view
    from tdx.cli.views.profile_sweep import sweep_view

    result = measure_sweep(request, settings)
    if "--html" in files.requested:
        files.write_text("--html", sweep_page(request.plan.subject, result))
    if not files.use_stdout:
        write_view(sweep_view(request.plan.subject, result), output)
    problems = [cell.problem for cell in result.cells]
    raise_error(INTERRUPTED if result.interrupted else problems[0] if all(problems) else None)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Reference:
    """Profile to compare with, and the limits of the comparison.

    Args:
        path: File of the profile; empty if there is none.
        profile: Profile to compare with.
        limits: Largest allowed increases.
        force: If True, compare profiles of different pipelines or machines.
    """

    path: str
    profile: Profile | None
    limits: tuple[Limit, ...]
    force: bool

    @classmethod
    def read(
        cls, path: str | None, fail_if: list[str] | None, force: bool, plan: ProfilePlan
    ) -> _Reference:
        """Read ``--baseline``; check before measuring that the profiles can be compared.

        Raises:
            ArgumentError: The file is invalid, or is of another pipeline or machine.
        """
        from tdx.profiling.compare import compare_profiles, parse_limits
        from tdx.profiling.machine import detect_machine
        from tdx.profiling.saved import read_profile

        limits = parse_limits(fail_if or ())
        if path is None:
            if limits:
                hint = "add --baseline FILE, a profile saved by --save"
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
        return Extras((), comparison, self.limits, self.path)


def profile_compare(
    output: OutputOptions,
    before: Before,
    after: After,
    fail_if: FailIf = None,
    force: ForceCompare = False,
) -> int:
    """Compare two profiles: show which parts are slower by more than the noise.

    tdx profile compare base.json now.json --fail-if p95:10%
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.views.profile_comparisons import comparison_view
    from tdx.profiling.compare import compare_profiles, parse_limits
    from tdx.profiling.saved import read_profile

    limits = parse_limits(fail_if or ())
    result = compare_profiles(read_profile(before), read_profile(after), limits, force=force)
    write_view(comparison_view(result, limits, before, after), output)
    return ExitCode.FINDINGS if result.failures else ExitCode.OK
