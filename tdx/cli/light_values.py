"""Read option values without pydantic, which takes longer to load than all else of a short command.

Typer hands every value to a pydantic adapter. The options here are strings, lists of strings,
flags and parsers, which need none. Should Typer change, its own adapters step in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from tdx.cli.defaults import default_options, notice_of_broken_settings
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
