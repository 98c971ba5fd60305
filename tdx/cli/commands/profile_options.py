"""Options of ``tdx profile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdx.cli.choices import integer_option, split_list
from tdx.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from tdx.profiling.passes.choice import PassName
    from tdx.profiling.result import Mode

MODES: tuple[Mode, ...] = ("eager", "planned", "compiled")
PASSES: tuple[PassName, ...] = ("memory", "operators", "device")
ORDERS = ("chain", "share", "n", "mean", "p50", "p90", "p95", "p99", "max", "iqr")
_FILES, _OUTPUT = "Files", "Output"


def _file_option(option: str, help: str) -> Any:
    return typer.Option(option, metavar="FILE", help=help, rich_help_panel=_FILES)


def _complete_list(*names: str) -> Callable[[str], list[str]]:
    """Return a completion function for the last of a comma-separated list of names."""

    def complete(incomplete: str) -> list[str]:
        done, comma, word = incomplete.rpartition(",")
        return [f"{done}{comma}{name}" for name in names if name.startswith(word)]

    return complete


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

    Args:
        values: Values of the option.
        known: Valid names.
        option: Name of the option.
        all_name: Name that stands for all known names.
        none_name: Name that stands for none of them.

    Returns:
        Tuple without duplicates; ``None`` if the option is not given.

    Raises:
        UnknownNameError: A name is unknown; suggests the nearest.
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


Steps = Annotated[int, integer_option("--steps", 1, "Steps per repeat.")]
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
        help="eager (step by step), planned (as rollouts run; the default), compiled, several "
        "separated by commas, or all.",
    ),
]
Passes = Annotated[
    list[str] | None,
    typer.Option(
        "--passes",
        metavar="PASSES",
        autocompletion=_complete_list(*PASSES, "none"),
        help="Additional measurements, each in its own rollouts: memory, operators, device; all by "
        "default; or none.",
    ),
]
Marginals = Annotated[
    bool,
    typer.Option(
        "--marginal", help="Also measure the chain without each of its stages, in alternation."
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
        help="Synchronize the device around each part, so that its time includes its work on the "
        "device. Slower than a normal rollout.",
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
Sort = Annotated[
    str,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        parser=parse_order,
        autocompletion=_complete_list(*ORDERS),
        help=f"Order of the rows: {', '.join(ORDERS)}.",
        rich_help_panel=_OUTPUT,
    ),
]
Top = Annotated[
    int | None,
    integer_option(
        "--top", 1, "Show the N most expensive rows and the sum of the others.", panel=_OUTPUT
    ),
]
Histograms = Annotated[
    bool,
    typer.Option(
        "--histogram", help="Show the distribution of times of each row.", rich_help_panel=_OUTPUT
    ),
]
Save = Annotated[
    str | None, _file_option("--save", "Save the profile as JSON with all samples; - is stdout.")
]
Trace = Annotated[
    str | None,
    _file_option("--trace", "Write a timeline for ui.perfetto.dev or chrome://tracing."),
]
Speedscope = Annotated[
    str | None, _file_option("--speedscope", "Write a flame chart for www.speedscope.app.")
]
Html = Annotated[str | None, _file_option("--html", "Write a self-contained HTML report.")]
Baseline = Annotated[
    str | None, _file_option("--baseline", "Compare with a profile saved by --save.")
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
    str, typer.Argument(metavar="BEFORE", help="Profile to compare with, saved by --save.")
]
After = Annotated[str, typer.Argument(metavar="AFTER", help="Later profile, saved by --save.")]
ForceCompare = Annotated[
    bool,
    typer.Option("--force", help="Compare profiles of different pipelines or machines."),
]
