"""The commands of ``tdx`` and how they hang together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer
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
from tdx.cli.options import takes_options
from tdx.cli.typer_internals import LightCommand, LightGroup

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
_UNNAMED = "run"
"""The command of a group that is meant where none is named."""
_BEGIN = "Begin with: tdx inspect spec --env Pendulum-v1 --t StepCounter"
_SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["--help", "-h"]},
}


class _Ordered(LightGroup):
    """Lists the commands in the order in which a user needs them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=_ORDER.index)


class _OrDump(LightGroup):
    """Takes a folder in the place of a command: ``tdx show runs/pendulum``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        named = args[0]
        if named not in self.commands and (os.path.isdir(named) or os.sep in named):
            args = ["dump", *args]
        return super().resolve_command(ctx, args)


class _OrPipeline(LightGroup):
    """Takes a pipeline in the place of a command: ``tdx profile --env Pendulum-v1``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args or args[0] not in self.commands:
            args = [_UNNAMED, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in super().list_commands(ctx) if name != _UNNAMED]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return (None if name == _UNNAMED else name), command, rest


class _Context(typer.Context):
    @property
    def command_path(self) -> str:
        """The words before the options, without a gap where the command has no name."""
        return " ".join(super().command_path.split())


class _Unnamed(LightCommand):
    """A command that is meant where its group is called without one."""

    context_class = _Context


def build_command() -> Any:
    """The whole command line as one command."""
    app = typer.Typer(
        **_SETTINGS, cls=_Ordered, callback=_root, suggest_commands=False, epilog=_BEGIN
    )
    looks = _group(
        spec=inspect_spec,
        chain=inspect_chain,
        keys=inspect_keys,
        values=inspect_values,
        plan=inspect_plan,
    )
    app.add_typer(looks, name="inspect", help="Look at what a chain does.")
    app.add_typer(
        _group(envs=list_envs, transforms=list_transforms, dumps=list_dumps),
        name="list",
        help="List the envs, transforms and dumps there are.",
    )
    app.add_typer(
        _group(_OrDump, transform=show_transform, dump=show_dump),
        name="show",
        help="Show all about one transform, or what is in a dump.",
    )
    app.command("tui", cls=LightCommand)(takes_options(tui))
    app.command("serve", cls=LightCommand)(takes_options(serve))
    app.command("check", cls=LightCommand)(takes_options(check))
    app.command("explain", cls=LightCommand)(takes_options(explain))
    app.add_typer(
        _group(_OrPipeline, {_UNNAMED: _Unnamed}, run=profile, compare=profile_compare),
        name="profile",
        help="Measure what each part of a rollout costs; compare two such profiles.",
    )
    app.command("report", cls=LightCommand)(takes_options(report))
    app.command("rollout", cls=LightCommand)(takes_options(rollout))
    app.command("replay", cls=LightCommand)(takes_options(replay))
    app.command("verify", cls=LightCommand)(takes_options(verify))
    app.command("export", cls=LightCommand)(takes_options(export))
    app.command("import", cls=LightCommand)(takes_options(import_))
    app.command("diff", cls=LightCommand)(takes_options(diff))
    app.command("doctor", cls=LightCommand)(takes_options(doctor))
    app.command("init", cls=LightCommand)(takes_options(init))
    config = _group(path=config_path, show=config_show, init=config_init)
    app.add_typer(config, name="config", help="Defaults of options: where they are set, and how.")
    app.command("schema", cls=LightCommand)(takes_options(schema))
    return get_command(app)


def _group(
    kind: type[LightGroup] = LightGroup,
    kinds: Mapping[str, type[LightCommand]] | None = None,
    **commands: Any,
) -> typer.Typer:
    group = typer.Typer(**_SETTINGS, cls=kind, callback=_nothing)
    for name, command in commands.items():
        group.command(name, cls=(kinds or {}).get(name, LightCommand))(takes_options(command))
    return group


def _nothing() -> None:
    """Make a group of a typer app that has one command only."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tdx {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """See what a chain of RL transforms does to your data, and whether it is right."""
