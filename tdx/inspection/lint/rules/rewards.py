"""TDX42x: order and ranges of reward transforms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tdx.inspection.lint.context import LintContext
from tdx.inspection.lint.rule import Violation, change_arguments, move_stage, remove_stage, rule
from tdx.keys import format_key

if TYPE_CHECKING:
    from tdx.specs import TensorSpec


@rule(
    "TDX421",
    "rewards are clipped before they are scaled",
    "warning",
    why="""
    `RewardClipping` before `RewardScaling` clips the raw reward, and the scaling then changes
    the range: a reward clipped to [-1, 1] and scaled by 0.1 is within [-0.1, 0.1]. Large raw
    rewards are cut off before the scaling that was meant to bring them into range.

    Scale first, so that the range of `RewardClipping` is the final range.
    """,
    wrong="""--env Pendulum-v1 --t 'RewardClipping(-1.0, 1.0)' --t 'RewardScaling(0.0, 0.1)'""",
    right="""--env Pendulum-v1 --t 'RewardScaling(0.0, 0.1)' --t 'RewardClipping(-1.0, 1.0)'""",
)
def clipped_before_scaled(context: LintContext) -> Iterator[Violation]:
    """Find clippings followed by a scaling of the same reward."""
    for clip, scale, key in context.iter_pairs(["RewardClipping"], ["RewardScaling"]):
        message = f"{format_key(key)!r} is clipped before stage {scale.index} (RewardScaling)"
        fix = move_stage(clip.index, scale.index, clip.config, scale.config)
        yield Violation(f"{message} scales it", "scale first, then clip", clip.index, key, fix)


@rule(
    "TDX422",
    "return is summed from transformed rewards",
    "suggestion",
    why="""
    `RewardSum` sums the rewards that it reads. After a clipping, a binarization or a running
    normalization, `episode_reward` is the sum of the transformed rewards: useful to monitor
    what the learner receives, but not the return by which runs are compared.

    Move `RewardSum` before the stage that transforms the reward to sum the rewards of the env.
    """,
    wrong="""--env CartPole-v1 --t 'RewardClipping(-1.0, 1.0)' --t RewardSum""",
    right="""--env CartPole-v1 --t RewardSum --t 'RewardClipping(-1.0, 1.0)'""",
)
def return_of_transformed_rewards(context: LintContext) -> Iterator[Violation]:
    """Find sums after a transform that cannot be undone."""
    reported: set[int] = set()
    for change, total, key in context.iter_pairs(
        ["RewardClipping", "BinarizeReward", "VecNorm"], ["RewardSum"]
    ):
        if total.index not in reported and key in change.in_keys:
            reported.add(total.index)
            message = f"it sums {format_key(key)!r} after stage {change.index} ({change.name})"
            hint = f"move it before {change.name} to sum the rewards of the env"
            fix = move_stage(total.index, change.index, total.config, change.config)
            yield Violation(message, hint, total.index, key, fix)


@rule(
    "TDX423",
    "rewards are scaled before they are binarized",
    "warning",
    why="""
    `BinarizeReward` keeps only whether a reward is positive. A preceding scaling by a positive
    factor without an offset has no effect; it is left over, or was meant to come after.
    """,
    wrong="""--env CartPole-v1 --t 'RewardScaling(0.0, 0.1)' --t BinarizeReward""",
    right="""--env CartPole-v1 --t BinarizeReward""",
)
def scaled_before_binarized(context: LintContext) -> Iterator[Violation]:
    """Find scalings by a positive factor before a binarization."""
    for scale, _, key in context.iter_pairs(["RewardScaling"], ["BinarizeReward"]):
        loc, factor = scale.arguments.get("loc"), scale.arguments.get("scale")
        is_adjacent = context.stages[scale.index + 1].name == "BinarizeReward"
        if loc == 0 and isinstance(factor, int | float) and factor > 0 and is_adjacent:
            message = f"only the sign of {format_key(key)!r} is used, which scaling does not change"
            fix = remove_stage(scale.index, scale.config)
            yield Violation(message, "remove it", scale.index, key, fix)


@rule(
    "TDX424",
    "clipping has no effect",
    "suggestion",
    why="""
    The spec before this `RewardClipping` already declares a range inside its own, so it costs
    time in each step and changes nothing. The range may have been meant to be narrower.
    """,
    wrong="""--env CartPole-v1 --t BinarizeReward --t 'RewardClipping(-1.0, 1.0)'""",
    right="""--env CartPole-v1 --t BinarizeReward""",
)
def clipping_without_effect(context: LintContext) -> Iterator[Violation]:
    """Find clippings whose range contains the declared range."""
    for stage in context.stages_named("RewardClipping"):
        if stage.before is None or not stage.in_keys:
            continue
        specs = [stage.before.outputs.get(key) for key in stage.in_keys]
        if all(_is_inside(spec, stage.arguments) for spec in specs) and _has_bounds(
            stage.arguments
        ):
            message = "the input is already within its range"
            fix = remove_stage(stage.index, stage.config)
            yield Violation(message, "remove it", stage.index, stage.in_keys[0], fix)


@rule(
    "TDX425",
    "rewards are scaled before they are normalized",
    "warning",
    why="""
    `VecNorm` removes mean and standard deviation of its input, and with them the offset and
    factor of a preceding `RewardScaling`. Without `in_keys`, it normalizes `observation` and
    `reward`; often only the observation was meant.

    Remove one of the two, or restrict `VecNorm` to the observations.
    """,
    wrong="--env Pendulum-v1 --t 'RewardScaling(0.0, 0.1)' --t VecNorm",
    right="""--env Pendulum-v1 --t 'RewardScaling(0.0, 0.1)'
    --t 'VecNorm(in_keys=["observation"])'""",
)
def scaled_before_normalized(context: LintContext) -> Iterator[Violation]:
    """Find scalings that a running normalization undoes."""
    for scale, norm, key in context.iter_pairs(["RewardScaling"], ["VecNorm"]):
        others = tuple(each for each in norm.in_keys if each not in scale.out_keys)
        message = (
            f"stage {norm.index} (VecNorm) normalizes {format_key(key)!r}, which undoes the scaling"
        )
        fix = None
        if others and not norm.has_in_keys_argument and norm.in_keys == norm.out_keys:
            fix = change_arguments(norm.index, norm.config, in_keys=others)
        yield Violation(message, "remove one of the two", scale.index, key, fix)


def _has_bounds(arguments: Mapping[str, Any]) -> bool:
    return any(arguments.get(bound) is not None for bound in ("clamp_min", "clamp_max"))


def _is_inside(spec: TensorSpec | None, arguments: Mapping[str, Any]) -> bool:
    low, high = _bounds(spec)
    lowest, highest = arguments.get("clamp_min"), arguments.get("clamp_max")
    return (lowest is None or (low is not None and low >= lowest)) and (
        highest is None or (high is not None and high <= highest)
    )


def _bounds(spec: TensorSpec | None) -> tuple[float | None, float | None]:
    from tdx.specs import Binary, BoundedContinuous, BoundedDiscrete

    if isinstance(spec, Binary):
        return 0, 1
    if isinstance(spec, BoundedContinuous | BoundedDiscrete):
        return float(spec.low.min()), float(spec.high.max())
    return None, None
