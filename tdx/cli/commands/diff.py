"""``tdx diff``."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.choices import number_option
from tdx.cli.options import OutputOptions
from tdx.errors import ArgumentError, ExitCode

if TYPE_CHECKING:
    from tdx.inspection.diff import DiffSide

Steps = Annotated[
    int | None,
    number_option("--steps", 1, "Compare the values of rollouts of N steps too."),
]
Seed = Annotated[
    int | None,
    number_option("--seed", 0, "Seed of both rollouts; 0 by default.", metavar="S"),
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code", help="Import the Python objects that a pipeline names as module:name."
    ),
]


def diff(
    output: OutputOptions,
    a: Annotated[str, typer.Argument(metavar="A", help="A pipeline file, - for stdin; or a dump.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    steps: Steps = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
) -> int:
    """Compare two pipelines: stages, specs, and with --steps the values of seeded rollouts.

    Beside a dump a pipeline gets the dump's seed and actions. Ends with exit code 0 where nothing
    differs, else with 1.

    tdx diff old.yaml new.yaml --steps 100
    """
    from tdx.cli.interrupts import foreign_code
    from tdx.cli.output.write import write
    from tdx.cli.views.diff import diff_view
    from tdx.inspection.diff import compare

    if a == b == "-":
        raise ArgumentError("stdin can be one side only", hint="name a file for the other")
    if seed is not None and steps is None:
        raise ArgumentError("--seed says nothing without --steps", hint="add --steps N")
    dumped = [path for path in (a, b) if Path(path).is_dir()]
    if dumped and seed is not None:
        raise ArgumentError(
            "--seed says nothing beside a dump, which has its own", hint="leave it out"
        )
    with foreign_code(), ExitStack() as opened:
        if dumped:
            from tdx.cli.dump_sides import DumpSide, sides

            both = [opened.enter_context(closing(side)) for side in sides(a, b, allow_code)]
            seed = next(each.dump.manifest.seed for each in both if isinstance(each, DumpSide))
        else:
            both = [opened.enter_context(closing(_side(path, allow_code))) for path in (a, b)]
        report = compare(*both, steps=steps, seed=seed or 0)
    write(diff_view(report), output)
    return ExitCode.OK if report.same else ExitCode.FINDINGS


def _side(path: str, allow_code: bool) -> DiffSide:
    """One side of the comparison: a pipeline file."""
    from tdx.inspection.diff import PipelineSide
    from tdx.pipeline import PipelineFile

    file = PipelineFile.load(path)
    return PipelineSide(file.name, file.pipeline, allow_code)
