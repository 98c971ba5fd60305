"""Every option of the command line, declared once.

A command takes one of the dataclasses below as a parameter; :func:`takes_options` turns its
fields into the command's options.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, Self, TextIO, TypeVar, get_type_hints

import typer

from tdx.cli.completion import complete_env, complete_transform
from tdx.errors import UnknownNameError, did_you_mean


class Format(StrEnum):
    """How data is written to stdout."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MD = "md"


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"

    def wanted(self, stream: TextIO) -> bool:
        """Whether to colour what goes to ``stream``; ``NO_COLOR`` and ``FORCE_COLOR`` count."""
        if self is not Color.AUTO:
            return self is Color.ALWAYS
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"


class Batching(StrEnum):
    """What runs the copies of an env."""

    VECTOR = "vector"
    SERIAL = "serial"
    PARALLEL = "parallel"


Choice = TypeVar("Choice", bound=StrEnum)


def one_of(kind: type[Choice]) -> Callable[[str], Choice]:
    """A parser of an option's value that names the nearest spelling of a wrong one."""

    def parse(value: str) -> Choice:
        try:
            return kind(value)
        except ValueError:
            known = [member.value for member in kind]
            hint = did_you_mean(value, known, otherwise=f"one of {', '.join(known)}")
            message = f"--{kind.__name__.lower()} cannot be {value!r}"
            raise UnknownNameError(message, hint=hint) from None

    return parse


def whole_number(option: str, at_least: int) -> Callable[[str], int]:
    """A parser of a whole number that says what it wants."""

    def parse(value: str) -> int:
        if not value.lstrip("-").isdecimal() or int(value) < at_least:
            raise typer.BadParameter(
                f"{option} must be a whole number of at least {at_least}, got {value!r}"
            )
        return int(value)

    return parse


def _choices(kind: type[StrEnum]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [member.value for member in kind if member.value.startswith(incomplete)]

    return complete


_PIPELINE = "Pipeline"
_OUTPUT = "Output"


Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_OUTPUT)
]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a result is shown."""

    format: Annotated[
        Format,
        typer.Option(
            "--format",
            parser=one_of(Format),
            metavar="|".join(Format),
            autocompletion=_choices(Format),
            help="How to write the result.",
            rich_help_panel=_OUTPUT,
        ),
    ] = Format.TABLE
    color: Annotated[
        Color,
        typer.Option(
            "--color",
            parser=one_of(Color),
            metavar="|".join(Color),
            autocompletion=_choices(Color),
            help="When to colour; NO_COLOR and FORCE_COLOR are heeded too.",
            rich_help_panel=_OUTPUT,
        ),
    ] = Color.AUTO
    debug: Debug = False


@dataclass(frozen=True, slots=True)
class DebugOptions:
    """For a command whose output has one form only."""

    debug: Debug = False


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Which env, and which chain of transforms."""

    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            metavar="ID",
            autocompletion=complete_env,
            help="The env, by its id; `tdx list envs` has them.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    env_kwargs: Annotated[
        str | None,
        typer.Option(
            "--env-kwargs",
            metavar="JSON",
            help="Arguments for making the env: '{\"continuous\": true}', or a Python dict.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    transforms: Annotated[
        list[str] | None,
        typer.Option(
            "--t",
            "-t",
            "--transform",
            metavar="CALL",
            autocompletion=complete_transform,
            help='A stage of the chain: StepCounter, or "StepCounter(max_steps=200)". '
            "Repeat it; the order counts.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            metavar="FILE",
            help="A pipeline file (YAML) in the place of --env and --t; - reads stdin.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    num_envs: Annotated[
        int | None,
        typer.Option(
            "--num-envs",
            metavar="N",
            parser=whole_number("--num-envs", at_least=1),
            help="How many copies of the env run at once.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    from_pixels: Annotated[
        bool,
        typer.Option(
            "--from-pixels",
            help="Add what the env renders as the observation `pixels`.",
            rich_help_panel=_PIPELINE,
        ),
    ] = False
    batching: Annotated[
        Batching | None,
        typer.Option(
            "--batching",
            parser=one_of(Batching),
            metavar="|".join(Batching),
            autocompletion=_choices(Batching),
            help="What runs the copies: the env's own batch, a loop, or a process each.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Where the tensors live: cpu, cuda, cuda:1, mps.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            parser=whole_number("--seed", at_least=0),
            help="Seed of the env.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    allow_code: Annotated[
        bool,
        typer.Option(
            "--allow-code",
            help="Import the Python objects that a pipeline names as module:name.",
            rich_help_panel=_PIPELINE,
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class Early:
    """What must be known before the arguments are parsed, to show a parsing error rightly."""

    json: bool
    debug: bool
    color: Color

    @classmethod
    def read(cls, arguments: Sequence[str]) -> Self:
        """Look for ``--format``, ``--debug`` and ``--color`` among unparsed arguments."""
        color = _value_of("--color", arguments)
        return cls(
            json=_value_of("--format", arguments) in (Format.JSON, Format.JSONL),
            debug="--debug" in arguments,
            color=Color(color) if color in list(Color) else Color.AUTO,
        )

    def wants_color(self, stream: TextIO) -> bool:
        """Whether to colour what goes to ``stream``."""
        return self.color.wanted(stream)


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    value = None
    for position, argument in enumerate(arguments):
        if argument == option and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value


def takes_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Replace each parameter annotated with an options dataclass by that dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if _is_options(kind)}

    @functools.wraps(command)
    def with_options(**values: Any) -> int | None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        return command(**values)

    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name not in groups
    ]
    shared = [parameter for kind in groups.values() for parameter in _parameters(kind)]
    with_options.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    with_options.__annotations__ = {
        parameter.name: parameter.annotation for parameter in (*own, *shared)
    }
    del with_options.__wrapped__  # type: ignore[attr-defined]
    return with_options


def _is_options(kind: object) -> bool:
    return isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == __name__


def _parameters(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
