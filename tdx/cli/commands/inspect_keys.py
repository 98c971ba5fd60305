"""``tdx inspect keys``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.choices import DiagramFormat
from tdx.cli.key_completion import complete_key
from tdx.cli.options import DiagramOptions, PipelineOptions

Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY]...",
        autocompletion=complete_key,
        help="The keys to trace; nested as agents.reward. All by default.",
    ),
]


def inspect_keys(pipeline: PipelineOptions, output: DiagramOptions, keys: Keys = None) -> None:
    """Trace keys through a chain: each version, who wrote it and who reads it.

    tdx inspect keys reward --env Pendulum-v1 --t RewardSum --t "RewardClipping(-1, 1)"
    """
    from tdx.cli.output.write import write
    from tdx.cli.source import built_env, read_pipeline
    from tdx.cli.views.lineage_view import lineage_view, mermaid
    from tdx.inspection.chain import format_stages
    from tdx.inspection.lineage import inspect_keys

    config = read_pipeline(pipeline)
    with built_env(config, pipeline) as env:
        lineage = inspect_keys(env, config.env.id).only(list(keys or ()))
        calls = format_stages(env, config)
    if output.format is DiagramFormat.MERMAID:
        sys.stdout.write(mermaid(lineage, calls))
    else:
        write(lineage_view(lineage, calls), output.output)
