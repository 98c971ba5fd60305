"""TDX46x: dtype casts and device transfers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.rule import (
    Fix,
    Violation,
    change_arguments,
    insert_stage,
    remove_stage,
    rule,
)
from tdx.keys import NestedKey, format_key
from tdx.pipeline.values import StageConfig

if TYPE_CHECKING:
    import torch

    from tdx.specs import TensorSpec

_CASTS = ("DTypeCastTransform", "DoubleToFloat")
_SHORT = ("torch.float16", "torch.bfloat16")


@rule(
    "TDX461",
    "reward is cast",
    "warning",
    why="""
    `DTypeCastTransform` without `in_keys` casts every key of the dtype, including the reward.
    As an integer, a reward loses its fraction; in half precision, small differences; in double
    precision, it no longer matches networks and losses in single precision.

    List the observations in `in_keys`. (Casting a reward from float64 to float32 is not
    reported.)
    """,
    wrong="--env Pendulum-v1 --t 'DTypeCastTransform(torch.float32, torch.float16)'",
    right="""--env Pendulum-v1
    --t 'DTypeCastTransform(torch.float32, torch.float16, in_keys=["observation"])'""",
)
def reward_cast(context: LintContext) -> Iterator[Violation]:
    """Find casts that lose precision of the reward, or include it by default."""
    for stage in context.stages_named(*_CASTS):
        if stage.before is None or stage.after is None:
            continue
        for key in stage.before.rewards:
            before = stage.before.outputs[key].dtype
            spec = stage.after.outputs.get(key)
            if key not in stage.in_keys or spec is None or before is None or spec.dtype is None:
                continue
            if before != spec.dtype and not _is_harmless(
                before, spec.dtype, stage.has_in_keys_argument
            ):
                cast = f"from {_dtype_name(before)} to {_dtype_name(spec.dtype)}"
                message = f"{format_key(key)!r} is cast {cast}"
                hint = "list the keys to cast in in_keys"
                yield Violation(message, hint, stage.index, key, _exclude_reward(stage, key))


@rule(
    "TDX462",
    "cast has no effect",
    "suggestion",
    why="""
    No key at this position has the dtype that the stage casts from, in either direction. It may
    be left over from an env in double precision.
    """,
    wrong="--env Pendulum-v1 --t DoubleToFloat --t RewardSum",
    right="--env Pendulum-v1 --t RewardSum",
)
def cast_without_effect(context: LintContext) -> Iterator[Violation]:
    """Find casts that change no spec."""
    for stage in context.stages_named(*_CASTS):
        if stage.before is None or stage.after is None or stage.in_keys != stage.out_keys:
            continue
        sides = (
            (stage.before.outputs, stage.after.outputs),
            (stage.before.inputs, stage.after.inputs),
        )
        if all(_dtypes(before) == _dtypes(after) for before, after in sides):
            fix = remove_stage(stage.index, stage.config)
            yield Violation("no key has the dtype that it casts", "remove it", stage.index, fix=fix)


@rule(
    "TDX463",
    "data is moved to a device and back",
    "warning",
    why="""
    Each transfer between devices copies data and synchronizes in each step. A chain that moves
    data to a device and back, or to the device that it is on, pays for it twice. Move the data
    once, where it is smallest, or place the env on the device: `env: {device: cuda}`.
    """,
    wrong="""--env Pendulum-v1 --t 'DeviceCastTransform("cuda")' --t RewardSum
    --t 'DeviceCastTransform("cpu")'""",
    right="""--env Pendulum-v1 --t RewardSum --t 'DeviceCastTransform("cuda")'""",
)
def device_and_back(context: LintContext) -> Iterator[Violation]:
    """Find transfers to a device that the data was on before."""
    visited = [context.pipeline.env.device or "cpu"]
    for stage in context.stages_named("DeviceCastTransform"):
        device = str(stage.arguments.get("device"))
        if stage.has_in_keys_argument:
            return
        if device == visited[-1]:
            fix = remove_stage(stage.index, stage.config)
            yield Violation(f"the data is already on {device}", "remove it", stage.index, fix=fix)
        elif device in visited:
            path = " → ".join([*visited, device])
            hint = "move once, after the stages that reduce the data"
            yield Violation(f"the data is moved {path}", hint, stage.index)
        visited.append(device)


@rule(
    "TDX464",
    "chain outputs double precision",
    "suggestion",
    why="""
    The env computes in double precision, and no stage casts. A policy in single precision fails
    on float64 because of the dtype, and stored steps take twice the memory.

    Put `DoubleToFloat` first, so that the later stages compute in single precision too.
    """,
    wrong="--env HalfCheetah-v5 --t RewardSum",
    right="--env HalfCheetah-v5 --t DoubleToFloat --t RewardSum",
)
def double_precision_output(context: LintContext) -> Iterator[Violation]:
    """Find observations and rewards that stay in double precision."""
    last, first = context.last, context.stages[0].before if context.stages else context.last
    if last is None or first is None:
        return
    env_keys = [key for key in first.outputs if _is_double(first.outputs[key])]
    doubles = [key for key in env_keys if key in last.outputs and _is_double(last.outputs[key])]
    if doubles and env_keys == doubles:
        names = ", ".join(repr(format_key(key)) for key in doubles)
        fix = insert_stage(0, StageConfig("DoubleToFloat"))
        message = f"{names} {'is' if len(doubles) == 1 else 'are'} in double precision"
        yield Violation(message, "put DoubleToFloat first", None, doubles[0], fix)


def _is_double(spec: TensorSpec) -> bool:
    return str(spec.dtype) == "torch.float64"


def _is_harmless(before: torch.dtype, after: torch.dtype, is_explicit: bool) -> bool:
    lossless = after.is_floating_point and str(after) not in _SHORT
    return lossless and (is_explicit or str(before) == "torch.float64")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _exclude_reward(stage: LintStage, reward: NestedKey) -> Fix | None:
    """Return a fix that casts the same keys except the reward."""
    others = tuple(key for key in stage.in_keys if key != reward)
    if not others or stage.in_keys != stage.out_keys:
        return None
    arguments = {"in_keys": others}
    if stage.in_keys_inv and not stage.arguments.get("in_keys_inv"):
        arguments["in_keys_inv"] = tuple(stage.in_keys_inv)
    return change_arguments(stage.index, stage.config, **arguments)


def _dtypes(specs: Mapping[NestedKey, TensorSpec]) -> dict[NestedKey, object]:
    return {key: spec.dtype for key, spec in specs.items()}
