"""``tdx init``, ``config``, ``doctor`` and ``schema``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.completion import complete_env
from tdx.cli.options import (
    DebugOptions,
    DialogOptions,
    Format,
    Functions,
    OutputOptions,
    hidden_messages,
)
from tdx.cli.pipelines import PipelineOptions
from tdx.cli.runtime import json_text
from tdx.foundation.errors import ArgumentError, ExitCode, explain_os_error

if TYPE_CHECKING:
    from tdx.inspection.stack_import import StackImport
    from tdx.pipeline import Pipeline


_DEFAULT_FILE = "pipeline.yaml"

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET", autocompletion=complete_env, help="Env id; a terminal prompts for it."
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        *("-o", "--out"), metavar="FILE", help=f"{_DEFAULT_FILE} by default; - writes to stdout."
    ),
]
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


_LIST = "list"


def _complete_kind(incomplete: str) -> list[tuple[str, str]]:
    from tdx.cli.documents import DOCUMENTS

    kinds = {_LIST: "all kinds", **DOCUMENTS}
    return [(name, text) for name, text in kinds.items() if name.startswith(incomplete)]


OutputKind = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="KIND",
        autocompletion=_complete_kind,
        help="Kind of the JSON document, such as spec; list shows all kinds.",
    ),
]


def init(
    pipeline: PipelineOptions,
    dialog: DialogOptions,
    target: Target = None,
    out: Out = None,
    yes: Yes = False,
    force: Force = False,
    source: From = None,
) -> int:
    """Create a commented pipeline file for an env.

    In a terminal, prompts for the env and the stages.

    Without -t, suggests stages that fit the env. --from converts an env of Gymnasium with its
    wrappers, and exits with 1 if a wrapper has no counterpart or a value differs.

    tdx init Pendulum-v1 -o first.yaml -y

    tdx init -o converted.yaml --from train.py:make_env --allow-code

    tdx init -o converted.yaml --force --from train.py:make_env --allow-code --format json
    """
    from tdx.cli.init import commented_pipeline
    from tdx.cli.output import STDOUT, check_target, write_file
    from tdx.cli.pipelines import with_target
    from tdx.cli.runtime import third_party_code
    from tdx.inspection.envs import get_env_leaves
    from tdx.pipeline.references import has_references

    has_env = not (pipeline.env is None and pipeline.pipeline is None and source is None)
    is_file = target is not None and (
        has_env or target == STDOUT or target.endswith((".yaml", ".yml"))
    )
    if is_file and out is None:
        # The former order, `tdx init FILE --env ID`.
        out, target = target, None
    file = out or _DEFAULT_FILE
    check_target(file, force=force)
    if target is not None and source is not None:
        raise ArgumentError(f"--from and {target} cannot be combined", hint="remove one of them")
    pipeline = with_target(pipeline, target)
    if source is not None:
        with hidden_messages(dialog.quiet):
            return _import(source, pipeline, dialog, file, force=force)
    ask = not yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    with hidden_messages(dialog.quiet and not ask):
        config, comments = _ask(pipeline, dialog) if ask else _suggest(pipeline)
    with hidden_messages(dialog.quiet):
        with third_party_code():
            leaves = get_env_leaves(config.env, pipeline.allow_code)
        write_file(file, commented_pipeline(config, leaves, comments), force=force)
        _print_data(file, config, None, dialog)
        _print_next(file, needs_code=has_references(config.env.kwargs))
    return ExitCode.OK


def _print_data(
    file: str, pipeline: Pipeline, imported: StackImport | None, dialog: DialogOptions
) -> None:
    """Print what a file contains, unless it is a table, or stdout has the file."""
    from tdx.cli.output import STDOUT, write_view
    from tdx.cli.views.conversion import written_view

    if file != STDOUT and dialog.format is not Format.TABLE:
        options = OutputOptions(dialog.format, dialog.color, dialog.debug)
        write_view(written_view(file, pipeline, imported), options)


def _print_next(file: str, *, needs_code: bool, fault: str = "") -> None:
    from tdx.cli.output import STDOUT

    if file != STDOUT:
        code = " --allow-code" if needs_code else ""
        written = f"wrote {file}, {fault}" if fault else f"wrote {file}"
        print(f"{written}; next: tdx check {file}{code}", file=sys.stderr)


def _import(
    source: str, options: PipelineOptions, dialog: DialogOptions, file: str, *, force: bool
) -> int:
    """Write the pipeline of a stack; return the exit code."""
    from tdx.cli.init import (
        commented_pipeline,
        conversion_comments,
        file_notes,
        import_from,
        summary_lines,
    )
    from tdx.cli.output import write_file
    from tdx.cli.runtime import third_party_code
    from tdx.foundation.errors import CodeNotAllowedError
    from tdx.inspection.envs import get_env_leaves
    from tdx.pipeline.build import check_arguments
    from tdx.pipeline.references import has_references

    imported = import_from(source, options)
    leaves = imported.leaves
    if leaves is None:
        with third_party_code():
            leaves = get_env_leaves(imported.pipeline.env, options.allow_code)
    text = commented_pipeline(
        imported.pipeline, leaves, conversion_comments(imported), file_notes(imported, source)
    )
    write_file(file, text, force=force)
    _print_data(file, imported.pipeline, imported, dialog)
    for line in summary_lines(imported):
        print(line, file=sys.stderr)
    needs_code = has_references(imported.pipeline.env.kwargs) or any(
        isinstance(error, CodeNotAllowedError) for error in check_arguments(imported.pipeline)
    )
    fault = "whose values differ: see the first difference above" if imported.has_difference else ""
    if imported.missing:
        # A user who reads the last line only must not take the file for the whole pipeline.
        fault = (
            f"which is incomplete: it lacks {', '.join(imported.missing)}; "
            "add what replaces it, as the comments in the file say"
        )
    _print_next(file, needs_code=needs_code, fault=fault)
    return ExitCode.FINDINGS if fault else ExitCode.OK


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
    """Print the path of the configuration file.

    It is printed even if the file does not exist.

    tdx config path

    TDX_CONFIG=lab.toml tdx config path
    """
    from tdx.foundation.settings import config_path

    print(config_path())


def config_show(output: OutputOptions) -> None:
    """Show all settings with their values and where the values come from.

    tdx config show

    tdx config show --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.setup import config_view
    from tdx.foundation.settings import load_settings

    write_view(config_view(load_settings()), output)


