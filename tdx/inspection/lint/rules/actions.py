"""Actions on their way into the env, which the last stage sees first."""

from __future__ import annotations

from collections.abc import Iterator

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.fix import moved, removed
from tdx.inspection.lint.rule import Found, rule
from tdx.keys import NestedKey, format_key, normalize_key

_UNBOUNDED = '''
from tdx import Bounded, GymEnv, Unbounded

def free():
    """Pendulum that takes any torque."""
    env = GymEnv("Pendulum-v1")
    env.action_spec = Unbounded(shape=(1,))
    return env

def held():
    """Pendulum with the range of its torque."""
    env = GymEnv("Pendulum-v1")
    env.action_spec = Bounded(-2.0, 2.0, shape=(1,))
    return env
'''


@rule(
    "TDX471",
    "an action without bounds is cut into intervals",
    "error",
    why="""
    `ActionDiscretizer` divides the range of a continuous action into intervals. A range without
    ends cannot be divided.

    Give the env's action its bounds, or put a stage with `loc` and `scale` (`ActionScaling`) that
    makes a finite range of it between the env and the discretizer.
    """,
    wrong="--env my_code:free --t 'ActionDiscretizer(5)'",
    right="--env my_code:held --t 'ActionDiscretizer(5)'",
    python=_UNBOUNDED,
    replaces=True,
)
def unbounded_into_intervals(context: LintContext) -> Iterator[Found]:
    """Discretizers in front of which the action is unbounded."""
    for stage in context.named("ActionDiscretizer"):
        key = normalize_key(stage.arguments.get("action_key", "action"))
        spec = None if stage.before is None else stage.before.given.get(key)
        if spec is None or spec.dtype is None or not spec.dtype.is_floating_point:
            continue
        if not _finite(spec):
            message = f"{format_key(key)!r} has no finite range"
            yield Found(message, "give the action bounds", stage.index, key)


@rule(
    "TDX472",
    "a discrete action is treated as a continuous one",
    "error",
    why="""
    `ActionScaling` and `ActionDiscretizer` map real numbers. An env whose action is a choice among
    few, such as CartPole's left and right, has nothing to scale or to divide.
    """,
    wrong="--env CartPole-v1 --t ActionScaling",
    right="--env CartPole-v1",
    replaces=True,
)
def discrete_as_continuous(context: LintContext) -> Iterator[Found]:
    """Scalings of actions that the env itself has as integers."""
    for stage in context.named("ActionScaling", "ActionDiscretizer"):
        if stage.before is None or _discretizer_before(context, stage) is not None:
            continue
        for key in stage.before.actions:
            spec = stage.before.given[key]
            meant = not stage.in_keys_inv or key in stage.in_keys_inv
            if meant and spec.dtype is not None and not spec.dtype.is_floating_point:
                message = f"{format_key(key)!r} is {type(spec).__name__}, not a range of numbers"
                fix = removed(stage.index, stage.config)
                yield Found(message, "remove it", stage.index, key, fix)
                break


@rule(
    "TDX473",
    "an action is scaled in front of its discretizer's choice",
    "error",
    why="""
    On the way in the last stage of a chain sees the action first. With `ActionScaling` behind
    `ActionDiscretizer`, the scaling gets the number of an interval in the place of an action.

    Put `ActionDiscretizer` last: it turns the policy's choice into a number, and the stages in
    front of it bring that into the range of the env.
    """,
    wrong="--env Pendulum-v1 --t 'ActionDiscretizer(5)' --t ActionScaling",
    right="--env Pendulum-v1 --t ActionScaling --t 'ActionDiscretizer(5)'",
    replaces=True,
)
def scaled_in_front_of_choice(context: LintContext) -> Iterator[Found]:
    """Scalings behind a discretizer."""
    for stage in context.named("ActionScaling"):
        discretizer = _discretizer_before(context, stage)
        if discretizer is not None:
            message = f"on the way in it comes before stage {discretizer.index} (ActionDiscretizer)"
            fix = moved(stage.index, discretizer.index, stage.config, discretizer.config)
            yield Found(message, "put ActionDiscretizer behind it", stage.index, None, fix)


@rule(
    "TDX474",
    "an action is scaled twice",
    "warning",
    why="""
    The outer `ActionScaling` maps to -1 … 1 what the inner one has mapped there already, which
    does nothing; with `loc` and `scale` of their own the two multiply. One stage says what is
    meant.
    """,
    wrong="--env Pendulum-v1 --t ActionScaling --t ActionScaling",
    right="--env Pendulum-v1 --t ActionScaling",
)
def scaled_twice(context: LintContext) -> Iterator[Found]:
    """Two scalings of one action."""
    first: dict[NestedKey, LintStage] = {}
    for stage in context.named("ActionScaling"):
        for key in stage.in_keys_inv or ["action"]:
            if key in first:
                message = f"stage {first[key].index} scales {format_key(key)!r} already"
                fix = removed(stage.index, stage.config)
                yield Found(message, "keep one of the two", stage.index, key, fix)
            first.setdefault(key, stage)


def _discretizer_before(context: LintContext, stage: LintStage) -> LintStage | None:
    earlier = (each for each in context.named("ActionDiscretizer") if each.index < stage.index)
    return next(earlier, None)


def _finite(spec: object) -> bool:
    from tdx.specs import BoundedContinuous

    if not isinstance(spec, BoundedContinuous):
        return False
    return bool(spec.low.isfinite().all() & spec.high.isfinite().all())
