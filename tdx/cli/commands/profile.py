"""``tdx profile`` and ``tdx profile compare``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tdx.cli.completion import complete_last
from tdx.cli.options import (
    Format,
    Functions,
    OutputOptions,
    integer_option,
    split_list,
)
from tdx.cli.pipelines import PolicyName, Samples, TargetOptions
from tdx.cli.profile_runs import (
    INTERRUPTED,
    ProfileFiles,
    ProfileRequest,
    Reference,
    count_calls,
    measure,
    profile_error,
    raise_error,
    show_sweep,
    silence_kineto,
    subject_of,
    try_advice,
)
from tdx.foundation.errors import ArgumentError, ExitCode, UnknownNameError, did_you_mean
from tdx.profiling.plain import MODES, PASSES

if TYPE_CHECKING:
    from tdx.cli.views import View
    from tdx.profiling.run import ProfilePlan


ORDERS = ("chain", "share", "n", "mean", "p50", "p90", "p95", "p99", "max", "iqr")
STEPS, WARMUP, REPEATS = 1000, 100, 5
# Each operator costs there many times what it does alone, and every step the same.
SIMULATED_STEPS = 100
_FILES, _OUTPUT = "Files", "Output"


def _file_option(*spellings: str, help: str) -> Any:
    return typer.Option(*spellings, metavar="FILE", help=help, rich_help_panel=_FILES)


def _complete_list(*names: str) -> Callable[[str], list[str]]:
    """Return a completion function for the last of a comma-separated list of names."""
    return lambda incomplete: complete_last(incomplete, names)


def parse_order(text: str) -> str:
    """Parse the column to sort by; suggest the nearest spelling of an unknown one."""
    if text.lower() in ORDERS:
        return text.lower()
    hint = did_you_mean(text, ORDERS, otherwise=f"one of {', '.join(ORDERS)}")
    raise UnknownNameError(f"invalid value {text!r} for --sort", hint=hint)


def parse_names(
    values: list[str] | None,
    known: tuple[str, ...],
    option: str,
    *,
    all_name: str | None = None,
    none_name: str | None = None,
) -> Any:
    """Parse an option that accepts several names, repeated or separated by commas.

    ``all_name`` stands for all known names, ``none_name`` for none. ``None``: the option is not
    given.
    """
    if not values:
        return None
    names: list[str] = []
    for name in split_list(values):
        if name == all_name:
            names += known
        elif name in known:
            names.append(name)
        elif name != none_name:
            valid = [*known, *(word for word in (all_name, none_name) if word is not None)]
            hint = did_you_mean(name, valid, otherwise=f"one of {', '.join(valid)}")
            raise UnknownNameError(f"invalid value {name!r} for {option}", hint=hint)
    return tuple(dict.fromkeys(names))


Steps = Annotated[
    int | None,
    integer_option(
        "--steps",
        1,
        f"Steps per repeat; {STEPS:,} by default, {SIMULATED_STEPS} on the simulated device.",
    ),
]
Warmup = Annotated[int, integer_option("--warmup", 0, "Steps to run before the first repeat.")]
Repeat = Annotated[int, integer_option("--repeat", 1, "Number of measured rollouts.")]
Threads = Annotated[
    int | None, integer_option("--threads", 1, "Number of threads of torch per operator.")
]
Modes = Annotated[
    list[str] | None,
    typer.Option(
        "--mode",
        metavar="MODES",
        autocompletion=_complete_list(*MODES, "all"),
        help="eager (step by step), planned (as rollouts run; the default), both separated by a "
        "comma, or all.",
    ),
]
Passes = Annotated[
    list[str] | None,
    typer.Option(
        "--passes",
        metavar="PASSES",
        autocompletion=_complete_list(*PASSES, "none"),
        help="Additional measurements, each in its own rollouts: memory, operators, device; or "
        "none. With --detail, a file or another format all by default, else device.",
    ),
]
Marginals = Annotated[
    bool,
    typer.Option(
        "--marginal",
        help="Also measure the chain without each stage, alternating with the full chain.",
    ),
]
Advices = Annotated[
    bool, typer.Option("--advice", help="Try changes that may reduce the cost, and measure them.")
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="SETTINGS",
        help="Measure each combination: 'num_envs=1,8,64 device=cpu,cuda'; also dtype, batching, "
        "mode, steps, threads, and arguments of stages such as Resize.w.",
    ),
]
Sync = Annotated[
    bool,
    typer.Option(
        "--sync",
        help="Synchronize the device around each part, so that its time includes its device "
        "work. Slower than a normal rollout.",
    ),
]
AllWrappers = Annotated[
    bool,
    typer.Option(
        "--all-wrappers",
        help="Also show the thin wrappers that gymnasium.make adds to every env.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run a few steps and estimate the total time.")
]
Calibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Measure the pipeline several times, and show the smallest change that a comparison "
        "can detect on this machine.",
    ),
]
Sort = Annotated[
    str,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        parser=parse_order,
        autocompletion=_complete_list(*ORDERS),
        help=f"Order of the rows: {', '.join(ORDERS)}; implies --detail.",
        rich_help_panel=_OUTPUT,
    ),
]
Detail = Annotated[
    bool,
    typer.Option(
        "--detail",
        help="Show every kind of call with its percentiles, memory, operators and device.",
        rich_help_panel=_OUTPUT,
    ),
]
Top = Annotated[
    int | None,
    integer_option(
        "--top", 1, "Show the N most expensive parts and the sum of the others.", panel=_OUTPUT
    ),
]
Histograms = Annotated[
    bool,
    typer.Option(
        "--histogram",
        help="Show the distribution of times of each row; implies --detail.",
        rich_help_panel=_OUTPUT,
    ),
]
Save = Annotated[
    str | None,
    _file_option(*("-o", "--out"), help="Save the profile as JSON with all samples; - is stdout."),
]
Trace = Annotated[
    str | None,
    _file_option(
        "--trace",
        help="Write a timeline for ui.perfetto.dev or chrome://tracing. Without a pipeline: "
        "analyze the trace of a GPU that torch's profiler wrote to FILE.",
    ),
]
RecordTrace = Annotated[
    str | None,
    _file_option(
        "--record-trace",
        help="Record a trace with torch's profiler and the stages as ranges, which --trace FILE "
        "without a pipeline analyzes. A name that ends in .gz compresses it.",
    ),
]
Speedscope = Annotated[
    str | None, _file_option("--speedscope", help="Write a flame chart for www.speedscope.app.")
]
Html = Annotated[str | None, _file_option("--html", help="Write a self-contained HTML report.")]
Baseline = Annotated[
    str | None, _file_option("--baseline", help="Compare with a profile saved by --out.")
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="LIMIT",
        help="Exit with 1 if a time grew by more than this and by more than the noise: "
        "p95:10%, mean:1ms, RewardSum.p99:20us. Can be repeated or separated by commas.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace existing files; compare with a baseline of another pipeline or machine.",
        rich_help_panel=_FILES,
    ),
]
Before = Annotated[
    str, typer.Argument(metavar="BEFORE", help="Profile to compare with, saved by --out.")
]
After = Annotated[str, typer.Argument(metavar="AFTER", help="Later profile, saved by --out.")]
ForceCompare = Annotated[
    bool,
    typer.Option("--force", help="Compare profiles of different pipelines or machines."),
]
CompareDetail = Annotated[
    bool,
    typer.Option(
        "--detail", help="Also show the parts that did not change.", rich_help_panel=_OUTPUT
    ),
]


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What is measured, what the table shows of it, and the files that are written."""

    steps: Steps = None
    warmup: Warmup = WARMUP
    repeat: Repeat = REPEATS
    mode: Modes = None
    policy: PolicyName = None
    threads: Threads = None
    passes: Passes = None
    marginal: Marginals = False
    advice: Advices = False
    sweep: Sweeps = None
    sync: Sync = False
    all_wrappers: AllWrappers = False
    dry_run: DryRun = False
    calibrate: Calibrate = False
    detail: Detail = False
    sort: Sort = "chain"
    top: Top = None
    histogram: Histograms = False
    save: Save = None
    trace: Trace = None
    record_trace: RecordTrace = None
    speedscope: Speedscope = None
    html: Html = None
    baseline: Baseline = None
    fail_if: FailIf = None
    force: Force = False
    samples: Samples = None

    def given(self, *names: str) -> dict[str, object]:
        """Return the options that are not their defaults: these, or all that name no file."""
        return {
            f"--{field.name.replace('_', '-')}": getattr(self, field.name)
            for field in fields(self)
            if (field.name in names if names else field.name not in _FILE_OPTIONS)
            and getattr(self, field.name) != field.default
        }

    def files(self, *, reads_trace: bool = False) -> ProfileFiles:
        """Return the files; with ``reads_trace``, the trace is the input."""
        paths = {
            "--out": self.save,
            "--trace": None if reads_trace else self.trace,
            "--record-trace": self.record_trace,
            "--speedscope": self.speedscope,
            "--html": self.html,
        }
        return ProfileFiles(paths, self.force)


