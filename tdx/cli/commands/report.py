"""``tdx report``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.choices import number_option
from tdx.cli.options import DebugOptions, FileArgument, PipelineOptions

_STEPS = 200

Out = Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to; - is stdout.")]
Steps = Annotated[
    int,
    number_option("--steps", 1, "Steps of the rollout that is plotted; 200 by default."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]


def report(
    pipeline: PipelineOptions,
    debug: DebugOptions,
    file: FileArgument = None,
    out: Out = "report.html",
    steps: Steps = _STEPS,
    force: Force = False,
) -> None:
    """Write all about a pipeline into one HTML file that needs nothing but itself.

    The chain as a diagram, lints, specs, lineage, frames before and after each image stage, rewards
    and episodes of a short rollout with random actions.

    tdx report pendulum.yaml -o pendulum.html
    """
    from tdx.cli.html import report_page
    from tdx.cli.output.write import STDOUT, check_free, write_new
    from tdx.cli.pipelines import built_env, read_pipeline, with_file
    from tdx.inspection.report import gather

    check_free(out, force=force)
    config = read_pipeline(with_file(pipeline, file))
    with built_env(config, pipeline) as env:
        name = config.file or config.env.id
        found = gather(env, config, name, steps=steps, seed=config.env.seed or 0)
    write_new(out, report_page(found), force=force)
    if out != STDOUT:
        print(f"wrote {out}", file=sys.stderr)
