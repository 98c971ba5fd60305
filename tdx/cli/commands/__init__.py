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
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, getdoc, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tdx import __version__
from tdx.cli.typer_internals import FastCommand, FastGroup, use_zsh_descriptions
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
    "tui": ("tui", "Build, inspect, step and profile a chain in a terminal app."),
    "serve": ("tui", "Serve the terminal app to a browser."),
    "inspect": ("inspect", "Inspect the specs, data flow and values of a chain."),
    "check": (
        "check",
        "Check a pipeline: build it, compare its output with its specs, and apply the lint rules.",
    ),
    "explain": (
        "check",
        "Explain an error or rule: what is wrong, why it matters, and how to fix it.",
    ),
    "contract": ("contracts", "Record what the stages of an env do, and check others against it."),
    "diff": (
        "inspect",
        "Compare two pipelines: stages, specs, and with --steps the values of seeded rollouts.",
    ),
    "profile": ("profile", "Measure the cost of each part of a rollout; compare two profiles."),
    "report": (
        "report",
        "Write a self-contained report for a pipeline: an HTML page, Markdown or an SVG diagram.",
    ),
    "rollout": (
        "rollout",
        "Run a pipeline and write the steps to a dump on disk, in chunks and constant memory.",
    ),
    "replay": (
        "rollout",
        "Apply another chain to the data of a dump; equals a rollout with that chain.",
    ),
    "verify": (
        "rollout",
        "Read a whole dump and check its checksums and its values against the manifest "
        "and the specs.",
    ),
    "export": ("export", "Convert a dump to another format without losing precision or metadata."),
    "import": (
        "export",
        "Convert a file in another format to a dump: from tdx export, or from another source.",
    ),
    "list": ("catalog", "List the available envs, transforms and dumps, and what can be opened."),
    "show": (
        "catalog",
        "Show an env, the documentation of a transform, a dump, or what tdx.watch recorded.",
    ),
    "schema": (
        "setup",
        "Print the JSON Schema of pipeline files, or of what a command prints with --format json.",
    ),
    "init": (
        "setup",
        "Create a commented pipeline file for an env; on a terminal, ask for the env "
        "and the stages.",
    ),
    "config": ("setup", "Show, set and edit defaults of options in the configuration file."),
    "doctor": (
        "setup",
        "Check this machine: versions, devices, env packages, terminal, folders, shell.",
    ),
}
"""Module and summary of each command and group, in the order of the help.

The help of ``tdx`` shows the summaries without importing the commands.
"""


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
        case "catalog":
            from tdx.cli.commands.catalog import COMMANDS
        case "setup":
            from tdx.cli.commands.setup import COMMANDS
        case _:
            from tdx.cli.commands.tui import COMMANDS
    return COMMANDS


class _WithDefaults:
    """Takes the defaults of output options from the user's settings."""

    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        is_help = bool(_HELP_OPTIONS.intersection(args))
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
            self.commands[cmd_name] = self.build(cmd_name)
        return self.commands.get(cmd_name)

    def build(self, name: str) -> Any:
        """Build the command with this name."""
        return _build_command(name, self.functions[name])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the first example of the first commands."""
        texts = [getdoc(function) or "" for function in self.functions.values()]
        by_command = [[p for p in text.split("\n\n") if EXAMPLE.match(p)] for text in texts]
        lines = [f"  {examples[0]}" for examples in by_command if examples][:_GROUP_EXAMPLES]
        text = ROOT_COMMANDS[str(self.name)][1]
        self.help = "\n".join([text, "", "Examples:", *lines])
        super().format_help(ctx, formatter)

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
            hint = did_you_mean(name, names, otherwise=f"the commands are {', '.join(names)}")
            raise UnknownNameError(f"no such command: {ctx.command_path} {name}", hint=hint)
        return super().resolve_command(ctx, args)


_ALIASES: Mapping[str, tuple[str, ...]] = {"freeze": ("contract", "record")}
"""Former names of commands, which keep working and which help and completion leave out."""


class _RootGroup(_Group):
    """The commands of ``tdx``, in the order in which a user needs them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, [*_ALIASES.get(args[0], args[:1]), *args[1:]])

    def list_commands(self, ctx: Any) -> list[str]:
        return list(ROOT_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in ROOT_COMMANDS:
            self.commands[cmd_name] = self.build(cmd_name)
        return self.commands.get(cmd_name)

    def build(self, name: str) -> Any:
        if name in _GROUPS:
            group = typer.Typer(
                **_SETTINGS,
                name=name,
                cls=_GROUPS[name],
                help=ROOT_COMMANDS[name][1],
                callback=_no_callback,
                add_completion=False,
            )
            return get_command(group)
        return _build_command(name, _import_functions(name)[name], _CLASSES.get(name, _Command))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the summaries of the commands."""
        for name, (_, summary) in ROOT_COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=summary)
        TyperGroup.format_help(self, ctx, formatter)


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
        return super().resolve_command(ctx, args if kind is None else [kind, *args])


class _ProfileGroup(_Group):
    """Accepts a pipeline instead of a command: ``tdx profile Pendulum-v1``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args or args[0] not in self.functions:
            args = [_DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in super().list_commands(ctx) if name != _DEFAULT_COMMAND]

    def build(self, name: str) -> Any:
        command_class = _DefaultCommand if name == _DEFAULT_COMMAND else _Command
        return _build_command(name, self.functions[name], command_class)

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


_CLASSES: Mapping[str, type[_Command]] = {"schema": _SchemaCommand}
"""Class of each command that differs from the others."""
_GROUPS: Mapping[str, type[_Group]] = {
    "inspect": _Group,
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


def _build_command(name: str, function: Function, command_class: type[_Command] = _Command) -> Any:
    # The help is the docstring: paragraphs on one line each, and the examples at the end.
    paragraphs = (getdoc(function) or "").split("\n\n")
    prose = [" ".join(text.split()) for text in paragraphs if not EXAMPLE.match(text)]
    examples = "\n".join(f"  {text}" for text in paragraphs if EXAMPLE.match(text))
    help = "\n\n".join([*prose, f"Examples:\n{examples}"])
    app = typer.Typer(**_SETTINGS, add_completion=False)
    app.command(name, cls=command_class, help=help)(expand_options(function))
    return get_command(app)


def _no_callback() -> None:
    """Make Typer build a group for an app without commands."""


def _print_version(requested: bool) -> None:
    if requested:
        print(f"tdx {__version__}")
        raise typer.Exit


def _root_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Inspect what a chain of RL transforms does to your data, check it, and measure its cost."""


def expand_options(command: Function) -> Function:
    """Replace each parameter that is annotated with a dataclass of options by its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }

    @functools.wraps(command)
    def with_options(**values: Any) -> int | None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        return command(**values)

    own = [
        parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
        for name, parameter in signature(command).parameters.items()
        if name not in groups
    ]
    shared = [parameter for kind in groups.values() for parameter in _parameters(kind)]
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
