"""Errors as the user of the command line sees them: one line, a hint, an exit code."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TextIO

import typer

from tdx.cli.choices import CheckFormat, Color, Format
from tdx.cli.streams import json_text, unescaped
from tdx.errors import ArgumentError, ExitCode, TdxError, UnknownNameError, did_you_mean
from tdx.text import escape_control_characters

SCHEMA_VERSION = 1


def show_error(error: TdxError, early: Early) -> None:
    """Write an error to stderr, as JSON where the output would have been JSON."""
    place = str(error.where)
    _write(
        f"{place}: {error.message}" if place else error.message,
        error.hint,
        {**error.to_dict(), "exit_code": int(error.exit_code)},
        early,
    )


def show_unexpected(error: Exception, early: Early) -> int:
    """Write an error that tdx did not foresee; returns the exit code for it."""
    name = type(error).__name__
    message = f"unexpected {name}: {error}" if str(error) else f"unexpected {name}"
    hint = "report this as a bug" if early.debug else "--debug shows where it happened"
    data: dict[str, Any] = {
        "code": TdxError.code,
        "error": name,
        "message": message,
        "hint": hint,
        "where": {},
    }
    _write(message, hint, {**data, "exit_code": int(ExitCode.ENVIRONMENT)}, early)
    return ExitCode.ENVIRONMENT


def _write(message: str, hint: str | None, data: dict[str, Any], early: Early) -> None:
    with contextlib.suppress(OSError):
        _print(message, hint, data, early)


def _print(message: str, hint: str | None, data: dict[str, Any], early: Early) -> None:
    stream = unescaped(sys.stderr)
    if early.json:
        document = {"schema_version": SCHEMA_VERSION, "kind": "error", "error": data}
        stream.write(json_text(document, stream))
        return
    red, cyan, plain = (
        ("\x1b[1;31m", "\x1b[36m", "\x1b[0m") if early.wants_color(stream) else ("", "", "")
    )
    print(f"{red}error:{plain} {_one_line(message)}", file=stream)
    if hint:
        print(f"{cyan}hint:{plain} {_one_line(hint)}", file=stream)


def _one_line(text: str) -> str:
    return escape_control_characters(" ".join(text.split()))


def asked_for_nothing(error: Exception) -> bool:
    """Whether it is how Typer ends after it has shown the help to a user who gave no command."""
    return type(error).__name__ == "NoArgsIsHelpError"


def as_tdx_error(error: TdxError | typer.TyperException) -> TdxError:
    """The same error in tdx's own family, with the nearest spelling where a name is unknown."""
    if isinstance(error, TdxError):
        return error
    context: typer.Context | None = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and option is not None:
        return _unknown_option(option, context)
    unknown = re.fullmatch(r"No such command '(.*)'\.?.*", error.format_message(), re.DOTALL)
    if unknown and context is not None:
        return _unknown_command(unknown.group(1), context)
    message = re.sub(r"^Invalid value(?: for '.*?')?: ", "", error.format_message()).rstrip(".")
    return ArgumentError(_lower_first(message), hint=_hint(message, context))


def _unknown_option(option: str, context: typer.Context | None) -> TdxError:
    known: list[str] = []
    if context is not None:
        known = [name for param in context.command.params for name in param.opts]
        known = [name for name in known if name.startswith("--")]
    hint = did_you_mean(option, known, otherwise=_usage_hint(context))
    return UnknownNameError(f"no such option: {option}", hint=hint)


def _unknown_command(name: str, context: typer.Context) -> TdxError:
    group: Any = context.command
    known: list[str] = group.list_commands(context)
    hint = did_you_mean(name, known, otherwise=f"the commands are {', '.join(known)}")
    return UnknownNameError(f"no such command: {context.command_path} {name}", hint=hint)


def _hint(message: str, context: typer.Context | None) -> str:
    known = {name for param in context.command.params for name in param.opts} if context else ()
    if "requires an argument" in message or ("requires" in message and "arguments" in message):
        return "write the value after it"
    if "unexpected extra argument" in message and "--pipeline" in known:
        return "a pipeline file is given as --pipeline FILE, a stage as --t STAGE"
    return _usage_hint(context)


def _usage_hint(context: typer.Context | None) -> str:
    command = "tdx" if context is None else context.command_path
    return f"{command} --help lists what it takes"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


@dataclass(frozen=True, slots=True)
class Early:
    """How an error is to be shown, read off the arguments as they came.

    Args:
        format: how the output would have been written; none where no option says so.
        debug: whether tracebacks are wanted.
        color: when to colour; none where no option says so.
    """

    format: str | None
    debug: bool
    color: Color | None

    @classmethod
    def read(cls, arguments: Sequence[str]) -> Self:
        """Look for ``--format``, ``--debug`` and ``--color`` among unparsed arguments."""
        color = _value_of("--color", arguments)
        return cls(
            format=_value_of("--format", arguments),
            debug="--debug" in arguments,
            color=Color(color) if color in list(Color) else None,
        )

    @property
    def json(self) -> bool:
        """Whether the output would have been JSON."""
        return (self.format or _setting("format")) in (Format.JSON, Format.JSONL, CheckFormat.SARIF)

    def wants_color(self, stream: TextIO) -> bool:
        """Whether to colour what goes to ``stream``."""
        return (self.color or Color(_setting("color") or "auto")).wanted(stream)


def _setting(name: str) -> str | None:
    """What the user has set for all runs; nothing where that cannot be read."""
    from tdx.settings import load_settings

    try:
        value = load_settings()[name]
    except TdxError:
        return None
    return value if isinstance(value, str) else None


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    value = None
    for position, argument in enumerate(arguments):
        if argument == option and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value
