"""The order and the ranges of what is done to rewards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tdx.inspection.lint.context import LintContext
from tdx.inspection.lint.fix import changed, moved, removed
from tdx.inspection.lint.rule import Found, rule
from tdx.keys import format_key

if TYPE_CHECKING:
    from tdx.specs import TensorSpec


@rule(
    "TDX421",
    "rewards are clipped before they are scaled",
    "warning",
    why="""
    `RewardClipping` in front of `RewardScaling` clips the raw reward, and the scaling then moves
    the range: a reward clipped into -1 … 1 and scaled by 0.1 lies in -0.1 … 0.1. Raw rewards that
    were large have been cut off before the scaling that was to make them fit.

    Scale first, so that the range given to the clipping is the range that comes out.
    """,
    wrong="""--env Pendulum-v1 --t 'RewardClipping(-1.0, 1.0)' --t 'RewardScaling(0.0, 0.1)'""",
    right="""--env Pendulum-v1 --t 'RewardScaling(0.0, 0.1)' --t 'RewardClipping(-1.0, 1.0)'""",
)
def clipped_before_scaled(context: LintContext) -> Iterator[Found]:
    """A clipping with a scaling of the same reward behind it."""
    for clip, scale, key in context.pairs(["RewardClipping"], ["RewardScaling"]):
        message = f"it clips {format_key(key)!r} before stage {scale.index} (RewardScaling)"
        fix = moved(clip.index, scale.index, clip.config, scale.config)
        yield Found(f"{message} scales it", "scale first, then clip", clip.index, key, fix)


@rule(
    "TDX422",
    "the return is summed from changed rewards",
    "advice",
    why="""
    `RewardSum` adds up what it reads. Behind a clipping, a binarisation or a running normalisation
    its `episode_reward` is the sum of the changed rewards: good for looking at what the learner
    sees, but not the return by which runs are compared.

    Put `RewardSum` in front of the stage that changes the reward, and its sum is the env's return.
    """,
    wrong="""--env CartPole-v1 --t 'RewardClipping(-1.0, 1.0)' --t RewardSum""",
    right="""--env CartPole-v1 --t RewardSum --t 'RewardClipping(-1.0, 1.0)'""",
)
def changed_rewards_summed(context: LintContext) -> Iterator[Found]:
    """A sum behind what cannot be undone."""
    seen: set[int] = set()
    for change, total, key in context.pairs(
        ["RewardClipping", "BinarizeReward", "VecNorm"], ["RewardSum"]
    ):
        if total.index not in seen and key in change.in_keys:
            seen.add(total.index)
            message = f"it sums {format_key(key)!r} behind stage {change.index} ({change.name})"
            hint = f"put it in front of {change.name} for the env's own return"
            fix = moved(total.index, change.index, total.config, change.config)
            yield Found(message, hint, total.index, key, fix)


@rule(
    "TDX423",
    "rewards are scaled before only their sign is kept",
    "warning",
    why="""
    `BinarizeReward` keeps whether a reward is positive and nothing else. A positive factor without
    an offset in front of it changes no result; it is left over, or was meant to come behind.
    """,
    wrong="""--env CartPole-v1 --t 'RewardScaling(0.0, 0.1)' --t BinarizeReward""",
    right="""--env CartPole-v1 --t BinarizeReward""",
)
def scaled_before_binarized(context: LintContext) -> Iterator[Found]:
    """A positive factor in front of a sign."""
    for scale, _, key in context.pairs(["RewardScaling"], ["BinarizeReward"]):
        loc, factor = scale.arguments.get("loc"), scale.arguments.get("scale")
        between = context.stages[scale.index + 1].name == "BinarizeReward"
        if loc == 0 and isinstance(factor, int | float) and factor > 0 and between:
            message = f"only the sign of {format_key(key)!r} is kept, which this does not change"
            fix = removed(scale.index, scale.config)
            yield Found(message, "remove it", scale.index, key, fix)


@rule(
    "TDX424",
    "a clipping that never clips",
    "advice",
    why="""
    The spec in front of this `RewardClipping` already promises a range that lies inside its own,
    so it costs a step's time and changes nothing. Perhaps the range was meant to be narrower.
    """,
    wrong="""--env CartPole-v1 --t BinarizeReward --t 'RewardClipping(-1.0, 1.0)'""",
    right="""--env CartPole-v1 --t BinarizeReward""",
)
def clipping_that_never_clips(context: LintContext) -> Iterator[Found]:
    """Clippings whose range holds what is there."""
    for stage in context.named("RewardClipping"):
        if stage.before is None or not stage.in_keys:
            continue
        specs = [stage.before.output.get(key) for key in stage.in_keys]
        if all(_inside(spec, stage.arguments) for spec in specs) and _ends(stage.arguments):
            message = "its input lies inside its range already"
            fix = removed(stage.index, stage.config)
            yield Found(message, "remove it", stage.index, stage.in_keys[0], fix)


@rule(
    "TDX425",
    "rewards are scaled before they are normalised",
    "warning",
    why="""
    `VecNorm` takes out the mean and the deviation of what it reads, and with them whatever offset
    and factor a `RewardScaling` in front of it has put in. Without `in_keys` it reads `observation`
    and `reward`; often only the observation was meant.

    Keep one of the two, or give `VecNorm` the observations only.
    """,
    wrong="--env Pendulum-v1 --t 'RewardScaling(0.0, 0.1)' --t VecNorm",
    right="""--env Pendulum-v1 --t 'RewardScaling(0.0, 0.1)'
    --t 'VecNorm(in_keys=["observation"])'""",
)
def scaled_before_normalised(context: LintContext) -> Iterator[Found]:
    """A scaling whose effect a running normalisation takes out."""
    for scale, norm, key in context.pairs(["RewardScaling"], ["VecNorm"]):
        others = tuple(each for each in norm.in_keys if each not in scale.out_keys)
        message = f"stage {norm.index} (VecNorm) normalises {format_key(key)!r}, which undoes it"
        fix = None
        if others and not norm.names_its_keys and norm.in_keys == norm.out_keys:
            fix = changed(norm.index, norm.config, in_keys=others)
        yield Found(message, "keep one of the two", scale.index, key, fix)


def _ends(arguments: Mapping[str, Any]) -> bool:
    return any(arguments.get(end) is not None for end in ("clamp_min", "clamp_max"))


def _inside(spec: TensorSpec | None, arguments: Mapping[str, Any]) -> bool:
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
