"""``tdx contract``, and ``tdx diff`` of stacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.options import (
    DebugOptions,
    Functions,
    OutputOptions,
    integer_option,
    split_list,
)
from tdx.cli.pipelines import AllowCode, PipelineOptions, Samples, TargetOptions
from tdx.foundation.errors import ArgumentError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from tdx.contracts import ContractReport
    from tdx.stacks import Stack

Out = Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing contract.")]
Compare = Annotated[
    list[str] | None,
    typer.Option(
        "--compare",
        metavar="PARTS",
        help="Parts to compare: observation, action, reward, done; by default what a policy reads "
        "and does.",
    ),
]
Against = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="FOLDER",
        help="Contract to check against. For a deployment descriptor: another descriptor.",
    ),
]
Evaluation = Annotated[
    bool,
    typer.Option(
        "--eval", help="The env is used for evaluation: report stages that keep learning."
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="CODES", help="Of a deployment descriptor: only these rules."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="CODES", help="Of a deployment descriptor: skip these rules."),
]
Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of a contract.")]
A = Annotated[
    str, typer.Argument(metavar="A", help="Contract, module:function, env id or pipeline file.")
]
B = Annotated[str, typer.Argument(metavar="B", help="What to compare: the same, but no contract.")]
Seed = Annotated[
    int | None, integer_option("--seed", 0, "Seed of the reference steps.", metavar="S")
]
Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Also write a self-contained HTML report."),
]
ForceReport = Annotated[bool, typer.Option("--force", help="Replace an existing report.")]
_DEFAULT_FOLDER = "contract"
_PARTS = ("observation", "action", "reward", "done")


def record(
    pipeline: TargetOptions,
    debug: DebugOptions,
    out: Out = _DEFAULT_FOLDER,
    compare: Compare = None,
    force: Force = False,
    samples: Samples = None,
) -> None:
    """Record what the stages of an env do, and their state.

    The contract is a folder with a readable contract.yaml and golden.safetensors. It has the
    arguments, specs and state of each stage, and the values of a few seeded steps.

    tdx contract record train.py:make_env --allow-code --out training

    tdx contract record pendulum.yaml --compare observation,reward --out rewards
    """
    from tdx.cli.pipelines import open_pipeline, read_pipeline
    from tdx.compare.model import DEFAULT_PARTS
    from tdx.contracts import freeze, save_contract
    from tdx.contracts.storage import check_target
    from tdx.foundation.text import count_text

    check_target(Path(out), force=force)
    parts = tuple(split_list(compare)) or DEFAULT_PARTS
    for part in parts:
        if part not in _PARTS:
            hint = did_you_mean(part, _PARTS, otherwise=f"the parts are {', '.join(_PARTS)}")
            raise UnknownNameError(f"unknown part {part!r} in --compare", hint=hint)
    config = read_pipeline(pipeline)
    with open_pipeline(config, pipeline, samples=samples) as stack:
        contract = freeze(stack, seed=config.env.seed or 0, compare=parts)
    save_contract(contract, out, force=force)
    for stage in contract.stages:
        if stage.random == "excluded":
            print(f"note: {stage.place} is random and is excluded", file=sys.stderr)
    stages = count_text(len(contract.stages) - 1, "stage")
    print(f"wrote {out} ({stages})", file=sys.stderr)


def check(
    pipeline: TargetOptions,
    output: OutputOptions,
    against: Against = _DEFAULT_FOLDER,
    evaluation: Evaluation = False,
    select: Select = None,
    ignore: Ignore = None,
    samples: Samples = None,
) -> int:
    """Check that an env preprocesses as a contract does.

    Runs the inputs of the contract through the stages, and reports the first one that differs.
    Exits with 0 if nothing differs, else with 1.

    tdx contract check evaluate.py:make_env --allow-code --against contract

    tdx contract check pendulum.yaml --against pendulum --format json
    """
    from tdx.cli.commands.check import CheckOptions, check_against_reference
    from tdx.cli.options import FindingsOptions

    findings = FindingsOptions(output.format, output.color, output.debug)
    options = CheckOptions(select=select, ignore=ignore, evaluation=evaluation, samples=samples)
    return check_against_reference(pipeline, findings, options, against)


def show(output: OutputOptions, folder: Folder = _DEFAULT_FOLDER) -> None:
    """Show what a contract covers: stages, keys and state.

    Runs no code: a contract is data.

    tdx contract show

    tdx contract show pendulum --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.comparisons import contract_contents_view
    from tdx.contracts import load_contract
    from tdx.contracts.contents import summarize_contract

    write_view(contract_contents_view(summarize_contract(load_contract(folder), folder)), output)


