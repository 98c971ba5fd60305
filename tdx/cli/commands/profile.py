"""``tdx profile``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tdx.cli.measuring import (
    Request,
    advised,
    end_with,
    error_of,
    measured,
    silence_torch,
    subject_of,
    swept,
)
from tdx.cli.options import FileArgument, OutputOptions, PipelineOptions
from tdx.cli.policy import PolicyName
from tdx.cli.profile_files import ProfileFiles
from tdx.cli.profile_options import (
    MODES,
    PASSES,
    Advices,
    AllWrappers,
    Baseline,
    DryRun,
    FailIf,
    Force,
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
    several,
)
from tdx.errors import ArgumentError, ExitCode

if TYPE_CHECKING:
    from tdx.cli.views.profile_view import Extras, Layout
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
    """Measure what each part of a rollout costs: env, policy, every stage, and tdx itself.

    Where the env fails, or Ctrl-C ends it, what was measured until then is shown.

    `tdx profile compare A.json B.json` compares two that --save has kept.

    tdx profile --env Pendulum-v1 --t RewardSum --mode all
    """
    silence_torch()
    from tdx.cli.source import read_pipeline, with_file
    from tdx.cli.views.profile_view import Layout
    from tdx.profiling.run import ProfilePlan

    modes: Any = several(mode, MODES, "--mode", every="all") or ("planned",)
    wanted: Any = several(passes, PASSES, "--passes", nothing="none")
    paths = {"--save": save, "--trace": trace, "--speedscope": speedscope, "--html": html}
    files = ProfileFiles(paths, force)
    config = read_pipeline(with_file(pipeline, file))
    plan = ProfilePlan(
        steps=steps,
        warmup=warmup,
        repeats=repeat,
        policy_name=policy or config.policy or "random",
        seed=config.env.seed,
        threads=threads,
        passes=PASSES if wanted is None else wanted,
        subject=subject_of(config),
        sync=sync,
        all_wrappers=all_wrappers,
    )
    request = Request(config, pipeline, modes, plan, policy)
    if sweep:
        others = {"--marginal": marginal, "--advice": advice, "--baseline": baseline}
        others["--dry-run"] = dry_run
        _no_others(files, {**others, "--fail-if": fail_if})
        return _sweep(request, sweep, files, output)
    if dry_run:
        return _estimate(request, output)
    held = _Baseline.read(baseline, fail_if, force, plan)
    layout = Layout(cast(Any, sort), top, histogram)
    found, extras, stopped = _measured(request, held, marginal=marginal, advice=advice)
    files.write(found, extras)
    if not files.take_stdout:
        _show(found, layout, extras, output)
    end_with(stopped)
    return ExitCode.FINDINGS if extras.failed else ExitCode.OK


def _measured(
    request: Request, held: _Baseline, *, marginal: bool, advice: bool
) -> tuple[Profile, Extras, str | None]:
    """The profile, all that was found besides, and what ended it early."""
    found, costs = measured(request, with_marginal=marginal)
    stopped = error_of(found) or next((cost.error for cost in costs if cost.error), None)
    tried = advised(request, found) if advice and stopped is None else ()
    extras = replace(held.extras(found), marginal=costs, advice=tried)
    return found, extras, "interrupted" if any(each.interrupted for _, each in tried) else stopped


def _estimate(request: Request, output: OutputOptions) -> int:
    """Measure few steps, and show how long all of them would take."""
    from tdx.cli.output.write import write
    from tdx.cli.views.estimate_view import estimate_view
    from tdx.profiling.run import estimate_duration, shorten_plan

    found, _ = measured(replace(request, plan=shorten_plan(request.plan)))
    end_with(error_of(found))
    write(estimate_view(request.plan, estimate_duration(found, request.plan)), output)
    return ExitCode.OK


def _no_others(files: ProfileFiles, options: dict[str, Any]) -> None:
    given = [option for option, value in options.items() if value]
    given += [option for option in files.asked_for if option != "--html"]
    if given:
        raise ArgumentError(
            f"--sweep and {given[0]} do not go together",
            hint="--format json and --html have all of a sweep",
        )


def _sweep(request: Request, texts: list[str], files: ProfileFiles, output: OutputOptions) -> int:
    from tdx.cli.html.profile_page import sweep_page
    from tdx.cli.output.write import write
    from tdx.cli.views.sweep_view import sweep_view

    found = swept(request, texts)
    if "--html" in files.asked_for:
        files.write_text("--html", sweep_page(request.plan.subject, found))
    if not files.take_stdout:
        write(sweep_view(request.plan.subject, found), output)
    problems = [cell.problem for cell in found.cells]
    end_with("interrupted" if found.interrupted else problems[0] if all(problems) else None)
    return ExitCode.OK


def _show(found: Profile, layout: Layout, extras: Extras, output: OutputOptions) -> None:
    from tdx.cli.output.write import write
    from tdx.cli.views.profile_view import profile_view

    write(profile_view(found, layout, extras), output)


class _Baseline:
    """What a profile is held against, if it is."""

    def __init__(
        self, path: str, before: Profile | None, limits: tuple[Limit, ...], force: bool
    ) -> None:
        self._path, self._before = path, before
        self._limits, self._force = limits, force

    @classmethod
    def read(
        cls, path: str | None, fail_if: list[str] | None, force: bool, plan: ProfilePlan
    ) -> _Baseline:
        """Read it, and make sure that it can be compared with before anything is measured.

        Raises:
            ArgumentError: it cannot be read, or was measured with another pipeline or machine.
        """
        from tdx.profiling.compare import compare_profiles, parse_limits
        from tdx.profiling.machine import detect_machine
        from tdx.profiling.saved import read_profile

        limits = parse_limits(fail_if or ())
        if path is None:
            if limits:
                raise ArgumentError("--fail-if needs something to compare with", hint=_SAVED)
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

    def extras(self, found: Profile) -> Extras:
        """What has changed, to be shown beside a profile."""
        from tdx.cli.views.profile_view import Extras
        from tdx.profiling.compare import compare_profiles

        whole = self._before is not None and error_of(found) is None
        change = None
        if whole and self._before is not None:
            change = compare_profiles(self._before, found, self._limits, force=self._force)
        return Extras((), change, self._limits, self._path)


_SAVED = "add --baseline FILE, a profile that --save has kept"
