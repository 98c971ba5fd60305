"""Casts of dtypes and moves between devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.fix import Fix, changed, inserted, removed
from tdx.inspection.lint.rule import Found, rule
from tdx.keys import NestedKey, format_key
from tdx.pipeline.values import StageConfig

if TYPE_CHECKING:
    import torch

    from tdx.specs import TensorSpec

_CASTS = ("DTypeCastTransform", "DoubleToFloat")
_SHORT = ("torch.float16", "torch.bfloat16")


@rule(
    "TDX461",
    "a cast touches the reward",
    "warning",
    why="""
    `DTypeCastTransform` without `in_keys` casts every entry of the dtype, the reward too. As an
    integer a reward loses its fraction, in half precision its small differences, and in double it
    no longer fits networks and losses in single precision.

    Name the observations in `in_keys`. (Doubles that become single floats are let through.)
    """,
    wrong="--env Pendulum-v1 --t 'DTypeCastTransform(torch.float32, torch.float16)'",
    right="""--env Pendulum-v1
    --t 'DTypeCastTransform(torch.float32, torch.float16, in_keys=["observation"])'""",
)
def cast_of_reward(context: LintContext) -> Iterator[Found]:
    """Casts by which the reward loses, or is met by chance."""
    for stage in context.named(*_CASTS):
        if stage.before is None or stage.after is None:
            continue
        for key in stage.before.rewards:
            before = stage.before.output[key].dtype
            spec = stage.after.output.get(key)
            if key not in stage.in_keys or spec is None or before is None or spec.dtype is None:
                continue
            if before != spec.dtype and not _harmless(before, spec.dtype, stage.names_its_keys):
                message = (
                    f"it casts {format_key(key)!r} from {_told(before)} to {_told(spec.dtype)}"
                )
                hint = "name what is to be cast in in_keys"
                yield Found(message, hint, stage.index, key, _without(stage, key))


@rule(
    "TDX462",
    "a cast with nothing to cast",
    "advice",
    why="""
    No entry at this place has the dtype that the stage casts from, on the way out or on the way
    in. It may be left over from an env in double precision.
    """,
    wrong="--env Pendulum-v1 --t DoubleToFloat --t RewardSum",
    right="--env Pendulum-v1 --t RewardSum",
)
def nothing_to_cast(context: LintContext) -> Iterator[Found]:
    """Casts that change no spec."""
    for stage in context.named(*_CASTS):
        if stage.before is None or stage.after is None or stage.in_keys != stage.out_keys:
            continue
        sides = (
            (stage.before.output, stage.after.output),
            (stage.before.given, stage.after.given),
        )
        if all(_dtypes(before) == _dtypes(after) for before, after in sides):
            fix = removed(stage.index, stage.config)
            yield Found(
                "nothing here has the dtype that it casts", "remove it", stage.index, fix=fix
            )


@rule(
    "TDX463",
    "data goes to a device and back",
    "warning",
    why="""
    Each move between devices is a copy and a wait in every step. A chain that moves its data to a
    device and later back, or to a device on which it is already, pays for it twice. Move once,
    where the data is smallest, or let the env have the device: `env: {device: cuda}`.
    """,
    wrong="""--env Pendulum-v1 --t 'DeviceCastTransform("cuda")' --t RewardSum
    --t 'DeviceCastTransform("cpu")'""",
    right="""--env Pendulum-v1 --t RewardSum --t 'DeviceCastTransform("cuda")'""",
)
def device_and_back(context: LintContext) -> Iterator[Found]:
    """A device that has been left before."""
    visited = [context.pipeline.env.device or "cpu"]
    for stage in context.named("DeviceCastTransform"):
        device = str(stage.arguments.get("device"))
        if stage.names_its_keys:
            return
        if device == visited[-1]:
            fix = removed(stage.index, stage.config)
            yield Found(f"the data is on {device} already", "remove it", stage.index, fix=fix)
        elif device in visited:
            way = " → ".join([*visited, device])
            hint = "move once, behind the stages that make the data small"
            yield Found(f"the data goes {way}", hint, stage.index)
        visited.append(device)


@rule(
    "TDX464",
    "doubles leave the chain",
    "advice",
    why="""
    The env computes in double precision and nothing casts. A policy in single precision fails on
    doubles with a mismatch of dtypes, and stored steps take twice the memory.

    Put `DoubleToFloat` first, so that the stages behind it work on floats too.
    """,
    wrong="--env HalfCheetah-v5 --t RewardSum",
    right="--env HalfCheetah-v5 --t DoubleToFloat --t RewardSum",
)
def doubles_leave(context: LintContext) -> Iterator[Found]:
    """Observations and rewards that are doubles at the end, as the env made them."""
    last, first = context.last, context.stages[0].before if context.stages else context.last
    if last is None or first is None:
        return
    own = [key for key in first.output if _is_double(first.output[key])]
    left = [key for key in own if key in last.output and _is_double(last.output[key])]
    if left and own == left:
        names = ", ".join(repr(format_key(key)) for key in left)
        fix = inserted(0, StageConfig("DoubleToFloat"))
        message = f"{names} {'is' if len(left) == 1 else 'are'} in double precision"
        yield Found(message, "put DoubleToFloat first", None, left[0], fix)


def _is_double(spec: TensorSpec) -> bool:
    return str(spec.dtype) == "torch.float64"


def _harmless(before: torch.dtype, after: torch.dtype, meant: bool) -> bool:
    lossless = after.is_floating_point and str(after) not in _SHORT
    return lossless and (meant or str(before) == "torch.float64")


def _told(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _without(stage: LintStage, reward: NestedKey) -> Fix | None:
    """The cast of all that it casts but the reward."""
    others = tuple(key for key in stage.in_keys if key != reward)
    if not others or stage.in_keys != stage.out_keys:
        return None
    arguments = {"in_keys": others}
    if stage.in_keys_inv and not stage.arguments.get("in_keys_inv"):
        arguments["in_keys_inv"] = tuple(stage.in_keys_inv)
    return changed(stage.index, stage.config, **arguments)


def _dtypes(specs: Mapping[NestedKey, TensorSpec]) -> dict[NestedKey, object]:
    return {key: spec.dtype for key, spec in specs.items()}
