"""The command tree of ``tdx``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from tdx import __version__
from tdx.cli.commands.catalog import explain, list_envs, list_transforms, schema, show_transform
from tdx.cli.commands.check import check
from tdx.cli.commands.diff import diff
from tdx.cli.commands.dumps import list_dumps, replay, show_dump, verify
from tdx.cli.commands.export import export, import_
from tdx.cli.commands.init import init
from tdx.cli.commands.inspect import (
    inspect_chain,
    inspect_keys,
    inspect_plan,
    inspect_spec,
    inspect_values,
)
from tdx.cli.commands.profile import profile, profile_compare
from tdx.cli.commands.report import report
from tdx.cli.commands.rollout import rollout
from tdx.cli.commands.setup import config_init, config_path, config_show, doctor
from tdx.cli.commands.tui import serve, tui
from tdx.cli.defaults import output_defaults, warn_of_broken_settings
from tdx.cli.options import expand_options
from tdx.cli.typer_internals import FastCommand, FastGroup

_ORDER = (
    "tui",
    "serve",
    "inspect",
    "check",
    "explain",
    "diff",
    "profile",
    "report",
    "rollout",
    "replay",
    "verify",
    "export",
    "import",
    "list",
    "show",
    "schema",
    "init",
    "config",
    "doctor",
)
_DEFAULT_COMMAND = "run"
"""Command of a group that runs if none is named."""
_EXAMPLE = "Start with: tdx inspect spec --env Pendulum-v1 --t StepCounter"
_HELP_OPTIONS = {"--help", "-h"}
_TOLERANT = {"config", "doctor"}
"""Commands that work with broken settings, to find and fix them."""
_SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["--help", "-h"]},
}


class _WithDefaults:
    """Takes the defaults of output options from the user's settings."""

    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        if not extra.get("resilient_parsing"):
            if parent is None and _HELP_OPTIONS & set(args):
                warn_of_broken_settings()
            elif isinstance(self, TyperCommand) and not _HELP_OPTIONS & set(args):
                commands = {info_name, None if parent is None else parent.info_name}
                parameters = {param.name for param in self.params}
                tolerant = bool(commands & _TOLERANT)
                extra["default_map"] = output_defaults(parameters, tolerant=tolerant)
        return super().make_context(info_name, args, parent=parent, **extra)  # type: ignore[misc]


class _Command(_WithDefaults, FastCommand):
    pass


class _Group(_WithDefaults, FastGroup):
    pass


class _RootGroup(_Group):
    """Lists the commands in the order in which a user needs them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=_ORDER.index)


class _ShowGroup(_Group):
    """Accepts a folder instead of a command: ``tdx show runs/pendulum``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands and (os.path.isdir(name) or os.sep in name):
            args = ["dump", *args]
        return super().resolve_command(ctx, args)


class _ProfileGroup(_Group):
    """Accepts a pipeline instead of a command: ``tdx profile --env Pendulum-v1``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args or args[0] not in self.commands:
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


def build_command() -> Any:
    """Build the whole command line as one command."""
    app = typer.Typer(
        **_SETTINGS, cls=_RootGroup, callback=_root, suggest_commands=False, epilog=_EXAMPLE
    )
    _add_groups(app)
    commands: dict[str, Callable[..., int | None]] = {
        "tui": tui,
        "serve": serve,
        "check": check,
        "explain": explain,
        "report": report,
        "rollout": rollout,
        "replay": replay,
        "verify": verify,
        "export": export,
        "import": import_,
        "diff": diff,
        "doctor": doctor,
        "init": init,
        "schema": schema,
    }
    for name, command in commands.items():
        app.command(name, cls=_Command)(expand_options(command))
    return get_command(app)


def _add_groups(app: typer.Typer) -> None:
    inspect = _group(
        spec=inspect_spec,
        chain=inspect_chain,
        keys=inspect_keys,
        values=inspect_values,
        plan=inspect_plan,
    )
    app.add_typer(
        inspect, name="inspect", help="Inspect the specs, data flow and values of a chain."
    )
    app.add_typer(
        _group(envs=list_envs, transforms=list_transforms, dumps=list_dumps),
        name="list",
        help="List the available envs, transforms and dumps.",
    )
    app.add_typer(
        _group(_ShowGroup, transform=show_transform, dump=show_dump),
        name="show",
        help="Show the documentation of a transform, or the contents of a dump.",
    )
    app.add_typer(
        _group(
            _ProfileGroup,
            {_DEFAULT_COMMAND: _DefaultCommand},
            run=profile,
            compare=profile_compare,
        ),
        name="profile",
        help="Measure the cost of each part of a rollout; compare two profiles.",
    )
    app.add_typer(
        _group(path=config_path, show=config_show, init=config_init),
        name="config",
        help="Show and create the configuration file with defaults of options.",
    )


def _group(
    group_class: type[_Group] = _Group,
    command_classes: Mapping[str, type[_Command]] | None = None,
    **commands: Any,
) -> typer.Typer:
    group = typer.Typer(**_SETTINGS, cls=group_class, callback=_no_callback)
    for name, command in commands.items():
        command_class = (command_classes or {}).get(name, _Command)
        group.command(name, cls=command_class)(expand_options(command))
    return group


def _no_callback() -> None:
    """Keep Typer from turning an app with a single command into that command."""


def _print_version(requested: bool) -> None:
    if requested:
        print(f"tdx {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Inspect what a chain of RL transforms does to your data, check it, and measure its cost."""