_FILE_OPTIONS = ("save", "trace", "record_trace", "speedscope", "html", "force")
_OF_ROLLOUTS = ("mode", "passes", "sweep", "sync", "marginal", "advice")
"""Options that do not apply to the loop of a stack of another library."""


def profile(options: ProfileOptions, pipeline: TargetOptions, output: OutputOptions) -> int:
    """Measure what each part of a rollout costs.

    The parts are the env, the policy, every stage, and tdx itself. Shows the time per step, the
    most expensive parts, the bottleneck and what may help. --detail and the other formats show
    every measurement.

    If the env fails or you press Ctrl-C, the measurements so far are shown.
    `tdx profile compare A.json B.json` compares two profiles saved by --out.
    `tdx profile --trace FILE` without a pipeline reads a trace of the torch profiler.

    tdx profile Pendulum-v1 -t RewardSum --mode eager,planned

    tdx profile pendulum.yaml --passes none -o base.json --force
    """
    # Reading a trace needs no torch.
    if options.trace is not None and pipeline == TargetOptions():
        return _show_trace(options.trace, output, options.files(reads_trace=True), options.given())
    silence_kineto()
    from tdx.cli.views.profile import TableOptions
    from tdx.profiling.run import ProfilePlan
    from tdx.stacks.checkpoints import is_checkpoint

    files, record_trace, samples = options.files(), options.record_trace, options.samples
    wants_rows = options.detail or options.histogram or options.sort != "chain"
    is_summary = output.format is Format.TABLE and not wants_rows
    plan = ProfilePlan(
        steps=STEPS if options.steps is None else options.steps,
        warmup=options.warmup,
        repeats=options.repeat,
        threads=options.threads,
        passes=_pass_names(options.passes, is_summary=is_summary and not files.requested),
        sync=options.sync,
        all_wrappers=options.all_wrappers,
        record_trace=None if record_trace is None else Path(record_trace),
    )
    request = _build_request(pipeline, plan, options.mode, options.policy)
    of_rollouts = bool(options.given(*_OF_ROLLOUTS)) or record_trace is not None
    is_data = is_checkpoint(request.config.env.id)
    others = ("marginal", "advice", "baseline", "dry_run", "fail_if")
    if request.config.env.device == "simulated":
        from tdx.cli.views.profile_devices import device_calls_view

        unused = options.given("passes", "sweep", "sync", "calibrate", *others)
        if is_data:
            of_envs = options.given("mode", "policy") | {"--num-envs": pipeline.num_envs}
            _refuse("a policy checkpoint", files, of_envs)
        else:
            unused |= options.given("samples")
        if record_trace is not None:
            raise ArgumentError(
                "--device simulated measures no time, so there is no trace to record",
                hint="add --device cuda on a machine with a GPU; without --device, the trace is "
                "that of the host",
            )
        _refuse("--device simulated", files, unused, kept="--html")
        if options.steps is None:
            request = replace(request, plan=replace(request.plan, steps=SIMULATED_STEPS))
        calls = count_calls(replace(request, samples=samples))
        _write_with_page(device_calls_view(calls), output, files)
        return ExitCode.OK if calls.error is None else ExitCode.FINDINGS
    if is_data and of_rollouts:
        raise ArgumentError(
            "--mode, --passes, --sweep, --sync, --marginal, --advice and --record-trace do not "
            "apply to a policy checkpoint"
        )
    if is_data or (request.config.is_factory and not of_rollouts):
        request = replace(request, as_stack=True, samples=samples)
    elif samples is not None:
        raise ArgumentError("--samples does not apply to rollouts", hint="leave it out")
    if options.sweep:
        _refuse("--sweep", files, options.given("calibrate", *others), kept="--html")
        return show_sweep(request, options.sweep, files, output)
    if options.calibrate:
        _refuse("--calibrate", files, options.given(*others))
        return _show_calibration(request, output)
    if options.dry_run:
        return _show_estimate(request, output)
    reference = Reference.read(options.baseline, options.fail_if, options.force, request.plan)
    table = TableOptions(
        cast(Any, options.sort), options.top, options.histogram, is_summary, bool(options.passes)
    )
    request = replace(request, is_summary=is_summary)
    return _show_profile(
        *(request, reference, files, table, output),
        marginal=options.marginal,
        advice=options.advice,
    )


