"""``tdx inspect values``."""

from __future__ import annotations

from typing import Annotated

import typer

from tdx.cli.choices import number_option
from tdx.cli.options import OutputOptions, PipelineOptions
from tdx.cli.policy import PolicyName

Steps = Annotated[
    int,
    number_option("--steps", 1, "How many steps to make after the reset."),
]


def inspect_values(
    pipeline: PipelineOptions,
    output: OutputOptions,
    steps: Steps = 1,
    policy: PolicyName = None,
    each: Annotated[
        bool, typer.Option("--each", help="Show every reset and step by itself.")
    ] = False,
) -> None:
    """Reset and step an env, and show what each stage really writes.

    Actions are those of --policy, or of the policy that the pipeline file names, or random. A value
    that is not what its spec says is marked, and the stage that lies is named.

    tdx inspect values --env Pendulum-v1 --t "RewardClipping(-1, 1)" --steps 100 --seed 0
    """
    from tdx.cli.output.write import write
    from tdx.cli.policy import acting
    from tdx.cli.source import built_env, read_pipeline
    from tdx.cli.views.values_view import values_view
    from tdx.inspection.stage_text import stage_texts
    from tdx.inspection.values_report import inspect_values
    from tdx.pipeline.build import add_source_line

    config = read_pipeline(pipeline)
    with built_env(config, pipeline) as env:
        actor = acting(policy, config, env, steps, allow_code=pipeline.allow_code)
        report = inspect_values(
            env, config.env.id, steps=steps, seed=config.env.seed, policy=actor, each=each
        )
        calls = stage_texts(env, config)
        if report.error is not None:
            add_source_line(report.error, config, env)
    write(values_view(report, calls), output)
    if report.error is not None:
        raise report.error
