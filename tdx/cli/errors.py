"""Errors as a user sees them: one line, a hint and an exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TextIO

import typer

from tdx.cli.choices import CheckFormat, Color, Format
from tdx.cli.defaults import configured_text
from tdx.cli.streams import json_text, raw_stream
from tdx.cli.typer_internals import bare_message, unknown_command, unknown_option
from tdx.errors import ArgumentError, ExitCode, TdxError, UnknownNameError, did_you_mean
from tdx.text import escape_control_characters

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ErrorStyle:
    """How to show an error, found in the arguments before they are parsed.

    Args:
        format: Value of ``--format``. ``None``: not given.
        debug: True if ``--debug`` is given.
        color: Value of ``--color``. ``None``: not given or invalid.
    """

    format: str | None
    debug: bool
    color: Color | None

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Self:
        """Find ``--format``, ``--debug`` and ``--color`` in unparsed arguments."""
        color = _value_of("--color", arguments)
        return cls(
            format=_value_of("--format", arguments),
            debug="--debug" in arguments,
            color=Color(color) if color in list(Color) else None,
        )

    @property
    def is_json(self) -> bool:
        """True if the output would have been JSON."""
        output = self.format or configured_text("format")
        return output in (Format.JSON, Format.JSONL, CheckFormat.SARIF)

    def use_color(self, stream: TextIO) -> bool:
        """Return True if output to ``stream`` is colored."""
        return (self.color or Color(configured_text("color") or "auto")).is_enabled(stream)


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    value = None
    for position, argument in enumerate(arguments):
        if argument == option and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value


def show_error(error: TdxError, style: ErrorStyle) -> None:
    """Write an error to stderr, as JSON if the output would have been JSON."""
    place = str(error.where)
    _write(
        f"{place}: {error.message}" if place else error.message,
        error.hint,
        {**error.to_dict(), "exit_code": int(error.exit_code)},
        style,
    )


def show_unexpected_error(error: Exception, style: ErrorStyle) -> int:
    """Write an error that is not a :class:`~tdx.errors.TdxError`; return its exit code."""
    name = type(error).__name__
    message = f"unexpected {name}: {error}" if str(error) else f"unexpected {name}"
    hint = "report this as a bug" if style.debug else "--debug shows the traceback"
    data: dict[str, Any] = {
        "code": TdxError.code,
        "error": name,
        "message": message,
        "hint": hint,
        "where": {},
    }
    _write(message, hint, {**data, "exit_code": int(ExitCode.ENVIRONMENT)}, style)
    return ExitCode.ENVIRONMENT


def _write(message: str, hint: str | None, data: dict[str, Any], style: ErrorStyle) -> None:
    with contextlib.suppress(OSError):
        _print(message, hint, data, style)


def _print(message: str, hint: str | None, data: dict[str, Any], style: ErrorStyle) -> None:
    stream = raw_stream(sys.stderr)
    if style.is_json:
        document = {"schema_version": SCHEMA_VERSION, "kind": "error", "error": data}
        stream.write(json_text(document, stream))
        return
    red, cyan, reset = (
        ("\x1b[1;31m", "\x1b[36m", "\x1b[0m") if style.use_color(stream) else ("", "", "")
    )
    print(f"{red}error:{reset} {_one_line(message)}", file=stream)
    if hint:
        print(f"{cyan}hint:{reset} {_one_line(hint)}", file=stream)


def _one_line(text: str) -> str:
    return escape_control_characters(" ".join(text.split()))


def as_tdx_error(error: TdxError | typer.TyperException) -> TdxError:
    """Convert a usage error of Typer; suggest the nearest spelling of an unknown name."""
    if isinstance(error, TdxError):
        return error
    context: typer.Context | None = getattr(error, "ctx", None)
    option = unknown_option(error)
    if option is not None:
        return _unknown_option(option, context)
    command = unknown_command(error)
    if command is not None and context is not None:
        return _unknown_command(command, context)
    message = bare_message(error)
    return ArgumentError(f"{message[:1].lower()}{message[1:]}", hint=_hint(message, context))


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
        return "write the value after the option"
    if "unexpected extra argument" in message and "--pipeline" in known:
        return "pass a pipeline file as --pipeline FILE and a stage as --t STAGE"
    return _usage_hint(context)


def _usage_hint(context: typer.Context | None) -> str:
    command = "tdx" if context is None else context.command_path
    return f"{command} --help lists the options"
