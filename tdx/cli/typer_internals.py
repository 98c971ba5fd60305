"""Read option values without pydantic, which takes longer to load than all else of a short command.

Typer hands every value to a pydantic adapter. The options here are strings, lists of strings,
flags and parsers, which need none. Should Typer change, its own adapters step in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup

from tdx.errors import TdxError
from tdx.text import escape_control_characters, is_printable

_HELP = {"--help", "-h"}
_TOLERANT = {"config", "doctor"}
"""Commands that are there to find and mend what is wrong with what the user has set."""


class _LightValue:
    """Takes the place of Typer's adapter of one parameter."""

    def __init__(self, parser: Callable[[str], Any] | None) -> None:
        self._parser = parser

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if isinstance(value, str) and self._parser is not None:
            return self._parser(value)
        return value


class _Offers:
    """Offers to the shell only words that a terminal does not act on.

    Args:
        complete: finds the words for a parameter; they may come from an env or a dump.
    """

    def __init__(self, complete: Callable[[Any, str], list[Any]]) -> None:
        self._complete = complete

    def __call__(self, ctx: Any, incomplete: str) -> list[Any]:
        offers = [each for each in self._complete(ctx, incomplete) if is_printable(each.value)]
        for offer in offers:
            offer.help = offer.help and escape_control_characters(offer.help)
        return offers


class _Light:
    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Take the defaults of some options from what the user has set for all runs."""
        if not extra.get("resilient_parsing"):
            if parent is None and _HELP & set(args):
                notice_of_broken_settings()
            elif isinstance(self, TyperCommand) and not _HELP & set(args):
                called = {info_name, None if parent is None else parent.info_name}
                names = {param.name for param in self.params}
                extra["default_map"] = default_options(names, tolerant=bool(called & _TOLERANT))
        return super().make_context(info_name, args, parent=parent, **extra)  # type: ignore[misc]

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            descriptor = getattr(param, "type_descriptor", None)
            if descriptor is not None:
                param._runtime_param = _LightValue(descriptor.parameter_info.parser)
            if getattr(param, "is_flag", False) and param.metavar is None:
                # Typer would write <bool> behind a flag that takes no value.
                param.metavar = ""
            if "shell_complete" not in vars(param):
                param.shell_complete = _Offers(param.shell_complete)
        return params


class LightCommand(_Light, TyperCommand):
    """A command of Typer that needs no pydantic."""


class LightGroup(_Light, TyperGroup):
    """A group of Typer that needs no pydantic."""


OUTPUT_SETTINGS = ("format", "color")
PIPELINE_SETTINGS = ("seed", "num_envs", "device")


def default_options(names: Collection[str | None], *, tolerant: bool = False) -> dict[str, Any]:
    """The defaults that the settings give to a command's options.

    Args:
        names: the options that the command has.
        tolerant: whether settings that cannot be read are passed over.

    Raises:
        TdxError: the settings cannot be read.
    """
    wanted = [name for name in OUTPUT_SETTINGS if name in names]
    if not wanted:
        return {}
    from tdx.settings import load_settings

    try:
        settings = load_settings()
    except TdxError:
        if tolerant:
            return {}
        raise
    return {name: settings[name] for name in wanted if settings.is_set(name)}


def pipeline_settings(values: Mapping[str, Any], *, tolerant: bool = False) -> dict[str, Any]:
    """What the settings say of an env, for as far as its pipeline leaves it open.

    Args:
        values: what the pipeline says.
        tolerant: whether settings that cannot be read are passed over.

    Raises:
        TdxError: the settings cannot be read.
    """
    wanted = [name for name in PIPELINE_SETTINGS if values[name] is None]
    if not wanted:
        return {}
    from tdx.settings import load_settings

    try:
        settings = load_settings()
    except TdxError:
        if tolerant:
            return {}
        raise
    return {name: settings[name] for name in wanted if settings.is_set(name)}


def notice_of_broken_settings() -> None:
    """Say on stderr that the settings cannot be read, where help is asked for."""
    from tdx.settings import load_settings

    try:
        load_settings()
    except TdxError as error:
        place = f"{error.where}: " if str(error.where) else ""
        print(f"notice: {place}{error.message}; the defaults are used", file=sys.stderr)
