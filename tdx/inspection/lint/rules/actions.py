"""TDX47x: action transforms, which apply in reverse order."""

from __future__ import annotations

from collections.abc import Iterator

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.rule import Violation, move_stage, remove_stage, rule
from tdx.keys import NestedKey, format_key, normalize_key

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
    wrong="--env my_code:unbounded --t 'ActionDiscretizer(5)'",
    right="--env my_code:bounded --t 'ActionDiscretizer(5)'",
    python=_UNBOUNDED,
    replaces=True,
)
def discretizer_without_bounds(context: LintContext) -> Iterator[Violation]:
    """Find discretizers of unbounded actions."""
    for stage in context.stages_named("ActionDiscretizer"):
        key = normalize_key(stage.arguments.get("action_key", "action"))
        spec = None if stage.before is None else stage.before.inputs.get(key)
        if spec is None or spec.dtype is None or not spec.dtype.is_floating_point:
            continue
        if not _is_finite(spec):
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
    wrong="--env CartPole-v1 --t ActionScaling",
    right="--env CartPole-v1",
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
    wrong="--env Pendulum-v1 --t 'ActionDiscretizer(5)' --t ActionScaling",
    right="--env Pendulum-v1 --t ActionScaling --t 'ActionDiscretizer(5)'",
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
    wrong="--env Pendulum-v1 --t ActionScaling --t ActionScaling",
    right="--env Pendulum-v1 --t ActionScaling",
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
        each for each in context.stages_named("ActionDiscretizer") if each.index < stage.index
    )
    return next(earlier, None)


def _is_finite(spec: object) -> bool:
    from tdx.specs import BoundedContinuous

    if not isinstance(spec, BoundedContinuous):
        return False
    return bool(spec.low.isfinite().all() & spec.high.isfinite().all())
