"""The command tree of ``tdx``; the module of a command is imported when the command is needed.

Each module of this package lists its functions in ``COMMANDS``, by the words after ``tdx``. What
runs for ``tdx inspect spec Pendulum-v1``, in the order of the calls::

    build_root                       the root group, without commands
    _RootGroup.get_command           "inspect": a group, without commands
    _Group.get_command               "spec"
    ├─ _import_functions             imports tdx.cli.commands.inspect
    └─ _build_command                turns inspect_spec into a command of Typer
       └─ expand_options             one option for each field of its dataclasses of options
    _WithDefaults.make_context       parses the words; the settings give defaults
    with_options                     makes the dataclasses again, and calls inspect_spec
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, getdoc, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tdx import __version__
from tdx.cli.typer_internals import (
    FastCommand,
    FastGroup,
    hide_spellings,
    use_zsh_descriptions,
)
from tdx.foundation.errors import ExitCode, TdxError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from tdx.cli.options import Function, Functions

_DEFAULT_COMMAND = "run"
"""Command of a group that runs if none is named."""
_EXAMPLE = "Start with: tdx inspect spec Pendulum-v1 -t StepCounter"
EXAMPLE = re.compile(r"(?:[A-Z_]+=\S+ )?tdx ")
"""Start of a paragraph of a docstring that is an example."""
_GROUP_EXAMPLES = 3
_HELP_OPTIONS = {"--help", "-h"}
_OUTPUT_SETTINGS = ("format", "color")
_ENV_ID = re.compile(r"-v\d+$|^tdx/")
_TOLERANT = {"config", "doctor"}
"""Commands that work with broken settings, to find and fix them."""
_SETTINGS: dict[str, Any] = {
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["--help", "-h"]},
}


ROOT_COMMANDS: Mapping[str, tuple[str, str]] = {
    "inspect": ("inspect", "Inspect the specs, data flow and values of a chain."),
    "diff": ("inspect", "Compare two pipelines: stages, specs and values."),
    "report": ("report", "Write a report of a pipeline: HTML, Markdown or SVG."),
    "list": ("catalog", "List envs, transforms, dumps and what can be opened."),
    "show": ("catalog", "Show an env, a transform, a dump or what tdx.watch recorded."),
    "check": ("check", "Check pipelines: build them, verify specs, apply the rules."),
    "explain": ("check", "Explain an error or rule, and how to fix it."),
    "rollout": ("rollout", "Run a pipeline and write the steps to a dump."),
    "replay": ("rollout", "Apply another chain to the data of a dump."),
    "profile": ("profile", "Measure what each part of a rollout costs."),
    "contract": ("contracts", "Record what stages do, and check other stacks against it."),
    "verify": ("rollout", "Check the checksums and values of a whole dump."),
    "export": ("export", "Convert a dump to another format, without loss."),
    "import": ("export", "Convert a file in another format to a dump."),
    "export-chain": ("artifacts", "Export a chain as code that runs without tdx."),
    "tui": ("tui", "Build, inspect, step and profile a chain in a terminal app."),
    "serve": ("tui", "Serve the terminal app to a browser."),
    "init": ("setup", "Create a commented pipeline file for an env."),
    "config": ("setup", "Show, set and edit defaults of options."),
    "doctor": ("setup", "Check this machine: versions, devices, env packages, shell."),
    "schema": ("setup", "Print the JSON Schema of pipeline files or of JSON output."),
}
"""Module and summary of each command and group, in the order of the help.

