"""``tdx init``, ``config``, ``doctor`` and ``schema``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.options import DebugOptions, DialogOptions, Functions, OutputOptions, PipelineOptions
from tdx.errors import ExitCode

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline


_DEFAULT_FILE = "pipeline.yaml"

File = Annotated[str, typer.Argument(metavar="[FILE]", help="Target; - writes to stdout.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Ask no questions: use the suggested stages.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FUNCTION",
        help="Convert the env that a function returns, with its wrappers: module:function or "
        "file.py:function. Needs --allow-code.",
    ),
]


def init(
    pipeline: PipelineOptions,
    dialog: DialogOptions,
    file: File = _DEFAULT_FILE,
    yes: Yes = False,
    force: Force = False,
    source: From = None,
) -> int:
    """Create a commented pipeline file for an env; on a terminal, ask for the env and the stages.

    Without --t, stages that fit the env are suggested. --from converts an env of Gymnasium with its
    wrappers, and exits with 1 if its values differ from those of the pipeline.

    tdx init first.yaml --env Pendulum-v1 -y

    tdx init converted.yaml --from train.py:make_env --allow-code
    """
    from tdx.cli.init import commented_pipeline
    from tdx.cli.output import STDOUT, check_target, write_file
    from tdx.cli.runtime import third_party_code
    from tdx.inspection.envs import get_env_leaves

    check_target(file, force=force)
    if source is not None:
        return _import(source, pipeline, file, force=force)
    ask = not yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    config, comments = _ask(pipeline, dialog) if ask else _suggest(pipeline)
    with third_party_code():
        leaves = get_env_leaves(config.env, pipeline.allow_code)
    write_file(file, commented_pipeline(config, leaves, comments), force=force)
    if file != STDOUT:
        print(f"wrote {file}; next: tdx check {file}", file=sys.stderr)
    return ExitCode.OK


def _import(source: str, options: PipelineOptions, file: str, *, force: bool) -> int:
    """Write the pipeline of a stack; return the exit code."""
    from tdx.cli.init import (
        commented_pipeline,
        conversion_comments,
        file_notes,
        import_from,
        summary_lines,
    )
    from tdx.cli.output import STDOUT, write_file
    from tdx.cli.runtime import third_party_code
    from tdx.inspection.envs import get_env_leaves

    found = import_from(source, options)
    leaves = found.leaves
    if leaves is None:
        with third_party_code():
            leaves = get_env_leaves(found.pipeline.env)
    text = commented_pipeline(
        found.pipeline, leaves, conversion_comments(found), file_notes(found, source)
    )
    write_file(file, text, force=force)
    for line in summary_lines(found):
        print(line, file=sys.stderr)
    if file != STDOUT:
        code = "" if found.missing_env is None else " --allow-code"
        print(f"wrote {file}; next: tdx check {file}{code}", file=sys.stderr)
    return ExitCode.OK if found.is_equal else ExitCode.FINDINGS


def _suggest(options: PipelineOptions) -> tuple[Pipeline, list[str]]:
    """Return the pipeline of the options, with suggested stages if it has none, and comments."""
    from tdx.cli.init import stage_comments
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
    from tdx.cli.init import PipelineDialog, stage_comments
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


def config_path(debug: DebugOptions) -> None:
    """Print the path of the configuration file, even if it does not exist.

    tdx config path

    TDX_CONFIG=lab.toml tdx config path
    """
    from tdx.settings import config_path

    print(config_path())


def config_show(output: OutputOptions) -> None:
    """Show all settings with their values and where these come from.

    tdx config show

    tdx config show --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.catalog import config_view
    from tdx.settings import load_settings

    write_view(config_view(load_settings()), output)


def config_init(debug: DebugOptions, force: Force = False) -> None:
    """Create a configuration file with all settings commented out.

    tdx config init

    tdx config init --force
    """
    from tdx.cli.output import write_file
    from tdx.settings import config_path, config_template

    path = config_path()
    write_file(path, config_template(), force=force, create_folder=True)
    print(f"wrote {path}", file=sys.stderr)


def doctor(output: OutputOptions) -> int:
    """Check this machine: versions, devices, env packages, terminal, folders, shell.

    Exits with 1 if something prevents tdx from working.

    tdx doctor

    tdx doctor --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.runtime import third_party_code
    from tdx.cli.views.catalog import doctor_view
    from tdx.inspection.doctor import check_terminal, diagnose

    # third_party_code() replaces stdout.
    terminal_checks = list(check_terminal(sys.stdout))
    with third_party_code():
        report = diagnose(terminal_checks)
    write_view(doctor_view(report), output)
    return ExitCode.OK if report.ok else ExitCode.FINDINGS


def schema(debug: DebugOptions) -> None:
    """Print the JSON Schema of pipeline files, for completion in an editor.

    tdx schema

    tdx schema > tdx.schema.json
    """
    from tdx.pipeline.generate import SCHEMA_FILE

    sys.stdout.write(SCHEMA_FILE.read_text(encoding="utf-8"))


COMMANDS: Functions = {
    "init": init,
    "config path": config_path,
    "config show": config_show,
    "config init": config_init,
    "doctor": doctor,
    "schema": schema,
}
