"""Options that several commands share: their values, parsers and dataclasses."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TextIO, TypeAlias, get_type_hints

import typer

from tdx.foundation.errors import TdxError, UnknownNameError, did_you_mean
from tdx.foundation.untrusted import MAX_SECONDS

Function: TypeAlias = Callable[..., int | None]
"""A command; its docstring is the help text. It returns the exit code; ``None``: 0."""
Functions: TypeAlias = Mapping[str, Function]
"""Commands by the words after ``tdx``, such as ``inspect spec``."""


class Format(StrEnum):
    """Output formats. Most commands have :data:`DATA_FORMATS`."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MD = "md"
    MERMAID = "mermaid"
    SVG = "svg"
    SARIF = "sarif"


DATA_FORMATS = (Format.TABLE, Format.JSON, Format.JSONL, Format.CSV, Format.MD)
"""Output formats of any data."""
GRAPH_FORMATS = (*DATA_FORMATS, Format.MERMAID)
"""Output formats of data that forms a graph."""
IMAGE_FORMATS = (*GRAPH_FORMATS, Format.SVG)
"""Output formats of data that can be drawn as an image."""
FINDINGS_FORMATS = (*DATA_FORMATS, Format.SARIF)
"""Output formats of findings."""


class Color(StrEnum):
    """When to color the output."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"

    def is_enabled(self, stream: TextIO) -> bool:
        """Return True if output to ``stream`` is colored; respects NO_COLOR and FORCE_COLOR."""
        if self is not Color.AUTO:
            return self is Color.ALWAYS
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"


class Batching(StrEnum):
    """How several copies of an env run."""

    VECTOR = "vector"
    SERIAL = "serial"
    PARALLEL = "parallel"


_MAX_INTEGER, _MAX_DIGITS = 2**63 - 1, 30
_POWER_OF_TEN = re.compile(r"([1-9]\d*)[eE](\d{1,2})")


def choice_option(
    option: str,
    choices: Iterable[StrEnum],
    help: str,
    *,
    metavar: str | None = None,
    panel: str | None = None,
) -> Any:
    """Declare an option with a limited number of values; an invalid one suggests the nearest."""
    known = {choice.value: choice for choice in choices}

    def parse(value: str) -> StrEnum:
        if value in known:
            return known[value]
        hint = did_you_mean(value, known, otherwise=f"one of {', '.join(known)}")
        if Format.TABLE in known:
            from tdx.rollouts.formats.registry import export_formats

            if value in {form.name for form in export_formats()}:
                hint = f"{value} is a format of dumps: use tdx export DUMP --to {value}"
        raise UnknownNameError(f"invalid value {value!r} for {option}", hint=hint)

    return typer.Option(
        option,
        parser=parse,
        metavar=metavar or "|".join(known),
        autocompletion=lambda incomplete: [name for name in known if name.startswith(incomplete)],
        help=help,
        rich_help_panel=panel,
    )


def integer_parser(option: str, minimum: int, maximum: int = _MAX_INTEGER) -> Callable[[str], int]:
    """Return a parser of an integer, such as ``1000`` or ``1e3``, that reports the valid range."""

    def parse(value: str) -> int:
        power = _POWER_OF_TEN.fullmatch(value)
        if power is not None:
            value = power[1] + "0" * int(power[2])
        # Python refuses to convert thousands of digits.
        is_short = len(value) <= _MAX_DIGITS
        if not value.lstrip("-").isdecimal() or (is_short and int(value) < minimum):
            raise typer.BadParameter(
                f"{option} must be an integer of at least {minimum}, got {value[:_MAX_DIGITS]!r}"
            )
        if not is_short or int(value) > maximum:
            raise typer.BadParameter(
                f"{option} must be at most {maximum:,}, got {value[:_MAX_DIGITS]}"
            )
        return int(value)

    return parse


def integer_option(
    option: str,
    minimum: int,
    help: str,
    *,
    maximum: int = _MAX_INTEGER,
    metavar: str = "N",
    panel: str | None = None,
) -> Any:
    """Declare an option with an integer value."""
    parser = integer_parser(option, minimum, maximum)
    return typer.Option(option, metavar=metavar, parser=parser, help=help, rich_help_panel=panel)


def seconds_parser(option: str) -> Callable[[str], float]:
    """Return a parser of a positive number of seconds that reports the valid range."""

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number <= MAX_SECONDS:
            raise typer.BadParameter(
                f"{option} must be a number of seconds above 0 and at most {MAX_SECONDS:,}, "
                f"got {value[:_MAX_DIGITS]!r}"
            )
        return number

    return parse


def split_list(values: list[str] | None) -> list[str]:
    """Split the values of an option that can be repeated and can contain commas.

    Example:
        >>> split_list(["observation, action", "done"])
        ['observation', 'action', 'done']
    """
    return [name.strip() for text in values or () for name in text.split(",") if name.strip()]


_OUTPUT = "Output"


Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of errors.", rich_help_panel=_OUTPUT)
]

ColorOption = Annotated[
    Color,
    choice_option(
        *("--color", Color),
        "When to color the output; NO_COLOR and FORCE_COLOR also apply.",
        panel=_OUTPUT,
    ),
]


def format_option(formats: Iterable[Format]) -> Any:
    """Declare ``--format`` with some formats."""
    return choice_option("--format", formats, "Output format.", panel=_OUTPUT)


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and the result.")]


@contextmanager
def hidden_messages(quiet: bool) -> Iterator[None]:
    """Drop what the block writes to stderr, if ``quiet``; errors are printed after a command."""
    if not quiet:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        yield


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Output options of most commands."""

    format: Annotated[Format, format_option(DATA_FORMATS)] = Format.TABLE
    color: ColorOption = Color.AUTO
    debug: Debug = False


