"""``tdx init``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.options import OutputLessOptions, PipelineOptions

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline

_DEFAULT_FILE = "pipeline.yaml"

File = Annotated[str, typer.Argument(metavar="[FILE]", help="Where to; - is stdout.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Ask nothing: take the stages that fit the env.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]


def init(
    pipeline: PipelineOptions,
    shown: OutputLessOptions,
    file: File = _DEFAULT_FILE,
    yes: Yes = False,
    force: Force = False,
) -> None:
    """Write a pipeline file with comments for an env; on a terminal it asks for env and stages.

    Stages given with --t are taken as they are; without them, those that fit the env.

    tdx init pendulum.yaml --env Pendulum-v1 -y
    """
    from tdx.cli.foreign_code import foreign_code
    from tdx.cli.new_file import STDOUT, check_free, write_new
    from tdx.cli.views.pipeline_text import commented
    from tdx.inspection.envs import get_env_leaves

    check_free(file, force=force)
    ask = not yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    config, reasons = _asked(pipeline, shown) if ask else _given(pipeline)
    with foreign_code():
        leaves = get_env_leaves(config.env, pipeline.allow_code)
    write_new(file, commented(config, leaves, reasons), force=force)
    if file != STDOUT:
        print(f"wrote {file}; next: tdx check --pipeline {file}", file=sys.stderr)


def _given(options: PipelineOptions) -> tuple[Pipeline, list[str]]:
    """The pipeline of the options, with what fits where no stage is given."""
    from tdx.cli.source import built_env, read_pipeline
    from tdx.cli.views.pipeline_text import stage_reasons
    from tdx.inspection.envs import suggest_stages

    config = read_pipeline(options)
    with built_env(config, options):
        if config.transforms:
            return config, stage_reasons(config)
        fitting = suggest_stages(config.env, options.allow_code)
    stages = config.with_stages(*(each.stage for each in fitting))
    return stages, [each.reason for each in fitting]


def _asked(options: PipelineOptions, shown: OutputLessOptions) -> tuple[Pipeline, list[str]]:
    from dataclasses import replace

    from tdx.cli.interview import Interview
    from tdx.cli.source import read_pipeline
    from tdx.cli.views.pipeline_text import stage_reasons

    unknown = options.env is None and options.pipeline is None
    config = read_pipeline(replace(options, env="unnamed") if unknown else options)
    env = replace(config.env, id="") if unknown else config.env
    interview = Interview(
        env, config.transforms, allow_code=options.allow_code, color=shown.color, ask=input
    )
    answered = interview.pipeline()
    config = replace(config, env=answered.env, transforms=answered.transforms)
    return config, stage_reasons(config)
