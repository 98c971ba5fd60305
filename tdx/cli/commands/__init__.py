"""The command tree of ``tdx``; the module of a command is imported when the command is needed.

Each module of this package lists its functions in ``COMMANDS``, by the words after ``tdx``. What
runs for ``tdx inspect spec Pendulum-v1``, in the order of the calls::

    build_root                       the root group, without commands
    _RootGroup.get_command           "inspect": a group, without commands
    _Group.get_command               "spec"
    ├─ _import_functions             imports tdx.cli.commands.inspect
    └─ _build_command                turns inspect_spec into a command of Typer
       └─ options.expand_options     one option for each field of its dataclasses of options
    _WithDefaults.make_context       parses the words; the settings give defaults
    with_options                     makes the dataclasses again, and calls inspect_spec
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Mapping
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tdx import __version__
from tdx.cli.help import (
    RARE,
    RARE_PANEL,
    command_help,
    group_examples,
    short_help,
    short_root_help,
)
from tdx.cli.typer_internals import FastCommand, FastGroup, use_zsh_descriptions
from tdx.foundation.errors import ExitCode, TdxError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from tdx.cli.options import Function, Functions

_EXAMPLE = "tdx inspect spec Pendulum-v1 -t StepCounter"
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


SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Inspect": {
        "inspect": "Inspect the specs, data flow and values of a chain.",
        "diff": "Compare two pipelines: stages, specs and values.",
        "report": "Write a report of a pipeline: HTML, Markdown or SVG.",
        "list": "List envs, transforms, dumps and what can be opened.",
        "show": "Show an env, a transform, a dump or what tdx.watch recorded.",
    },
    "Check": {
        "check": "Check pipelines: build them, verify specs, apply the rules.",
        "explain": "Explain an error or rule, and how to fix it.",
    },
    "Run and record": {
        "rollout": "Run a pipeline and write the steps to a dump.",
        "replay": "Apply another chain to the data of a dump.",
        "profile": "Measure what each part of a rollout costs.",
    },
    "Contracts": {
        "contract": "Record what stages do, and check other stacks against it.",
    },
    "Data": {
        "verify": "Check the checksums and values of a whole dump.",
        "export": "Convert a dump to another format, without loss.",
        "import": "Convert a file in another format to a dump.",
    },
    "Deploy": {
        "export-chain": "Export a chain as code that runs without tdx.",
    },
    "App and setup": {
        "tui": "Build, inspect, step and profile a chain in a terminal app.",
        "serve": "Serve the terminal app to a browser.",
        "init": "Create a commented pipeline file for an env.",
        "config": "Show, set and edit defaults of options.",
        "doctor": "Check this machine: versions, devices, env packages, shell.",
        "schema": "Print the JSON Schema of pipeline files or of JSON output.",
    },
}
"""Summary of each command and group, by the section of the help, which imports none of them."""
SUMMARIES = {name: text for section in SECTIONS.values() for name, text in section.items()}


def _import_functions(name: str) -> Functions:
    """Import the functions of the module of a command or group."""
    match name:
        case "inspect" | "diff":
            from tdx.cli.commands.inspect import COMMANDS
        case "report":
            from tdx.cli.commands.report import COMMANDS
        case "list" | "show":
            from tdx.cli.commands.catalog import COMMANDS
        case "check" | "explain":
            from tdx.cli.commands.check import COMMANDS
        case "rollout" | "replay" | "verify":
            from tdx.cli.commands.rollout import COMMANDS
        case "profile":
            from tdx.cli.commands.profile import COMMANDS
        case "contract":
            from tdx.cli.commands.contracts import COMMANDS
        case "export" | "import":
            from tdx.cli.commands.export import COMMANDS
        case "export-chain":
            from tdx.cli.commands.artifacts import COMMANDS
        case "tui" | "serve":
            from tdx.cli.commands.tui import COMMANDS
        case "init" | "config" | "doctor" | "schema":
            from tdx.cli.commands.setup import COMMANDS
        case _:
            return {}
    return COMMANDS


_FORMER_SPELLINGS = {"--t": "-t", "--transform": "-t", "--save": "--out", "--html": "--out"}
"""Spellings that keep working in commands that have only the new one."""


class _WithDefaults:
    """Shows the short help for ``-h``, and takes defaults of output options from the settings."""

    is_short = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the short help for ``-h``, else the whole help."""
        if self.is_short:
            formatter.write("\n".join(short_help(self, ctx)))
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
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spellings = {name for param in self.params for name in param.opts}
        words = []
        for arg in args:
            name, equals, value = arg.partition("=")
            current = _FORMER_SPELLINGS.get(name)
            if current in spellings and name not in spellings:
                # A short option takes no `=`.
                words += [current, value] if equals else [current]
            else:
                words.append(arg)
        return super().parse_args(ctx, words)


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
        if cmd_name not in self.commands and (command := self.build(cmd_name)) is not None:
            self.commands[cmd_name] = command
        return self.commands.get(cmd_name)

    def build(self, name: str) -> Any:
        """Build the command with this name; ``None`` if there is none."""
        function = self.functions.get(name)
        return None if function is None else _build_command(name, function)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the first example of the first commands."""
        text = SUMMARIES[str(self.name)]
        self.help = "\n".join([text, "", "Examples:", *group_examples(self.functions.values())])
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

NESTED: Mapping[str, tuple[str, ...]] = {"profile": ("compare",)}
"""Words after a command that takes a target, so that it is no group; they name another command."""

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
        words = [*_ALIASES.get(args[0], args[:1]), *args[1:]]
        if words[1:2] and words[1] in NESTED.get(words[0], ()):
            words = [" ".join(words[:2]), *words[2:]]
        return super().resolve_command(ctx, words)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(SUMMARIES)

    def build(self, name: str) -> Any:
        first = name.partition(" ")[0]
        if first not in SUMMARIES:
            return None
        if name in _GROUPS:
            group = typer.Typer(
                **_SETTINGS,
                name=name,
                cls=_GROUPS[name],
                help=SUMMARIES[name],
                callback=_no_callback,
                add_completion=False,
            )
            return get_command(group)
        function = _import_functions(first).get(name)
        command_class = _SchemaCommand if name == "schema" else _Command
        return None if function is None else _build_command(name, function, command_class)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the summaries of the commands."""
        if self.is_short:
            lines = short_root_help(getdoc(_root_options) or "", SECTIONS, _EXAMPLE)
            return formatter.write("\n".join(lines))
        for panel, summaries in SECTIONS.items():
            for name, summary in summaries.items():
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


