"""Measure a pipeline with many settings, and fit how each cost grows with them.

Settings are written ``num_envs=1,8,64``, ``device=cpu,cuda`` or ``Resize.w=42,84``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch

from tdx.core.envs import EnvBase
from tdx.core.meter import UNATTRIBUTED, Lane
from tdx.core.planned.columns import step_bytes
from tdx.foundation.errors import (
    ArgumentError,
    DeviceError,
    PipelineError,
    TdxError,
    UnknownNameError,
    did_you_mean,
)
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.text import format_bytes
from tdx.pipeline import Dtype, Pipeline, StageConfig, format_value, load_catalog, parse_value
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.envs import check_device
from tdx.pipeline.grammar import split_outside_brackets
from tdx.pipeline.model import BATCHINGS
from tdx.pipeline.values import DTYPES, FileArguments, Value
from tdx.profiling.compare import TOTAL_KEY
from tdx.profiling.machine import (
    STEP_COPIES,
    find_free_memory,
    is_out_of_memory,
    release_memory,
)
from tdx.profiling.plain import MODES
from tdx.profiling.result import Mode, Profile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.saved import ProfileReport, profile_to_json
from tdx.stacks.building import build_env

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
    """Parse the axes of a sweep, ``NAME=VALUE,VALUE,...``; spaces separate several of a text.

    A name is ``num_envs``, ``device``, ``dtype``, ``batching``, ``mode``, ``steps``, ``threads``,
    or the argument of a stage by class name or index, ``Resize.w`` or ``2.w``.

    Raises:
        UnknownNameError: A setting, stage or argument is unknown.
        ArgumentError: A value is invalid, or a setting occurs twice.
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
    """Return the pipeline with the settings of a point that apply to it."""
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


@dataclass(frozen=True)
class SweepCell(Result):
    """One combination of settings.

    Args:
        point: Settings by name.
        profile: Its profile. ``None``: it could not be measured.
        problem: Why it was not measured completely. ``None``: no problem.
    """

    json_entries: ClassVar[Entries] = (
        Entry("point", "plain_point"),
        "problem",
        Entry("profile", convert=profile_to_json, type=ProfileReport | None),
    )

    point: SweepPoint
    profile: Profile | None
    problem: str | None = None

    @property
    def plain_point(self) -> dict[str, Any]:
        """Settings as plain data; values that JSON does not have are text."""
        return {
            name: value if isinstance(value, bool | int | float | str) else format_setting(value)
            for name, value in self.point.items()
        }

    @property
    def label(self) -> str:
        """Settings as text, ``num_envs=8 device=cpu``."""
        return " ".join(f"{name}={format_setting(value)}" for name, value in self.point.items())


@dataclass(frozen=True)
class SweepResult:
    """Measurements of all combinations of settings."""

    axes: tuple[SweepAxis, ...]
    cells: tuple[SweepCell, ...]
    interrupted: bool = False


def run_sweep(
    pipeline: Pipeline,
    axes: Sequence[SweepAxis],
    modes: Sequence[Mode] = ("planned",),
    plan: ProfilePlan | None = None,
    *,
    allow_code: bool = False,
    policy_of: Callable[[EnvBase], Any] | None = None,
) -> SweepResult:
    """Measure a pipeline with each combination of settings.

    A cell whose device does not exist, that does not fit into memory or that raises has a problem;
    the sweep continues. With many envs, memory is estimated from the specs beforehand.

    Args:
        pipeline: The pipeline.
        axes: Settings, from :func:`~tdx.profiling.sweep.parse_sweep`.
        modes: Modes of each cell, unless ``mode`` is swept.
        plan: Settings of each profile.
        allow_code: Allow importing Python objects that the pipeline names.
        policy_of: Creates the policy for the env of a cell. ``None``: the policy of the plan.
    """
    cells: list[SweepCell] = []
    interrupted = False
    try:
        for point in list_points(axes):
            cell = _measure_point(
                pipeline, point, modes, plan or ProfilePlan(), allow_code, policy_of
            )
            cells.append(cell)
            interrupted = cell.problem == "interrupted"
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    return SweepResult(tuple(axes), tuple(cells), interrupted)


def _measure_point(
    pipeline: Pipeline,
    point: SweepPoint,
    modes: Sequence[Mode],
    plan: ProfilePlan,
    allow_code: bool,
    policy_of: Callable[[EnvBase], Any] | None,
) -> SweepCell:
    try:
        changed = apply_point(pipeline, point)
        _check_memory(changed, allow_code)
        env = build_env(changed, allow_code)
        try:
            changes: dict[str, Any] = {
                name: point[name] for name in ("steps", "threads") if name in point
            }
            if policy_of is not None:
                changes["policy"] = policy_of(env)
            modes = [mode for mode in MODES if mode == point.get("mode")] or modes
            profile = profile_env(env, modes, replace(plan, **changes))
        finally:
            env.close()
    except TdxError as error:
        return SweepCell(point, None, str(error))
    except Exception as error:
        if not (isinstance(error, MemoryError) or is_out_of_memory(str(error))):
            raise
        return SweepCell(point, None, "does not fit into memory")
    finally:
        release_memory()
    problem = next((mode.error for mode in profile.modes if mode.error is not None), None)
    if problem is not None and is_out_of_memory(problem):
        problem = "does not fit into memory"
    return SweepCell(point, profile, problem)


