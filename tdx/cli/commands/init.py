"""``tdx init``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.options import DialogOptions, PipelineOptions

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline

_DEFAULT_FILE = "pipeline.yaml"

File = Annotated[str, typer.Argument(metavar="[FILE]", help="Target; - writes to stdout.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Ask no questions: use the suggested stages.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def init(
    pipeline: PipelineOptions,
    dialog: DialogOptions,
    file: File = _DEFAULT_FILE,
    yes: Yes = False,
    force: Force = False,
) -> None:
    """Create a commented pipeline file for an env; on a terminal, ask for the env and the stages.

    Without --t, stages that fit the env are suggested.

    tdx init pendulum.yaml --env Pendulum-v1 -y
    """
    from tdx.cli.init_dialog import commented_pipeline
    from tdx.cli.interrupts import third_party_code
    from tdx.cli.output.write import STDOUT, check_target, write_file
    from tdx.inspection.envs import get_env_leaves

    check_target(file, force=force)
    ask = not yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    config, comments = _ask(pipeline, dialog) if ask else _suggest(pipeline)
    with third_party_code():
        leaves = get_env_leaves(config.env, pipeline.allow_code)
    write_file(file, commented_pipeline(config, leaves, comments), force=force)
    if file != STDOUT:
        print(f"wrote {file}; next: tdx check --pipeline {file}", file=sys.stderr)


def _suggest(options: PipelineOptions) -> tuple[Pipeline, list[str]]:
    """Return the pipeline of the options, with suggested stages if it has none, and comments."""
    from tdx.cli.init_dialog import stage_comments
    from tdx.cli.pipelines import open_env, read_pipeline
    from tdx.inspection.envs import suggest_stages

    config = read_pipeline(options)
    with open_env(config, options):
        if config.transforms:
            return config, stage_comments(config)
        suggestions = suggest_stages(config.env, options.allow_code)
    pipeline = config.with_stages(*(suggestion.stage for suggestion in suggestions))
    return pipeline, [suggestion.reason for suggestion in suggestions]


def _ask(options: PipelineOptions, output: DialogOptions) -> tuple[Pipeline, list[str]]:
    """Return the pipeline that the user builds in a dialog, with a comment per stage."""
    from tdx.cli.init_dialog import PipelineDialog, stage_comments
    from tdx.cli.pipelines import read_pipeline

    has_env = options.env is not None or options.pipeline is not None
    config = read_pipeline(options if has_env else replace(options, env="unnamed"))
    env = config.env if has_env else replace(config.env, id="")
    dialog = PipelineDialog(
        env, config.transforms, allow_code=options.allow_code, color=output.color, ask=input
    )
    answers = dialog.run()
    config = replace(config, env=answers.env, transforms=answers.transforms)
    return config, stage_comments(config)