def diff(
    output: OutputOptions,
    a: A,
    b: B,
    seed: Seed = None,
    allow_code: AllowCode = False,
    html: Html = None,
    force: ForceReport = False,
    samples: Samples = None,
) -> int:
    """Compare two stacks, or a contract and a stack, stage by stage.

    Their libraries may differ. Exits with 0 if nothing differs, else with 1.

    tdx contract diff train.py:make_env evaluate.py:make_env --allow-code

    tdx contract diff pendulum pendulum.yaml --html report.html
    """
    from tdx.contracts.storage import is_contract

    if seed is not None and is_contract(a):
        raise ArgumentError("--seed has no effect with a contract, which has a seed")
    return diff_stacks(
        *(a, b, output), seed=seed, allow_code=allow_code, html=html, force=force, samples=samples
    )


def is_code(target: str) -> bool:
    """Return True for the name of a function: ``module:function`` or ``file.py:function``."""
    module, colon, name = target.rpartition(":")
    return bool(colon and module) and name.isidentifier() and not os.path.exists(target)


def check_against(
    options: TargetOptions,
    folder: str,
    output: OutputOptions,
    *,
    evaluation: bool,
    samples: str | None = None,
) -> int:
    """Check an env against a contract, and write the report.

    Args:
        options: Options of the env.
        folder: Folder of the contract.
        output: Output format.
        evaluation: The env is used for evaluation.
        samples: Value of ``--samples``.

    Returns:
        The exit code.
    """
    from tdx.cli.output import write_view
    from tdx.cli.pipelines import open_pipeline, read_pipeline
    from tdx.cli.views.comparisons import contract_view
    from tdx.contracts import check_contract, load_contract

    contract = load_contract(folder)
    config = read_pipeline(options)
    with open_pipeline(config, options, samples=samples) as stack:
        report = check_contract(
            stack, contract, config.env.id, evaluation=evaluation, reference=folder
        )
    write_view(contract_view(report), output)
    return report.exit_code


def diff_stacks(
    a: str,
    b: str,
    output: OutputOptions,
    *,
    seed: int | None,
    allow_code: bool,
    html: str | None,
    force: bool,
    samples: str | None = None,
) -> int:
    """Compare two stacks, or a contract and a stack, and write the report.

    Args:
        a: The reference: function, pipeline file or contract.
        b: The other one.
        output: Output format.
        seed: Seed of the reference steps.
        allow_code: Allow importing the functions.
        html: File for an HTML report. ``None``: only the report on stdout.
        force: True to replace the HTML report.
        samples: Value of ``--samples``.

    Returns:
        The exit code.
    """
    from tdx.cli.html import html_page
    from tdx.cli.output import check_target, write_file, write_view
    from tdx.cli.views.comparisons import contract_view, side_by_side_blocks

    if html is not None:
        check_target(html, force=force)
    report = _compare_sides(a, b, seed, samples, allow_code=allow_code)
    if html is not None:
        write_file(html, html_page(side_by_side_blocks(report)), force=force)
        print(f"wrote {html}", file=sys.stderr)
    write_view(contract_view(report), output)
    return report.exit_code


def _compare_sides(
    a: str, b: str, seed: int | None, samples: str | None, *, allow_code: bool
) -> ContractReport:
    from tdx.contracts import check_contract, freeze, load_contract
    from tdx.contracts.storage import is_contract

    with ExitStack() as opened:
        if is_contract(a):
            contract = load_contract(a)
        else:
            contract = freeze(opened.enter_context(_open(a, samples, allow_code)), seed=seed or 0)
        if is_contract(b):
            if not is_contract(a):
                raise ArgumentError(
                    f"{b} is a contract, and {a} is not", hint=f"run tdx diff {b} {a}"
                )
            raise ArgumentError("A and B are contracts", hint="name an env for B: it is run")
        stack = opened.enter_context(_open(b, samples, allow_code))
        return check_contract(stack, contract, b, reference=a)


@contextmanager
def _open(target: str, samples: str | None, allow_code: bool) -> Iterator[Stack]:
    from tdx.cli.pipelines import open_pipeline, read_pipeline, with_target

    options = with_target(PipelineOptions(allow_code=allow_code), target)
    with open_pipeline(read_pipeline(options), options, samples=samples) as stack:
        yield stack


COMMANDS: Functions = {
    "contract record": record,
    "contract check": check,
    "contract show": show,
    "contract diff": diff,
}
