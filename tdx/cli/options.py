"""Options that several commands share.

A command takes one of the dataclasses below as a parameter; :func:`expand_options` turns its fields
into options of the command.
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
    choice_parser,
    complete_members,
    integer_option,
    seconds_parser,
)
from tdx.cli.completion import complete_env, complete_transform
from tdx.cli.typer_internals import option_name
from tdx.untrusted import MAX_ENVS

_PIPELINE = "Pipeline"
_OUTPUT = "Output"


Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of errors.", rich_help_panel=_OUTPUT)
]

ColorOption = Annotated[
    Color,
    typer.Option(
        "--color",
        parser=choice_parser(Color),
        metavar="|".join(Color),
        autocompletion=complete_members(Color),
        help="When to color the output; NO_COLOR and FORCE_COLOR also apply.",
        rich_help_panel=_OUTPUT,
    ),
]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Output options of most commands."""

    format: Annotated[
        Format,
        typer.Option(
            "--format",
            parser=choice_parser(Format),
            metavar="|".join(Format),
            autocompletion=complete_members(Format),
            help="Output format.",
            rich_help_panel=_OUTPUT,
        ),
    ] = Format.TABLE
    color: ColorOption = Color.AUTO
    debug: Debug = False


@dataclass(frozen=True, slots=True)
class DiagramOptions:
    """Output options of commands whose result can be drawn as a graph."""

    format: Annotated[
        DiagramFormat,
        typer.Option(
            "--format",
            parser=choice_parser(DiagramFormat, "--format"),
            metavar="|".join(DiagramFormat),
            autocompletion=complete_members(DiagramFormat),
            help="Output format.",
            rich_help_panel=_OUTPUT,
        ),
    ] = DiagramFormat.TABLE
    color: ColorOption = Color.AUTO
    debug: Debug = False

    @property
    def output(self) -> OutputOptions:
        """Options for writing a view; Mermaid counts as a table."""
        if self.format is DiagramFormat.MERMAID:
            return OutputOptions(Format.TABLE, self.color, self.debug)
        return OutputOptions(Format(self.format.value), self.color, self.debug)


@dataclass(frozen=True, slots=True)
class DialogOptions:
    """Options of a command that writes a file and asks questions."""

    color: ColorOption = Color.AUTO
    debug: Debug = False


@dataclass(frozen=True, slots=True)
class FindingsOptions:
    """Output options of ``tdx check``."""

    format: Annotated[
        CheckFormat,
        typer.Option(
            "--format",
            parser=choice_parser(CheckFormat, "--format"),
            metavar="|".join(CheckFormat),
            autocompletion=complete_members(CheckFormat),
            help="Output format.",
            rich_help_panel=_OUTPUT,
        ),
    ] = CheckFormat.TABLE
    color: ColorOption = Color.AUTO
    debug: Debug = False

    @property
    def output(self) -> OutputOptions:
        """Options for writing a view; SARIF counts as JSON."""
        if self.format is CheckFormat.SARIF:
            return OutputOptions(Format.JSON, self.color, self.debug)
        return OutputOptions(Format(self.format.value), self.color, self.debug)


@dataclass(frozen=True, slots=True)
class DebugOptions:
    """Options of a command with a single output format."""

    debug: Debug = False


AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code", help="Allow a pipeline to import Python objects, named module:name."
    ),
]

FileArgument = Annotated[
    str | None, typer.Argument(metavar="[PIPELINE]", help="Pipeline file; - reads stdin.")
]
"""Same as --pipeline, for commands without other arguments."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The env and the chain of transforms."""

    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            metavar="ID",
            autocompletion=complete_env,
            help="Env id; `tdx list envs` lists them.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    env_kwargs: Annotated[
        str | None,
        typer.Option(
            "--env-kwargs",
            metavar="KWARGS",
            help="Arguments of the env: 'g=9.8' or '{\"g\": 9.8}'.",
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
            help='Add a stage to the chain: RewardSum or "CatFrames(4, dim=-1)". '
            "Can be repeated; the order matters.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            metavar="FILE",
            help="YAML pipeline file, instead of --env; - reads stdin. Stages from --t are added "
            "after its own.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    num_envs: Annotated[
        int | None,
        integer_option(
            *("--num-envs", 1, "Number of copies of the env."),
            maximum=MAX_ENVS,
            panel=_PIPELINE,
        ),
    ] = None
    from_pixels: Annotated[
        bool,
        typer.Option(
            "--from-pixels",
            help="Add the rendered frame as the observation `pixels`.",
            rich_help_panel=_PIPELINE,
        ),
    ] = False
    batching: Annotated[
        Batching | None,
        typer.Option(
            "--batching",
            parser=choice_parser(Batching),
            metavar="HOW",
            autocompletion=complete_members(Batching),
            help="How the copies run: vector (a batched env), serial (one after another) or "
            "parallel (one process each).",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Device of the tensors: cpu, cuda, cuda:1, mps.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    seed: Annotated[
        int | None,
        integer_option("--seed", 0, "Seed of the env.", panel=_PIPELINE),
    ] = None
    worker_timeout: Annotated[
        float | None,
        typer.Option(
            "--worker-timeout",
            metavar="SECONDS",
            parser=seconds_parser("--worker-timeout"),
            help="With --batching parallel: seconds to wait for a worker that does not respond; "
            "120 by default.",
            rich_help_panel=_PIPELINE,
        ),
    ] = None
    allow_code: Annotated[
        bool,
        typer.Option(
            "--allow-code",
            help="Allow a pipeline to import Python objects, named module:name.",
            rich_help_panel=_PIPELINE,
        ),
    ] = False


def as_arguments(options: PipelineOptions) -> list[str]:
    """Return the command-line arguments that give the same options.

    Each is one word, ``--name=value``, so that no value is mistaken for an option.

    Example:
        >>> as_arguments(PipelineOptions(env="Pendulum-v1", transforms=["RewardSum"], num_envs=2))
        ['--env=Pendulum-v1', '--t=RewardSum', '--num-envs=2']
    """
    hints = get_type_hints(PipelineOptions, include_extras=True)
    arguments = []
    for field in fields(options):
        name = option_name(hints[field.name])
        value = getattr(options, field.name)
        if value is True:
            arguments.append(name)
        elif value is not None and value is not False:
            values = value if isinstance(value, list) else [value]
            arguments += [f"{name}={v.value if isinstance(v, Enum) else v}" for v in values]
    return arguments


def expand_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Replace each parameter that is annotated with a dataclass of options by its fields."""
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