The help of ``tdx`` shows the summaries without importing the commands.
"""
_PANELS: Mapping[str, tuple[str, ...]] = {
    "Inspect": ("inspect", "diff", "report", "list", "show"),
    "Check": ("check", "explain"),
    "Run and record": ("rollout", "replay", "profile"),
    "Contracts": ("contract",),
    "Data": ("verify", "export", "import"),
    "Deploy": ("export-chain",),
    "App and setup": ("tui", "serve", "init", "config", "doctor", "schema"),
}
"""Commands of each section of the help."""


def _import_functions(name: str) -> Functions:
    """Import the functions of the module of a command or group."""
    match ROOT_COMMANDS[name][0]:
        case "inspect":
            from tdx.cli.commands.inspect import COMMANDS
        case "check":
            from tdx.cli.commands.check import COMMANDS
        case "contracts":
            from tdx.cli.commands.contracts import COMMANDS
        case "profile":
            from tdx.cli.commands.profile import COMMANDS
        case "report":
            from tdx.cli.commands.report import COMMANDS
        case "rollout":
            from tdx.cli.commands.rollout import COMMANDS
        case "export":
            from tdx.cli.commands.export import COMMANDS
        case "artifacts":
            from tdx.cli.commands.artifacts import COMMANDS
        case "catalog":
            from tdx.cli.commands.catalog import COMMANDS
        case "setup":
            from tdx.cli.commands.setup import COMMANDS
        case _:
            from tdx.cli.commands.tui import COMMANDS
    return COMMANDS


_RARE = frozenset(
    {
        *("--allow-download", "--batching", "--color", "--debug", "--device", "--env-kwargs"),
        *("--from-pixels", "--num-envs", "--quiet", "--samples", "--verbose", "--worker-timeout"),
        *("--all-wrappers", "--calibrate", "--dry-run", "--histogram", "--marginal", "--on"),
        *("--passes", "--repeat", "--retries", "--shard", "--shards", "--speedscope", "--sync"),
        *("--threads", "--trace", "--warmup"),
    }
)
"""Options that the short help leaves out, and the whole help shows last."""
_RARE_PANEL = "Rarely used"
_FORMER_SPELLINGS = frozenset({"--t", "--transform", "--save", "--html"})
"""Spellings that keep working where an option has another one, and that no help shows."""
_SHORT_HEIGHT, _SHORT_OPTIONS = 24, 11
_OPTION_WIDTH = 26


class _WithDefaults:
    """Shows the short help for ``-h``, and takes defaults of output options from the settings."""

    is_short = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the short help for ``-h``, else the whole help."""
        if self.is_short:
            formatter.write("\n".join(_short_help(self, ctx)))
        else:
            super().format_help(ctx, formatter)  # type: ignore[misc]

    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        is_help = bool(_HELP_OPTIONS.intersection(args))
        self.is_short = "-h" in args and "--help" not in args
        is_completion = extra.get("resilient_parsing")
        if is_help and parent is None and not is_completion:
            from tdx.foundation.settings import load_settings

            try:
                load_settings()
            except TdxError as error:
                place = f"{error.where}: " if str(error.where) else ""
                print(f"notice: {place}{error.message}; using the defaults", file=sys.stderr)
        elif isinstance(self, TyperCommand) and not is_help and not is_completion:
            from tdx.cli.options import configured_values

            commands = {info_name, None if parent is None else parent.info_name}
            parameters = {param.name for param in self.params}
            names = [name for name in _OUTPUT_SETTINGS if name in parameters]
            defaults = configured_values(names, tolerant=bool(commands & _TOLERANT))
            extra["default_map"] = defaults
        return super().make_context(info_name, args, parent=parent, **extra)  # type: ignore[misc]


class _Command(_WithDefaults, FastCommand):
    pass