def _show_trace(
    path: str, output: OutputOptions, files: ProfileFiles, unused: Mapping[str, object]
) -> int:
    """Show what a trace recorded elsewhere says about its ranges."""
    from tdx.cli.views.profile_trace import trace_view
    from tdx.profiling.passes.trace_file import summarize_trace

    _refuse("--trace without a pipeline", files, unused, kept="--html")
    _write_with_page(trace_view(summarize_trace(path)), output, files)
    return ExitCode.OK


def _write_with_page(view: View, output: OutputOptions, files: ProfileFiles) -> None:
    """Write a view to stdout, or to the file of ``--html`` as well."""
    from tdx.cli.html import html_page
    from tdx.cli.output import write_view

    if "--html" in files.requested:
        files.write_text("--html", html_page(view.blocks()))
    if not files.use_stdout:
        write_view(view, output)


def _pass_names(values: list[str] | None, *, is_summary: bool) -> Any:
    names = parse_names(values, PASSES, "--passes", none_name="none")
    if names is not None:
        return names
    # A summary shows no memory and no operators; the device may be what bounds the pipeline.
    return ("device",) if is_summary else PASSES


def _build_request(
    pipeline: TargetOptions,
    plan: ProfilePlan,
    mode: list[str] | None,
    policy: str | None,
) -> ProfileRequest:
    """Return what to measure, with what the plan needs to know of the pipeline."""
    from tdx.cli.pipelines import read_pipeline

    modes: Any = parse_names(mode, MODES, "--mode", all_name="all") or ("planned",)
    config = read_pipeline(pipeline)
    plan = replace(
        plan,
        policy_name=policy or config.policy or "random",
        seed=config.env.seed,
        subject=subject_of(config),
    )
    return ProfileRequest(config, pipeline, modes, plan, policy)