@dataclass(frozen=True, slots=True)
class DiagramOptions(OutputOptions):
    """Output options of commands whose result can be drawn as a graph."""

    format: Annotated[Format, format_option(GRAPH_FORMATS)] = Format.TABLE


@dataclass(frozen=True, slots=True)
class ImageOptions(OutputOptions):
    """Output options of commands whose result can be drawn as an image."""

    format: Annotated[Format, format_option(IMAGE_FORMATS)] = Format.TABLE


@dataclass(frozen=True, slots=True)
class FindingsOptions(OutputOptions):
    """Output options of ``tdx check``."""

    format: Annotated[Format, format_option(FINDINGS_FORMATS)] = Format.TABLE


@dataclass(frozen=True, slots=True)
class DialogOptions:
    """Options of a command that writes a file and asks questions, which ``--quiet`` keeps.

    Data about the file is printed only in another format than a table.
    """

    format: Annotated[Format, format_option(DATA_FORMATS)] = Format.TABLE
    color: ColorOption = Color.AUTO
    debug: Debug = False
    quiet: Quiet = False


@dataclass(frozen=True, slots=True)
class DebugOptions:
    """Options of a command with a single output format."""

    debug: Debug = False


def expand_options(command: Function) -> Function:
    """Replace each parameter that is annotated with a dataclass of options by its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }

    is_dialog = DialogOptions in groups.values()

    @functools.wraps(command)
    def with_options(**values: Any) -> int | None:
        # A dialog hides its messages itself, but not its questions.
        with hidden_messages(False if is_dialog else values.pop("quiet")):
            return with_groups(**values)

    def with_groups(**values: Any) -> int | None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
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


def configured_values(names: Sequence[str], *, tolerant: bool = False) -> dict[str, Any]:
    """Return the defaults of options that the user configured, by name.

    ``tolerant`` ignores settings that cannot be read.
    """
    if not names:
        return {}
    from tdx.foundation.settings import load_settings

    try:
        settings = load_settings()
    except TdxError:
        if tolerant:
            return {}
        raise
    return {name: settings[name] for name in names if settings.is_set(name)}
