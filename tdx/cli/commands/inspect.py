"""``tdx inspect``."""

from __future__ import annotations

from typing import Annotated

import typer

from tdx.cli.key_completion import complete_key
from tdx.cli.options import OutputOptions, PipelineOptions


def inspect_spec(
    pipeline: PipelineOptions,
    output: OutputOptions,
    stages: Annotated[
        bool, typer.Option("--stages", help="Show the specs after every stage.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            autocompletion=complete_key,
            help="Follow one key through the chain; nested as agents.reward.",
        ),
    ] = None,
) -> None:
    """Compare the specs of an env before and after a chain, without stepping it.

    tdx inspect spec --env Pendulum-v1 --t StepCounter
    """
    from tdx.cli.output.write import write
    from tdx.cli.source import built_env, read_pipeline
    from tdx.cli.views.spec_view import spec_view
    from tdx.inspection.chain import format_stages
    from tdx.inspection.spec_report import inspect_spec

    config = read_pipeline(pipeline)
    with built_env(config, pipeline) as env:
        report = inspect_spec(env, config.env.id)
        calls = format_stages(env, config)
    write(spec_view(report, calls, stages=stages, key=key), output)
