"""Settings of a sweep: ``num_envs=1,8,64``, ``device=cpu,cuda``, ``Resize.w=42,84``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

from tdx.foundation.errors import (
    ArgumentError,
    PipelineError,
    TdxError,
    UnknownNameError,
    did_you_mean,
)
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.pipeline import Dtype, Pipeline, StageConfig, format_value, load_catalog, parse_value
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.grammar import split_outside_brackets
from tdx.pipeline.model import BATCHINGS
from tdx.pipeline.values import DTYPES, FileArguments, Value
from tdx.profiling.result import MODES

SweepPoint = Mapping[str, Value]


def format_setting(value: Value) -> str:
    """Format a value as in the text of a sweep."""
    if isinstance(value, Dtype):
        return value.name
    return value if isinstance(value, str) else format_value(value)


def format_settings(values: Sequence[Value]) -> list[str]:
    """Format values as in the text of a sweep."""
    return list(map(format_setting, values))


@dataclass(frozen=True, slots=True)
class SweepAxis(Result):
    """One setting and its values.

    Args:
        name: Name of the setting.
        values: Values in order.
    """

    json_entries: ClassVar[Entries] = (
        "name",
        Entry("values", convert=format_settings, type=list[str]),
    )

    name: str
    values: tuple[Value, ...]

    @property
    def is_numeric(self) -> bool:
        """True if all values are numbers."""
        return all(isinstance(value, (int, float)) and value is not True for value in self.values)


def parse_sweep(texts: Sequence[str], pipeline: Pipeline) -> tuple[SweepAxis, ...]:
    """Parse the axes of a sweep.

    Args:
        texts: Each ``NAME=VALUE,VALUE,...``, or several of them separated by spaces. A name is
            ``num_envs``, ``device``, ``dtype``, ``batching``, ``mode``, ``steps``, ``threads``, or
            the argument of a stage by class name or index, ``Resize.w`` or ``2.w``.
        pipeline: Pipeline with the stages.

    Raises:
        UnknownNameError: A setting, stage or argument is unknown.
        ArgumentError: A value is invalid, or a setting occurs twice.

    Example:
        >>> parse_sweep(["num_envs=1,8 device=cpu"], Pipeline.of("Pendulum-v1"))
        (SweepAxis(name='num_envs', values=(1, 8)), SweepAxis(name='device', values=('cpu',)))
    """
    axes = [
        _parse_axis(part, pipeline)
        for text in texts
        for part in split_outside_brackets(text, str.isspace)
        if part
    ]
    names = [axis.name for axis in axes]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise ArgumentError(f"{duplicate} is swept twice", hint="list all its values at once")
    return tuple(axes)


def _parse_axis(text: str, pipeline: Pipeline) -> SweepAxis:
    name, sign, given = text.partition("=")
    if not sign or not given:
        raise ArgumentError(
            f"invalid sweep setting {text!r}", hint="write for example num_envs=1,8,64"
        )
    read = _PARSERS.get(name)
    if read is None:
        stage, dot, argument = name.rpartition(".")
        known = [*_PARSERS, *dict.fromkeys(stage.name for stage in pipeline.transforms)]
        concerned = [pipeline.transforms[place] for place in _find_stages(stage, pipeline)]
        if not dot or not concerned:
            hint = did_you_mean(stage or name, known, f"settings: {', '.join(known)}")
            raise UnknownNameError(f"unknown sweep setting {name!r}", hint=hint)
        info = load_catalog().find(concerned[0].name)
        if info is not None and info.parameter(argument) is None:
            names = [parameter.name for parameter in info.parameters]
            hint = did_you_mean(argument, names, f"it takes {', '.join(names) or 'none'}")
            raise UnknownNameError(f"{info.name} has no argument {argument}", hint=hint)
        read = _parse_argument
    parts = map(str.strip, split_outside_brackets(given, ",".__eq__))
    values = tuple(read(name, part) for part in parts if part)
    if len(set(map(format_setting, values))) < len(values):
        raise ArgumentError(f"{text!r} has the same value twice", hint="list each value once")
    return SweepAxis(name, values)


def _parse_positive(name: str, text: str) -> Value:
    if not text.replace("_", "").isdecimal() or not int(text):
        raise ArgumentError(
            f"{name} takes whole numbers of at least 1, got {text!r}",
            hint="write values such as 1,2,4",
        )
    return int(text)


def _make_choice_parser(known: Sequence[str]) -> Callable[[str, str], Value]:
    def read(name: str, text: str) -> Value:
        if text not in known:
            hint = did_you_mean(text, known, f"use one of {', '.join(known)}")
            raise UnknownNameError(f"unknown {name} {text!r}", hint=hint)
        return text

    return read


def _parse_dtype(name: str, text: str) -> Value:
    dtype = Dtype.named(text)
    if dtype is None:
        hint = did_you_mean(text, DTYPES, "for example float32")
        raise UnknownNameError(f"unknown dtype {text!r}", hint=hint)
    return dtype


def _parse_argument(name: str, text: str) -> Value:
    with suppress(PipelineError):
        return parse_value(text)
    return text


_PARSERS: dict[str, Callable[[str, str], Value]] = {
    "num_envs": _parse_positive,
    "device": lambda name, text: text,
    "dtype": _parse_dtype,
    "batching": _make_choice_parser(BATCHINGS),
    "mode": _make_choice_parser(MODES),
    "steps": _parse_positive,
    "threads": _parse_positive,
}


def _find_stages(stage: str, pipeline: Pipeline) -> list[int]:
    """Return the indices of the stages with a class name or an index as text."""
    if stage.isdecimal():
        return [int(stage)] if int(stage) < len(pipeline.transforms) else []
    return [at for at, config in enumerate(pipeline.transforms) if config.name == stage]


def list_points(axes: Sequence[SweepAxis]) -> list[dict[str, Value]]:
    """List every combination of values; the last axis varies fastest."""
    names = [axis.name for axis in axes]
    return [
        dict(zip(names, values, strict=True)) for values in product(*(axis.values for axis in axes))
    ]


def apply_point(pipeline: Pipeline, point: SweepPoint) -> Pipeline:
    """Return the pipeline with the settings of a point that apply to it.

    Raises:
        TdxError: An argument cannot be named.
    """
    of_env = {name: point[name] for name in ("num_envs", "device", "batching") if name in point}
    changed = replace(pipeline, env=replace(pipeline.env, **of_env))  # type: ignore[arg-type]
    for name, value in point.items():
        stage, dot, argument = name.rpartition(".")
        for place in _find_stages(stage, changed) if dot else ():
            changed = _with_argument(changed, place, argument, value)
    dtype = point.get("dtype")
    return _with_dtype(changed, dtype) if isinstance(dtype, Dtype) else changed


def _with_argument(pipeline: Pipeline, place: int, name: str, value: Value) -> Pipeline:
    stages = list(pipeline.transforms)
    full = name_arguments(stages[place])
    if full.args:
        raise TdxError(f"the arguments of {full.name} cannot be named", hint="name them yourself")
    stages[place] = replace(
        full, kwargs=FileArguments.like(full.kwargs, {**full.kwargs, name: value})
    )
    return pipeline.with_stages(*stages)


def _with_dtype(pipeline: Pipeline, dtype: Dtype) -> Pipeline:
    """Use a float dtype: in the stage that creates floats, or in a cast before the first stage."""
    for place, stage in enumerate(pipeline.transforms):
        info = load_catalog().find(stage.name)
        if info is not None and info.parameter("dtype") is not None:
            return _with_argument(pipeline, place, "dtype", dtype)
    if dtype.name == "float32":
        return pipeline
    cast = StageConfig("DTypeCastTransform", (Dtype("float32"), dtype))
    return pipeline.with_stages(cast, *pipeline.transforms)