def config_init(debug: DebugOptions, force: Force = False) -> None:
    """Create a configuration file with all settings commented out.

    tdx config init

    tdx config init --force
    """
    from tdx.cli.output import write_file
    from tdx.foundation.settings import config_path, config_template

    path = config_path()
    write_file(path, config_template(), force=force, create_folder=True)
    print(f"wrote {path}", file=sys.stderr)


def _complete_setting(incomplete: str) -> list[tuple[str, str]]:
    from tdx.foundation.settings import SETTINGS

    return [
        (setting.name, setting.help) for setting in SETTINGS if setting.name.startswith(incomplete)
    ]


def _complete_value(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the values of the setting on the command line, if it has a limited number."""
    from tdx.cli.completion import complete_device
    from tdx.foundation.settings import SETTINGS

    name = ctx.params.get("name")
    if name == "device":
        return complete_device(incomplete)
    choices = next((setting.choices for setting in SETTINGS if setting.name == name), ())
    return [choice for choice in choices if choice.startswith(incomplete)]


SettingName = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=_complete_setting, help="Name of the setting."),
]
NewValue = Annotated[
    str, typer.Argument(metavar="VALUE", autocompletion=_complete_value, help="Its new value.")
]


def config_get(output: OutputOptions, name: SettingName) -> None:
    """Print a setting: from the environment, the file or its default.

    tdx config get format

    tdx config get seed --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.setup import setting_view
    from tdx.foundation.settings import load_settings

    write_view(setting_view(load_settings().find(name)), output)


def config_set(debug: DebugOptions, name: SettingName, value: NewValue) -> None:
    """Set a setting in the configuration file.

    Creates the file if it is missing.

    tdx config set num_envs 4

    tdx config set theme tdx-light
    """
    from tdx.cli.output import write_file
    from tdx.foundation.settings import config_path, edited_file, find_setting

    path = config_path()
    write_file(path, edited_file(name, value), force=True, create_folder=True)
    print(f"set {name} in {path}", file=sys.stderr)
    variable = find_setting(name).variable
    if os.environ.get(variable):
        print(f"notice: {variable} is set and overrides the file", file=sys.stderr)


def config_edit(debug: DebugOptions) -> None:
    """Open the configuration file in an editor, and check it.

    The editor is $VISUAL or $EDITOR.

    tdx config edit

    EDITOR=nano tdx config edit
    """
    import shlex
    import subprocess

    from tdx.cli.output import write_file
    from tdx.foundation.settings import config_path, config_template, load_settings

    path = config_path()
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if editor is None:
        raise ArgumentError("no editor is set", hint=f"set EDITOR, or open {path} yourself")
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        hint = "use `tdx config set NAME VALUE` in scripts"
        raise ArgumentError("an editor needs a terminal", hint=hint)
    if not path.exists():
        write_file(path, config_template(), create_folder=True)
    try:
        code = subprocess.call([*shlex.split(editor), str(path)])
    except OSError as error:
        reason = explain_os_error(error)
        raise ArgumentError(f"cannot run {editor}: {reason}", hint="set EDITOR") from error
    if code:
        raise ArgumentError(f"{editor} exited with {code}", hint=f"{path} may be unchanged")
    load_settings()


def doctor(output: OutputOptions) -> int:
    """Check this machine: versions, devices, env packages, shell.

    Exits with 1 if something prevents tdx from working.

    tdx doctor

    tdx doctor --format json
    """
    from tdx.cli.output import write_view
    from tdx.cli.runtime import third_party_code
    from tdx.cli.views.setup import doctor_view
    from tdx.inspection.doctor import check_plugins, check_terminal, diagnose
    from tdx.rollouts.formats.registry import plugin_exporters

    # third_party_code() replaces stdout.
    terminal_checks = list(check_terminal(sys.stdout))
    with third_party_code():
        report = diagnose(terminal_checks, check_plugins(plugin_exporters))
    write_view(doctor_view(report), output)
    return ExitCode.OK if report.ok else ExitCode.FINDINGS


def schema(output: OutputOptions, kind: OutputKind = None) -> None:
    """Print the JSON Schema of pipeline files or of JSON output.

    tdx schema > tdx.schema.json

    tdx schema --output spec
    """
    if kind is None:
        from tdx.pipeline.generate import read_schema

        sys.stdout.write(read_schema())
        return
    from tdx.cli.documents import DOCUMENTS, document_schema

    if kind == _LIST:
        from tdx.cli.output import write_view
        from tdx.cli.views.setup import kinds_view

        write_view(kinds_view(DOCUMENTS), output)
    else:
        sys.stdout.write(json_text(document_schema(kind), sys.stdout, indent=2))


COMMANDS: Functions = {
    "init": init,
    "config path": config_path,
    "config show": config_show,
    "config get": config_get,
    "config set": config_set,
    "config edit": config_edit,
    "config init": config_init,
    "doctor": doctor,
    "schema": schema,
}
