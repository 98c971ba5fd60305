"""TDX42x and TDX47x: order and ranges of reward and action transforms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.rule import Violation, change_arguments, move_stage, remove_stage, rule

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
    wrong="""Pendulum-v1 -t 'RewardClipping(-1.0, 1.0)' -t 'RewardScaling(0.0, 0.1)'""",
    right="""Pendulum-v1 -t 'RewardScaling(0.0, 0.1)' -t 'RewardClipping(-1.0, 1.0)'""",
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
    wrong="""CartPole-v1 -t 'RewardClipping(-1.0, 1.0)' -t RewardSum""",
    right="""CartPole-v1 -t RewardSum -t 'RewardClipping(-1.0, 1.0)'""",
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
    wrong="""CartPole-v1 -t 'RewardScaling(0.0, 0.1)' -t BinarizeReward""",
    right="""CartPole-v1 -t BinarizeReward""",
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
    wrong="""CartPole-v1 -t BinarizeReward -t 'RewardClipping(-1.0, 1.0)'""",
    right="""CartPole-v1 -t BinarizeReward""",
)
def clipping_without_effect(context: LintContext) -> Iterator[Violation]:
    """Find clippings whose range contains the declared range."""
    for stage in context.stages_named("RewardClipping"):
        if stage.before is None or not stage.in_keys:
            continue
        specs = [stage.before.outputs.get(key) for key in stage.in_keys]
        bounds = [stage.arguments.get(name) for name in ("clamp_min", "clamp_max")]
        is_inside = all(_is_inside(spec, stage.arguments) for spec in specs)
        if is_inside and bounds != [None, None]:
            message = "the input is already within its range"
            fix = remove_stage(stage.index, stage.config, safe=True)
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
    wrong="Pendulum-v1 -t 'RewardScaling(0.0, 0.1)' -t VecNorm",
    right="""Pendulum-v1 -t 'RewardScaling(0.0, 0.1)'
    -t 'VecNorm(in_keys=["observation"])'""",
)
def scaled_before_normalized(context: LintContext) -> Iterator[Violation]:
    """Find scalings that a running normalization undoes."""
    for scale, norm, key in context.iter_pairs(["RewardScaling"], ["VecNorm"]):
        others = tuple(other for other in norm.in_keys if other not in scale.out_keys)
        message = (
            f"stage {norm.index} (VecNorm) normalizes {format_key(key)!r}, which undoes the scaling"
        )
        fix = None
        if others and not norm.has_in_keys_argument and norm.in_keys == norm.out_keys:
            fix = change_arguments(norm.index, norm.config, in_keys=others)
        yield Violation(message, "remove one of the two", scale.index, key, fix)


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


_UNBOUNDED = '''
from tdx import Bounded, GymEnv, Unbounded

def unbounded():
    """Make a Pendulum with unbounded torque."""
    env = GymEnv("Pendulum-v1")
    env.action_spec = Unbounded(shape=(1,))
    return env

def bounded():
    """Make a Pendulum with bounded torque."""
    env = GymEnv("Pendulum-v1")
    env.action_spec = Bounded(-2.0, 2.0, shape=(1,))
    return env
'''


@rule(
    "TDX471",
    "ActionDiscretizer requires bounds",
    "error",
    why="""
    `ActionDiscretizer` divides the range of a continuous action into intervals, which requires
    finite bounds.

    Set the bounds of the env's action, or put a stage with `loc` and `scale` (`ActionScaling`)
    that yields a finite range between the env and the discretizer.
    """,
    wrong="my_code:unbounded -t 'ActionDiscretizer(5)'",
    right="my_code:bounded -t 'ActionDiscretizer(5)'",
    python=_UNBOUNDED,
    replaces=True,
)
def discretizer_without_bounds(context: LintContext) -> Iterator[Violation]:
    """Find discretizers of unbounded actions."""
    from tdx.specs import BoundedContinuous

    for stage in context.stages_named("ActionDiscretizer"):
        key = normalize_key(stage.arguments.get("action_key", "action"))
        spec = None if stage.before is None else stage.before.inputs.get(key)
        if spec is None or spec.dtype is None or not spec.dtype.is_floating_point:
            continue
        is_bounded = isinstance(spec, BoundedContinuous) and bool(
            spec.low.isfinite().all() & spec.high.isfinite().all()
        )
        if not is_bounded:
            message = f"{format_key(key)!r} has no finite bounds"
            yield Violation(message, "set bounds for the action", stage.index, key)


@rule(
    "TDX472",
    "discrete action is scaled",
    "error",
    why="""
    `ActionScaling` and `ActionDiscretizer` map real numbers. A discrete action, such as left
    and right in CartPole, cannot be scaled or divided into intervals.
    """,
    wrong="CartPole-v1 -t ActionScaling",
    right="CartPole-v1",
    replaces=True,
)
def discrete_action_scaled(context: LintContext) -> Iterator[Violation]:
    """Find scalings of discrete actions of the env."""
    for stage in context.stages_named("ActionScaling", "ActionDiscretizer"):
        if stage.before is None or _discretizer_before(context, stage) is not None:
            continue
        for key in stage.before.actions:
            spec = stage.before.inputs[key]
            is_mapped = not stage.in_keys_inv or key in stage.in_keys_inv
            if is_mapped and spec.dtype is not None and not spec.dtype.is_floating_point:
                message = f"{format_key(key)!r} is {type(spec).__name__}, not continuous"
                fix = remove_stage(stage.index, stage.config)
                yield Violation(message, "remove the stage", stage.index, key, fix)
                break


@rule(
    "TDX473",
    "action is scaled after it is discretized",
    "error",
    why="""
    In the inverse direction, the last stage of a chain receives the action first. With
    `ActionScaling` after `ActionDiscretizer`, the scaling receives the index of an interval
    instead of an action.

    Put `ActionDiscretizer` last: it converts the index to a number, which the earlier stages
    scale to the range of the env.
    """,
    wrong="Pendulum-v1 -t 'ActionDiscretizer(5)' -t ActionScaling",
    right="Pendulum-v1 -t ActionScaling -t 'ActionDiscretizer(5)'",
    replaces=True,
)
def scaled_discretizer_index(context: LintContext) -> Iterator[Violation]:
    """Find scalings after a discretizer."""
    for stage in context.stages_named("ActionScaling"):
        discretizer = _discretizer_before(context, stage)
        if discretizer is not None:
            message = f"it receives the action before stage {discretizer.index} (ActionDiscretizer)"
            fix = move_stage(stage.index, discretizer.index, stage.config, discretizer.config)
            yield Violation(message, "move ActionDiscretizer after it", stage.index, None, fix)


@rule(
    "TDX474",
    "action is scaled twice",
    "warning",
    why="""
    The outer `ActionScaling` maps the action to the range of the inner one, which is already
    [-1, 1] and so has no effect. With `loc` and `scale`, the two factors multiply. Use one
    stage.
    """,
    wrong="Pendulum-v1 -t ActionScaling -t ActionScaling",
    right="Pendulum-v1 -t ActionScaling",
)
def scaled_twice(context: LintContext) -> Iterator[Violation]:
    """Find two scalings of one action."""
    first: dict[NestedKey, LintStage] = {}
    for stage in context.stages_named("ActionScaling"):
        for key in stage.in_keys_inv or ["action"]:
            if key in first:
                message = f"{format_key(key)!r} is already scaled by stage {first[key].index}"
                fix = remove_stage(stage.index, stage.config)
                yield Violation(message, "remove one of the two", stage.index, key, fix)
            first.setdefault(key, stage)


def _discretizer_before(context: LintContext, stage: LintStage) -> LintStage | None:
    earlier = (
        other for other in context.stages_named("ActionDiscretizer") if other.index < stage.index
    )
    return next(earlier, None)
