"""``tdx diff``."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.choices import integer_option
from tdx.cli.options import AllowCode, OutputOptions
from tdx.errors import ArgumentError, ExitCode

if TYPE_CHECKING:
    from tdx.inspection.diff import DiffSide

A = Annotated[str, typer.Argument(metavar="A", help="Pipeline file, - for stdin; or a dump.")]
B = Annotated[str, typer.Argument(metavar="B", help="Pipeline file or dump to compare with.")]
Steps = Annotated[
    int | None, integer_option("--steps", 1, "Compare the values of rollouts of N steps too.")
]
Seed = Annotated[
    int | None, integer_option("--seed", 0, "Seed of both rollouts; 0 by default.", metavar="S")
]


def diff(
    output: OutputOptions,
    a: A,
    b: B,
    steps: Steps = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
) -> int:
    """Compare two pipelines: stages, specs, and with --steps the values of seeded rollouts.

    A pipeline that is compared with a dump runs with the seed and the actions of the dump. Exits
    with 0 if nothing differs, else with 1.

    tdx diff old.yaml new.yaml --steps 100
    """
    from tdx.cli.interrupts import third_party_code
    from tdx.cli.output.write import write_view
    from tdx.cli.views.diff import diff_view
    from tdx.inspection.diff import compare_pipelines

    if a == b == "-":
        raise ArgumentError("A and B cannot both be stdin", hint="name a file for one of them")
    if seed is not None and steps is None:
        raise ArgumentError("--seed has no effect without --steps", hint="add --steps N")
    has_dump = any(Path(path).is_dir() for path in (a, b))
    if has_dump and seed is not None:
        raise ArgumentError("--seed has no effect with a dump, which has a seed", hint="remove it")
    with third_party_code(), ExitStack() as stack:
        if has_dump:
            from tdx.cli.dump_sides import DumpSide, open_sides

            sides = [stack.enter_context(closing(s)) for s in open_sides(a, b, allow_code)]
            seed = next(s.dump.manifest.seed for s in sides if isinstance(s, DumpSide))
        else:
            sides = [stack.enter_context(closing(_side(path, allow_code))) for path in (a, b)]
        report = compare_pipelines(*sides, steps=steps, seed=seed or 0)
    write_view(diff_view(report), output)
    return ExitCode.OK if report.same else ExitCode.FINDINGS


def _side(path: str, allow_code: bool) -> DiffSide:
    """Open a pipeline file as one side of the comparison."""
    from tdx.inspection.diff import PipelineSide
    from tdx.pipeline import PipelineFile

    file = PipelineFile.load(path)
    return PipelineSide(file.name, file.pipeline, allow_code)
