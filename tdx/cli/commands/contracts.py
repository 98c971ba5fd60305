"""``tdx contract``, and ``tdx diff`` of stacks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tdx.cli.options import (
    DebugOptions,
    Functions,
    OutputOptions,
    integer_option,
    split_list,
)
from tdx.cli.pipelines import AllowCode, ForcePage, Page, Samples, Shrink, TargetOptions
from tdx.foundation.errors import ArgumentError, UnknownNameError, did_you_mean

Out = Annotated[str, typer.Option("-o", "--out", metavar="FOLDER", help="Folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing contract.")]
Compare = Annotated[
    list[str] | None,
    typer.Option(
        "--compare",
        metavar="PARTS",
        help="Parts to compare: observation, action, reward, done. By default, observation and "
        "action.",
    ),
]
Tolerance = Annotated[
    list[str] | None,
    typer.Option(
        "--tolerance",
        metavar="KEY:FIELDS",
        help="Allow differences of a key: 'observation:rows=0.01' in 1% of the rows, "
        "'observation:quantile=0.99,limit=0.1' up to 0.1 in 99% of the numbers; rtol and atol "
        "replace those of the stages. Can be repeated.",
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
    typer.Option(
        "--select", metavar="CODES", help="For a deployment descriptor: apply only these rules."
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore", metavar="CODES", help="For a deployment descriptor: skip these rules."
    ),
]
Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of a contract.")]
A = Annotated[
    str, typer.Argument(metavar="A", help="Contract, module:function, env id or pipeline file.")
]
B = Annotated[
    str,
    typer.Argument(
        metavar="B",
        help="Stack to compare A with: module:function, env id or pipeline file.",
    ),
]
Seed = Annotated[
    int | None, integer_option("--seed", 0, "Seed of the reference steps.", metavar="S")
]
Stage = Annotated[
    int | None,
    integer_option(
        "--stage",
        0,
        "For a contract of one stage, as --shrink writes it: check this stage of the env alone.",
        metavar="I",
    ),
]
_DEFAULT_FOLDER = "contract"
_PARTS = ("observation", "action", "reward", "done")


def record(
    pipeline: TargetOptions,
    debug: DebugOptions,
    out: Out = _DEFAULT_FOLDER,
    compare: Compare = None,
    tolerance: Tolerance = None,
    force: Force = False,
    samples: Samples = None,
) -> None:
    """Record what the stages of an env do, and their state.

    The contract is a folder with a readable contract.yaml. It contains the arguments, specs and
    state of each stage, and the values of a few seeded steps.

    tdx contract record train.py:make_env --allow-code --out training

    tdx contract record pendulum.yaml --compare observation,reward --out rewards
    """
    from tdx.cli.pipelines import open_pipeline, read_pipeline
    from tdx.compare.model import DEFAULT_PARTS
    from tdx.contracts import freeze, save_contract
    from tdx.contracts.storage import check_target
    from tdx.contracts.tolerances import parse_tolerances
    from tdx.foundation.text import count_text

    check_target(Path(out), force=force)
    parts = tuple(split_list(compare)) or DEFAULT_PARTS
    for part in parts:
        if part not in _PARTS:
            hint = did_you_mean(part, _PARTS, otherwise=f"the parts are {', '.join(_PARTS)}")
            raise UnknownNameError(f"unknown part {part!r} in --compare", hint=hint)
    tolerances = parse_tolerances(tolerance)
    config = read_pipeline(pipeline)
    with open_pipeline(config, pipeline, samples=samples) as stack:
        seed = config.env.seed or 0
        contract = freeze(stack, seed=seed, compare=parts, tolerances=tolerances)
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
    html: Page = None,
    force: ForcePage = False,
    shrink: Shrink = None,
    tolerance: Tolerance = None,
    stage: Stage = None,
) -> int:
    """Check that an env preprocesses data as a contract records.

    Runs the recorded inputs through the stages, and reports the first stage that differs and in
    what way. Exits with 0 if nothing differs, else with 1.

    tdx contract check evaluate.py:make_env --allow-code --against contract

    tdx contract check pendulum.yaml --against pendulum --format json

    tdx contract check pendulum.yaml --against pendulum -o check.html
    """
    from tdx.cli.commands.check import CheckOptions, check_against_reference
    from tdx.cli.contract_runs import ReportFiles
    from tdx.cli.options import FindingsOptions

    findings = FindingsOptions(output.format, output.color, output.debug)
    options = CheckOptions(select=select, ignore=ignore, evaluation=evaluation, samples=samples)
    files = ReportFiles(html, shrink, force)
    return check_against_reference(
        pipeline, findings, options, against, files, tolerance=tolerance, stage=stage
    )


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
    html: Page = None,
    force: ForcePage = False,
    samples: Samples = None,
    shrink: Shrink = None,
) -> int:
    """Compare two stacks, or a contract and a stack, stage by stage.

    Their libraries may differ. Exits with 0 if nothing differs, else with 1.

    tdx contract diff train.py:make_env evaluate.py:make_env --allow-code

    tdx contract diff pendulum pendulum.yaml -o report.html
    """
    from tdx.cli.contract_runs import ReportFiles, diff_stacks
    from tdx.foundation.files import is_contract

    if seed is not None and is_contract(a):
        raise ArgumentError("--seed has no effect with a contract, which has a seed")
    files = ReportFiles(html, shrink, force)
    return diff_stacks(a, b, output, files, seed=seed, allow_code=allow_code, samples=samples)


COMMANDS: Functions = {
    "contract record": record,
    "contract check": check,
    "contract show": show,
    "contract diff": diff,
}