def _show_profile(
    request: ProfileRequest,
    reference: Reference,
    files: ProfileFiles,
    table: Any,
    output: OutputOptions,
    *,
    marginal: bool,
    advice: bool,
) -> int:
    """Measure, write the files, show the profile, and raise the error that stopped it early."""
    from tdx.cli.output import write_view
    from tdx.cli.views.profile import profile_view

    result, costs, candidates = measure(request, with_marginal=marginal)
    error = profile_error(result) or next((cost.error for cost in costs if cost.error), None)
    advised = try_advice(request, result) if advice and error is None else ()
    extras = replace(
        reference.extras(result),
        marginal=costs or None,
        advice=advised or None,
        candidates=candidates,
    )
    files.write(result, extras)
    if not files.use_stdout:
        write_view(profile_view(result, table, extras), output)
    raise_error(INTERRUPTED if any(advice.interrupted for advice in advised) else error)
    return ExitCode.FINDINGS if extras.failed else ExitCode.OK


def _show_estimate(request: ProfileRequest, output: OutputOptions) -> int:
    """Measure a few steps and show how long the whole measurement would take."""
    from tdx.cli.output import write_view
    from tdx.cli.views.profile_sweep import estimate_view
    from tdx.profiling.run import estimate_duration, shorten_plan

    result, *_ = measure(replace(request, plan=shorten_plan(request.plan)))
    raise_error(profile_error(result))
    write_view(estimate_view(request.plan, estimate_duration(result, request.plan)), output)
    return ExitCode.OK


def _show_calibration(request: ProfileRequest, output: OutputOptions) -> int:
    """Measure the pipeline several times, and show what a comparison can find."""
    from tdx.cli.output import write_view
    from tdx.cli.views.profile_comparisons import calibration_view
    from tdx.profiling.compare import CALIBRATION_RUNS, calibrate

    request = replace(request, plan=replace(request.plan, passes=()))
    profiles = []
    for _ in range(CALIBRATION_RUNS):
        result, *_ = measure(request)
        raise_error(profile_error(result))
        profiles.append(result)
    write_view(calibration_view(calibrate(profiles)), output)
    return ExitCode.OK


def _refuse(
    option: str, files: ProfileFiles, options: Mapping[str, object], kept: str = ""
) -> None:
    """Refuse options that do not work with another one."""
    conflicts = [name for name, value in options.items() if value]
    conflicts += [name for name in files.requested if name != kept]
    if conflicts:
        hint = f"leave out {conflicts[0]}"
        if conflicts[0] in files.requested:
            also = f" and {kept} contain" if kept else " contains"
            hint = f"--format json{also} the whole result"
        raise ArgumentError(f"{option} and {conflicts[0]} cannot be combined", hint=hint)


def profile_compare(
    output: OutputOptions,
    before: Before,
    after: After,
    fail_if: FailIf = None,
    force: ForceCompare = False,
    detail: CompareDetail = False,
) -> int:
    """Show which parts became slower by more than the noise.

    tdx profile compare base.json now.json

    tdx profile compare base.json now.json --fail-if p95:10%
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.profile_comparisons import comparison_view
    from tdx.profiling.compare import compare_profiles, parse_limits
    from tdx.profiling.saved import read_profile

    limits = parse_limits(fail_if or ())
    result = compare_profiles(read_profile(before), read_profile(after), limits, force=force)
    is_summary = output.format is Format.TABLE and not detail
    write_view(comparison_view(result, before, after, is_summary=is_summary), output)
    return ExitCode.FINDINGS if result.failures else ExitCode.OK


COMMANDS: Functions = {
    "profile": profile,
    "profile compare": profile_compare,
}