class _Group(_WithDefaults, FastGroup):
    """A group that builds each of its commands when it is needed."""

    @functools.cached_property
    def functions(self) -> Functions:
        """Functions of the commands by name."""
        prefix = f"{self.name} "
        functions = _import_functions(str(self.name))
        return {
            path.removeprefix(prefix): function
            for path, function in functions.items()
            if path.startswith(prefix)
        }

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.functions)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in self.functions:
            path = f"{self.name} {cmd_name}"
            self.commands[cmd_name] = _build_command(path, self.functions[cmd_name])
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the first example of the first commands."""
        texts = [getdoc(function) or "" for function in self.functions.values()]
        by_command = [[p for p in text.split("\n\n") if EXAMPLE.match(p)] for text in texts]
        lines = [f"  {examples[0]}" for examples in by_command if examples][:_GROUP_EXAMPLES]
        text = ROOT_COMMANDS[str(self.name)][1]
        if self.is_short:
            self.help = "\n\n".join([text, "Examples:\n" + "\n".join(lines)])
            return super().format_help(ctx, formatter)
        self.help = "\n".join([text, "", "Examples:", *lines])
        return super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args and not ctx.resilient_parsing:
            ctx.get_help()  # Prints it.
            raise typer.Exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        is_option = name.startswith("-")
        if not is_option and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            names = self.list_commands(ctx)
            # Those who look for `compare` know what they want, but no similar name.
            meant = next((known for known in names if name in _SYNONYMS.get(known, ())), name)
            hint = did_you_mean(meant, names, otherwise=f"the commands are {', '.join(names)}")
            raise UnknownNameError(f"no such command: {ctx.command_path} {name}", hint=hint)
        return super().resolve_command(ctx, args)


_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "check": ("lint", "validate", "test"),
    "diff": ("compare",),
    "profile": ("benchmark", "bench", "time"),
    "rollout": ("run", "record", "collect", "sample"),
    "tui": ("app", "gui", "ui", "open"),
}
"""What other programs call a command; a hint suggests it."""

_ALIASES: Mapping[str, tuple[str, ...]] = {"freeze": ("contract", "record")}
"""Former names of commands, which keep working and which help and completion leave out."""


class _RootGroup(_Group):
    """The commands of ``tdx``, in the order in which a user needs them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "help":
            if ctx.resilient_parsing:
                # Completion continues with the commands, as if `help` were not there.
                return super().resolve_command(ctx, args[1:]) if args[1:] else (None, None, [])
            if not args[1:]:
                typer.echo(ctx.get_help())
                raise typer.Exit
            args = [*args[1:], "--help"]
        return super().resolve_command(ctx, [*_ALIASES.get(args[0], args[:1]), *args[1:]])

    def list_commands(self, ctx: Any) -> list[str]:
        return list(ROOT_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands or cmd_name not in ROOT_COMMANDS:
            return self.commands.get(cmd_name)
        if cmd_name in _GROUPS:
            app = typer.Typer(
                **_SETTINGS,
                name=cmd_name,
                cls=_GROUPS[cmd_name],
                help=ROOT_COMMANDS[cmd_name][1],
                callback=lambda: None,  # Makes Typer build a group for an app without commands.
                add_completion=False,
            )
            command: Any = get_command(app)
        else:
            command = _build_command(cmd_name, _import_functions(cmd_name)[cmd_name])
        self.commands[cmd_name] = command
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the summaries of the commands."""
        if self.is_short:
            return formatter.write("\n".join(_short_root_help()))
        for panel, names in _PANELS.items():
            for name in names:
                summary = ROOT_COMMANDS[name][1]
                self.commands[name] = TyperCommand(name, help=summary, rich_help_panel=panel)
        return TyperGroup.format_help(self, ctx, formatter)


class _InspectGroup(_Group):
    """Accepts a target instead of a command: ``tdx inspect Pendulum-v1`` shows its specs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.functions and (
            name == "-"
            or ":" in name
            or name.endswith((".yaml", ".yml", ".onnx"))
            or os.path.exists(name)
            or _ENV_ID.search(name) is not None
        ):
            args = ["spec", *args]
        return super().resolve_command(ctx, args)


class _ShowGroup(_Group):
    """Accepts what to show instead of a command: ``tdx show runs/pendulum``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from tdx.pipeline.catalog import load_catalog

        name, kind = args[0], None
        if name not in self.functions:
            # What the form of the name tells.
            if os.path.isdir(name) or "://" in name:
                kind = "dump"
            elif name.endswith(".jsonl"):
                kind = "watch"
            elif _ENV_ID.search(name) is not None:
                kind = "env"
            elif load_catalog().find(name) is not None:
                kind = "transform"
            elif os.sep in name:
                kind = "dump"
            elif not name.startswith("-") and not ctx.resilient_parsing:
                raise _nothing_named(name, self.list_commands(ctx))
        return super().resolve_command(ctx, args if kind is None else [kind, *args])


def _nothing_named(name: str, commands: list[str]) -> TdxError:
    """Return the error for a name that is nothing to show, with the nearest names."""
    from tdx.pipeline.catalog import load_catalog

    message = f"no env, transform, dump or recording is named {name!r}"
    if os.path.isfile(name):
        return UnknownNameError(message, hint=f"for a pipeline, use tdx inspect {name}")
    hint = did_you_mean(name, commands) or load_catalog().nearest(name)
    if hint is None:
        from tdx.envs.gym.registry import find_similar_ids
        from tdx.inspection.envs import list_envs

        similar = find_similar_ids(name, (env.id for env in list_envs()))
        hint = f"did you mean {' or '.join(similar)}?" if similar else None
    return UnknownNameError(
        message, hint=hint or "`tdx list envs`, `list transforms` and `list dumps` show the names"
    )


class _ProfileGroup(_Group):
    """Accepts a pipeline instead of a command: ``tdx profile Pendulum-v1``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args or args[0] not in self.functions:
            args = [_DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in super().list_commands(ctx) if name != _DEFAULT_COMMAND]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return (None if name == _DEFAULT_COMMAND else name), command, rest


class _Context(typer.Context):
    @property
    def command_path(self) -> str:
        """The command without the double space that a command without a name leaves."""
        return " ".join(super().command_path.split())


class _DefaultCommand(_Command):
    """Runs if its group is called without a command."""

    context_class = _Context


class _SchemaCommand(_Command):
    """Lists the kinds of documents for ``--output`` without a kind."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        after = args[args.index("--output") + 1 :] if "--output" in args else ["pipeline"]
        if not after or after[0].startswith("-"):
            place = len(args) - len(after)
            args = [*args[:place], "list", *args[place:]]
        return super().parse_args(ctx, args)


_CLASSES: Mapping[str, type[_Command]] = {
    "schema": _SchemaCommand,
    f"profile {_DEFAULT_COMMAND}": _DefaultCommand,
}
"""Class of each command that differs from the others."""
_GROUPS: Mapping[str, type[_Group]] = {
    "inspect": _InspectGroup,
    "list": _Group,
    "show": _ShowGroup,
    "profile": _ProfileGroup,
    "contract": _Group,
    "config": _Group,
}
"""Class of each group."""


def build_root() -> Any:
    """Build the whole command line as one command."""
    if os.environ.get("_TDX_COMPLETE") == "complete_zsh":
        use_zsh_descriptions()
    return get_command(
        typer.Typer(**_SETTINGS, cls=_RootGroup, callback=_root_options, epilog=_EXAMPLE)
    )


def _build_command(path: str, function: Function) -> Any:
    """Build the command with these words after ``tdx``."""
    # The help is the docstring: paragraphs on one line each, and the examples at the end.
    paragraphs = (getdoc(function) or "").split("\n\n")
    prose = [" ".join(text.split()) for text in paragraphs if not EXAMPLE.match(text)]
    examples = "\n".join(f"  {text}" for text in paragraphs if EXAMPLE.match(text))
    help = "\n\n".join([*prose, f"Examples:\n{examples}"])
    app = typer.Typer(**_SETTINGS, add_completion=False)
    name, command_class = path.split()[-1], _CLASSES.get(path, _Command)
    app.command(name, cls=command_class, help=help)(expand_options(function))
    command: Any = get_command(app)
    for param in command.params:
        hide_spellings(param, _FORMER_SPELLINGS)
        if _RARE.intersection(param.opts):
            param.rich_help_panel = _RARE_PANEL
    # A section of the help stands where its first option is.
    command.params.sort(key=lambda param: getattr(param, "rich_help_panel", None) == _RARE_PANEL)
    return command


def _short_help(command: Any, ctx: Any) -> list[str]:
    """Return the lines of the short help of a command or group: at most 24 at 80 columns."""
    width = max(shutil.get_terminal_size().columns, 40)
    head, _, examples = (command.help or "").partition("Examples:\n")
    lines = [*_wrapped(command.get_usage(ctx), width), ""]
    lines += [*_wrapped(head.partition("\n\n")[0], width), ""]
    lines += [f"  {line.strip()}" for line in examples.splitlines()[:2]]
    lines.append("")
    if isinstance(command, TyperGroup):
        rows = []
        for name in command.list_commands(ctx):
            inner: Any = command.get_command(ctx, name)
            summary = (inner.help or "").partition("\n\n")[0]
            rows.append((name, summary))
        count = 0
    else:
        visible = [
            param
            for param in command.params
            if not getattr(param, "hidden", False) and "--help" not in param.opts
        ]
        rows = [
            _short_row(param)
            for param in visible
            if getattr(param, "rich_help_panel", "") != _RARE_PANEL
        ]
        # The option that most commands have in common, before those of the command.
        rows.sort(key=lambda row: not row[0].startswith("-t "))
        room = min(_SHORT_OPTIONS, _SHORT_HEIGHT - len(lines) - 2)
        count = len(visible) - min(len(rows), room)
        rows = rows[:room]
    start = min(max((len(name) for name, _ in rows), default=0), _OPTION_WIDTH)
    for name, text in rows:
        lines.append(_cut(f"  {name:{start}}  {text}", width))
    more = f" ({count} more options)" if count else ""
    return [*lines, "", f"All of it{more}: {ctx.command_path} --help", ""]


def _short_row(param: Any) -> tuple[str, str]:
    """Return the name of a parameter with its value, and its text on one line."""
    text = " ".join((getattr(param, "help", None) or "").split())
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper(), text
    name = ", ".join(sorted(param.opts, key=len))
    return (name if param.is_flag else f"{name} {param.metavar or param.name.upper()}"), text


def _short_root_help() -> list[str]:
    width = max(shutil.get_terminal_size().columns, 40)
    start = max(map(len, _PANELS))
    lines = ["Usage: tdx COMMAND [TARGET] [OPTIONS]", ""]
    lines += [*_wrapped(getdoc(_root_options) or "", width), ""]
    for panel, names in _PANELS.items():
        lines.append(_cut(f"  {panel:{start}}  {', '.join(names)}", width))
    example = _EXAMPLE.partition(": ")[2]
    return [*lines, "", f"  {example}", "", "All of it: tdx --help, and tdx help COMMAND", ""]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 2].rstrip()} …"


def _print_version(requested: bool) -> None:
    if requested:
        print(f"tdx {__version__}")
        raise typer.Exit


def _root_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Inspect what a chain of RL transforms does to your data, check it, and measure its cost."""


def expand_options(command: Function) -> Function:
    """Replace each parameter that is annotated with a dataclass of options by its fields."""
    from tdx.cli.options import DialogOptions, Quiet, hidden_messages

    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }
    is_dialog = DialogOptions in groups.values()

    @functools.wraps(command)
    def with_options(**values: Any) -> int | None:
        # A dialog hides its messages itself, but not its questions.
        with hidden_messages(False if is_dialog else values.pop("quiet")):
            for name, kind in groups.items():
                given = {field.name: values.pop(field.name) for field in fields(kind)}
                values[name] = kind(**given)
            return command(**values)

    own = [
        parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
        for name, parameter in signature(command).parameters.items()
        if name not in groups
    ]
    shared = [parameter for kind in groups.values() for parameter in _parameters(kind)]
    if not is_dialog:
        shared.append(Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet))
    annotations = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    # `signature` would follow it to the function whose parameters are still dataclasses.
    del with_options.__wrapped__
    with_options.__dict__["__signature__"] = Signature([*own, *shared])
    with_options.__annotations__ = annotations
    return with_options


def _parameters(kind: type) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