class _SchemaCommand(_Command):
    """Lists the kinds of documents for ``--output`` without a kind."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        after = args[args.index("--output") + 1 :] if "--output" in args else ["pipeline"]
        if not after or after[0].startswith("-"):
            place = len(args) - len(after)
            args = [*args[:place], "list", *args[place:]]
        return super().parse_args(ctx, args)


_GROUPS: Mapping[str, type[_Group]] = {
    "inspect": _InspectGroup,
    "list": _Group,
    "show": _ShowGroup,
    "contract": _Group,
    "config": _Group,
}
"""Class of each group."""


def build_root() -> Any:
    """Build the whole command line as one command."""
    if os.environ.get("_TDX_COMPLETE") == "complete_zsh":
        use_zsh_descriptions()
    return get_command(
        typer.Typer(
            **_SETTINGS, cls=_RootGroup, callback=_root_options, epilog=f"Start with: {_EXAMPLE}"
        )
    )


def _build_command(name: str, function: Function, command_class: type[_Command] = _Command) -> Any:
    from tdx.cli.options import expand_options

    app = typer.Typer(**_SETTINGS, add_completion=False)
    app.command(name, cls=command_class, help=command_help(function))(expand_options(function))
    command: Any = get_command(app)
    for param in command.params:
        if RARE.intersection(param.opts):
            param.rich_help_panel = RARE_PANEL
    # A section of the help stands where its first option is.
    command.params.sort(key=lambda param: getattr(param, "rich_help_panel", None) == RARE_PANEL)
    return command


def _no_callback() -> None:
    """Make Typer build a group for an app without commands."""


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
