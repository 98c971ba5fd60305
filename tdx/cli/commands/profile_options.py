"""The options of ``tdx profile``, and reading those that name several things."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdx.cli.choices import number_option
from tdx.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from tdx.profiling.passes.choice import PassName
    from tdx.profiling.result import Mode


MODES: tuple[Mode, ...] = ("eager", "planned", "compiled")
PASSES: tuple[PassName, ...] = ("memory", "operators", "device")
ORDERS = ("chain", "share", "n", "mean", "p50", "p90", "p95", "p99", "max", "iqr")
_FILES, _LOOKS = "Files", "Output"


def _file(option: str, told: str) -> Any:
    return typer.Option(option, metavar="FILE", help=told, rich_help_panel=_FILES)


def _words(*known: str) -> Callable[[str], list[str]]:
    """What the shell offers behind the last comma."""

    def complete(incomplete: str) -> list[str]:
        done, comma, word = incomplete.rpartition(",")
        return [f"{done}{comma}{name}" for name in known if name.startswith(word)]

    return complete


def one_order(text: str) -> str:
    """A column to sort by; the nearest spelling of a wrong one is named."""
    if text.lower() in ORDERS:
        return text.lower()
    hint = did_you_mean(text, ORDERS, otherwise=f"one of {', '.join(ORDERS)}")
    raise UnknownNameError(f"--sort cannot be {text!r}", hint=hint)


def several(texts: list[str] | None, known: tuple[str, ...], option: str, **others: str) -> Any:
    """The values of an option that is repeated, or has commas in it.

    Args:
        texts: as they were given.
        known: the values that there are.
        option: what it is called.
        others: ``every``, the word for all of them, and ``nothing``, that for none.

    Returns:
        A tuple without repetitions; none where the option was not given.

    Raises:
        UnknownNameError: there is no such value; names the nearest.
    """
    if not texts:
        return None
    found: list[str] = []
    for text in ",".join(texts).split(","):
        name = text.strip()
        if name == others.get("every"):
            found += known
        elif name in known:
            found.append(name)
        elif name and name != others.get("nothing"):
            words = (*known, *others.values())
            hint = did_you_mean(name, words, otherwise=f"one of {', '.join(words)}")
            raise UnknownNameError(f"{option} cannot be {name!r}", hint=hint)
    return tuple(dict.fromkeys(found))


Steps = Annotated[int, number_option("--steps", 1, "Steps of each repeat.")]
Warmup = Annotated[int, number_option("--warmup", 0, "Steps before the first repeat, not counted.")]
Repeat = Annotated[int, number_option("--repeat", 1, "How often it is rolled out.")]
Threads = Annotated[int | None, number_option("--threads", 1, "Threads of torch for one operator.")]
Modes = Annotated[
    list[str] | None,
    typer.Option(
        "--mode",
        metavar="MODES",
        autocompletion=_words(*MODES, "all"),
        help="eager (step by step), planned (as rollouts run, the default), compiled; several "
        "with commas between them, or all.",
    ),
]
Passes = Annotated[
    list[str] | None,
    typer.Option(
        "--passes",
        metavar="PASSES",
        autocompletion=_words(*PASSES, "none"),
        help="What is measured beside time, in rollouts of its own: memory, operators, device; all "
        "by default; or none.",
    ),
]
Marginals = Annotated[
    bool,
    typer.Option(
        "--marginal", help="Measure the chain without each of its stages too, in turns with it."
    ),
]
Advices = Annotated[
    bool,
    typer.Option("--advice", help="Try what may make it cheaper, and tell what that saved."),
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
        help="Wait for the accelerator around each part, so that its time holds what the device "
        "does for it. Slower, and another rollout than usual.",
    ),
]
AllWrappers = Annotated[
    bool,
    typer.Option(
        "--all-wrappers",
        help="Give a row to the thin wrappers too that gymnasium.make adds to every env.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Make few steps, and say how long all of it would take.")
]
Sort = Annotated[
    str,
    typer.Option(
        "--sort",
        metavar="COLUMN",
        parser=one_order,
        autocompletion=_words(*ORDERS),
        help=f"The order of the rows: {', '.join(ORDERS)}.",
        rich_help_panel=_LOOKS,
    ),
]
Top = Annotated[
    int | None,
    number_option("--top", 1, "Show the N rows that take most, and sum up the rest.", panel=_LOOKS),
]
Histograms = Annotated[
    bool,
    typer.Option(
        "--histogram", help="Draw how the times of each row vary.", rich_help_panel=_LOOKS
    ),
]
Save = Annotated[str | None, _file("--save", "Keep it as JSON with all samples; - is stdout.")]
Trace = Annotated[
    str | None,
    _file("--trace", "Every call on a time line, for ui.perfetto.dev or chrome://tracing."),
]
Speedscope = Annotated[
    str | None, _file("--speedscope", "Every call as a flame chart, for www.speedscope.app.")
]
Html = Annotated[str | None, _file("--html", "A report that needs nothing but itself.")]
Baseline = Annotated[
    str | None, _file("--baseline", "Hold it against a profile that --save has kept.")
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="LIMIT",
        help="End with 1 where something has grown by more than this and more than noise: "
        "p95:10%, mean:1ms, RewardSum.p99:20us. Repeat it, or give several with commas between.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Overwrite files that are there; compare with a baseline that was not measured alike.",
        rich_help_panel=_FILES,
    ),
]
