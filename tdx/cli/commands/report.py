"""``tdx report``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.choices import integer_option
from tdx.cli.options import DebugOptions, FileArgument, PipelineOptions

_DEFAULT_STEPS = 200

Out = Annotated[
    str, typer.Option("--out", "-o", metavar="FILE", help="Target; - writes to stdout.")
]
Steps = Annotated[
    int, integer_option("--steps", 1, "Number of steps of the rollout in the report.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def report(
    pipeline: PipelineOptions,
    debug: DebugOptions,
    file: FileArgument = None,
    out: Out = "report.html",
    steps: Steps = _DEFAULT_STEPS,
    force: Force = False,
) -> None:
    """Write a self-contained HTML report for a pipeline.

    It shows the chain as a diagram, lint findings, specs, lineage, frames before and after each
    image stage, and the rewards and episodes of a short rollout with random actions.

    tdx report pendulum.yaml -o pendulum.html
    """
    from tdx.cli.html.report import report_page
    from tdx.cli.output.write import STDOUT, check_target, write_file
    from tdx.cli.pipelines import open_env, read_pipeline, with_file
    from tdx.inspection.report import build_report

    check_target(out, force=force)
    config = read_pipeline(with_file(pipeline, file))
    with open_env(config, pipeline) as env:
        name = config.file or config.env.id
        result = build_report(env, config, name, steps=steps, seed=config.env.seed or 0)
    write_file(out, report_page(result), force=force)
    if out != STDOUT:
        print(f"wrote {out}", file=sys.stderr)