def _check_memory(pipeline: Pipeline, allow_code: bool) -> None:
    """Refuse a cell that cannot fit into memory, or whose device does not exist."""
    if pipeline.env.device is not None:
        check_device(pipeline.env.device)
    many = pipeline.env.num_envs
    device = torch.device(pipeline.env.device or "cpu")
    if many is None or many < 2:
        return
    few = replace(pipeline, env=replace(pipeline.env, num_envs=1, device=None))
    probe = build_env(few, allow_code)
    try:
        needed = step_bytes(probe) * many * STEP_COPIES
    finally:
        probe.close()
    free = find_free_memory(device)
    if free is not None and needed > free:
        raise DeviceError(
            f"does not fit into memory: {many} envs need {format_bytes(needed)} for a step, "
            f"{format_bytes(free)} are free",
            hint="take fewer envs",
        )


CostKey = tuple[str, Lane]


def _format_point(point: SweepPoint) -> dict[str, str]:
    return {name: format_setting(value) for name, value in point.items()}


@dataclass(frozen=True, slots=True)
class CostGrowth(Result):
    """Growth of the cost of one part with one setting, all others fixed.

    Args:
        axis: Name of the setting.
        others: The other settings.
        mode: Mode of the rollouts.
        label: Label of the part; ``step`` for the whole step.
        lane: Lane of the part.
        values: Measured values of the setting.
        step_us: Cost per step of all envs, for each value.
        slope: Exponent ``a`` of the best fit ``value ** a``: 0 for a constant cost, 1 for a
            proportional one. ``None``: fewer than two costs.
    """

    json_entries: ClassVar[Entries] = (
        *("axis", Entry("others", convert=_format_point, type=dict[str, str]), "mode"),
        *("label", "lane", "values", "step_us", "slope"),
    )

    axis: str
    others: SweepPoint
    mode: Mode
    label: str
    lane: Lane
    values: tuple[float, ...]
    step_us: tuple[float, ...]
    slope: float | None


def fit_growth(sweep: SweepResult) -> tuple[CostGrowth, ...]:
    """Fit the growth of each part's cost along each numeric axis."""
    return tuple(growth for axis in sweep.axes for growth in _fit_axis(axis, sweep.cells))


def fit_exponent(values: Sequence[float], costs: Sequence[float]) -> float | None:
    """Fit the exponent of a power law by least squares on logarithms; zero costs are ignored."""
    pairs = [(x, y) for x, y in zip(values, costs, strict=True) if x > 0 and y > 0]
    if len({x for x, _ in pairs}) < 2:
        return None
    logs = np.log(np.array(pairs))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def _fit_axis(axis: SweepAxis, cells: Sequence[SweepCell]) -> Iterator[CostGrowth]:
    if not axis.is_numeric or len(axis.values) < 2:
        return
    groups: dict[tuple[tuple[str, str], ...], list[SweepCell]] = {}
    for cell in cells:
        key = tuple(
            (name, format_setting(at)) for name, at in cell.point.items() if name != axis.name
        )
        groups.setdefault(key, []).append(cell)
    for group in groups.values():
        others = {name: at for name, at in group[0].point.items() if name != axis.name}
        # Cost for each value of the setting, by mode and part.
        costs: dict[Mode, dict[CostKey, list[tuple[float, float]]]] = {}
        for cell in group:
            value = cell.point[axis.name]
            assert isinstance(value, (int, float))
            for mode in () if cell.profile is None else cell.profile.modes:
                if mode.error is not None:
                    continue
                table = costs.setdefault(mode.mode, {})
                table.setdefault(TOTAL_KEY, []).append((float(value), mode.step_us))
                counts: Counter[CostKey] = Counter()
                for row in mode.rows:
                    part = row.part
                    if part.name == UNATTRIBUTED:
                        continue
                    # Stages without their index, which may differ.
                    name = part.name if part.work == "stage" else part.label
                    counts[name, part.lane] += 1
                    number = counts[name, part.lane]
                    label = name if number == 1 else f"{name} ({number})"
                    cost = (float(value), mode.step_share_us(row))
                    table.setdefault((label, part.lane), []).append(cost)
        for name_of_mode, table in costs.items():
            for (label, lane), points in table.items():
                values, step_us = (tuple(column) for column in zip(*points, strict=True))
                slope = fit_exponent(values, step_us)
                yield CostGrowth(
                    axis.name, others, name_of_mode, label, lane, values, step_us, slope
                )
