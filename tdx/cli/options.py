"""Every option of the command line, declared once.

A command takes one of the dataclasses below as a parameter; :func:`takes_options` turns its
fields into the command's options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, get_type_hints

import typer

from tdx.cli.choices import (
    Batching,
    CheckFormat,
    Color,
    DiagramFormat,
    Format,
    members_of,
    number_option,
    one_of,
    seconds,
)
from tdx.cli.completion import complete_env, complete_transform
from tdx.untrusted import MAX_ENVS

_PIPELINE = "Pipeline"
_OUTPUT = "Output"


Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_OUTPUT)
]

ColorOption = Annotated[
    Color,
    typer.Option(
        "--color",
        parser=one_of(Color),
        metavar="|".join(Color),
        autocompletion=members_of(Color),
        help="When to colour; NO_COLOR and FORCE_COLOR are heeded too.",
        rich_help_panel=_OUTPUT,
    ),
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
            autocompletion=members_of(Format),
            help="How to write the result.",
            rich_help_panel=_OUTPUT,
        ),
    ] = Format.TABLE
    color: ColorOption = Color.AUTO
    debug: Debug = False


@dataclass(frozen=True, slots=True)
class DiagramOptions:
    """How a result that is a graph is shown."""

    format: Annotated[
        DiagramFormat,
        typer.Option(
            "--format",
            parser=one_of(DiagramFormat, "--format"),
            metavar="|".join(DiagramFormat),
            autocompletion=members_of(DiagramFormat),
            help="How to write the result.",
            rich_help_panel=_OUTPUT,
        ),
    ] = DiagramFormat.TABLE
    color: ColorOption = Color.AUTO
    debug: Debug = False

    @property
    def output(self) -> OutputOptions:
        """The same for what writes rows and documents; a diagram counts as a table."""
        if self.format is DiagramFormat.MERMAID:
            return OutputOptions(Format.TABLE, self.color, self.debug)
        return OutputOptions(Format(self.format.value), self.color, self.debug)


@dataclass(frozen=True, slots=True)
class OutputLessOptions:
    """For a command that writes a file and talks to the user meanwhile."""

    color: ColorOption = Color.AUTO
    debug: Debug = False


@dataclass(frozen=True, slots=True)
class FindingsOptions:
    """How what is found is shown."""

    format: Annotated[
        CheckFormat,
        typer.Option(
            "--format",
            parser=one_of(CheckFormat, "--format"),
            metavar="|".join(CheckFormat),
            autocompletion=members_of(CheckFormat),
            help="How to write the result.",
            rich_help_panel=_OUTPUT,
        ),
    ] = CheckFormat.TABLE
    color: ColorOption = Color.AUTO
    debug: Debug = False

    @property
    def output(self) -> OutputOptions:
        """The same for what writes rows and documents; SARIF counts as JSON."""
        if self.format is CheckFormat.SARIF:
            return OutputOptions(Format.JSON, self.color, self.debug)
        return OutputOptions(Format(self.format.value), self.color, self.debug)


@dataclass(frozen=True, slots=True)
class DebugOptions:
    """For a command whose output has one form only."""

    debug: Debug = False


FileArgument = Annotated[
    str | None, typer.Argument(metavar="[PIPELINE]", help="A pipeline file; - is stdin.")
]
"""The same as --pipeline, in commands that take nothing else by place."""


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
            metavar="KWARGS",
            help="Arguments for making the env: 'g=9.8', or '{\"g\": 9.8}'.",
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
            help='A stage of the chain: RewardSum, or "CatFrames(4, dim=-1)". '
            "Repeat it; the order counts.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            metavar="FILE",
            help="A pipeline file in YAML in the place of --env; - reads stdin. Stages given with "
            "--t stand after its own.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    num_envs: Annotated[
        int | None,
        number_option(
            *("--num-envs", 1, "How many copies of the env run at once."),
            at_most=MAX_ENVS,
            panel=_PIPELINE,
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
            metavar="HOW",
            autocompletion=members_of(Batching),
            help="What runs the copies: vector (the env's own batch), serial (a loop) or "
            "parallel (a process each).",
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
        number_option("--seed", 0, "Seed of the env.", panel=_PIPELINE),
    ] = None
    worker_timeout: Annotated[
        float | None,
        typer.Option(
            "--worker-timeout",
            metavar="SECONDS",
            parser=seconds("--worker-timeout"),
            help="With --batching parallel: how long to wait for a process that does not answer; "
            "120 by default.",
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
    annotations = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    del with_options.__wrapped__
    with_options.__dict__["__signature__"] = inspect.Signature([*own, *shared])
    with_options.__annotations__ = annotations
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


def as_arguments(options: PipelineOptions) -> list[str]:
    """The arguments from which a ``tdx`` reads the same options.

    Each is one word, ``--name=value``, so that no value can be taken for an option.

    Example:
        >>> as_arguments(PipelineOptions(env="Pendulum-v1", transforms=["RewardSum"], num_envs=2))
        ['--env=Pendulum-v1', '--t=RewardSum', '--num-envs=2']
    """
    hints = get_type_hints(PipelineOptions, include_extras=True)
    words = []
    for field in fields(options):
        # In an annotation Typer keeps the first name where a default would stand.
        name = hints[field.name].__metadata__[0].default
        value = getattr(options, field.name)
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            values = value if isinstance(value, list) else [value]
            words += [f"{name}={each.value if isinstance(each, Enum) else each}" for each in values]
    return words
