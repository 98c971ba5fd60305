"""Normalisation of observations."""

from __future__ import annotations

from collections.abc import Iterator

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.fix import removed
from tdx.inspection.lint.rule import Found, rule
from tdx.keys import format_key

_NORMS = ("ObservationNorm", "VecNorm")


@rule(
    "TDX445",
    "an entry is normalised twice",
    "warning",
    why="""
    Two normalisations of the same entry undo or distort one another: statistics that were measured
    on raw observations do not fit normalised ones, and `VecNorm` takes out whatever offset and
    scale a stage before it has put in.

    Keep one: `ObservationNorm` where the statistics are known, `VecNorm` where they are to be
    learnt while running.
    """,
    wrong="""--env Pendulum-v1 --t 'ObservationNorm(0.0, 0.5, in_keys=["observation"])'
    --t 'VecNorm(in_keys=["observation"])'""",
    right="""--env Pendulum-v1 --t 'VecNorm(in_keys=["observation"])'""",
)
def normalised_twice(context: LintContext) -> Iterator[Found]:
    """Two normalisations on one way."""
    seen: set[int] = set()
    for first, second, key in context.pairs(_NORMS, _NORMS):
        if second.index not in seen and not _does_nothing(first) and not _does_nothing(second):
            seen.add(second.index)
            message = f"stage {first.index} ({first.name}) has normalised {format_key(key)!r}"
            alone = first.name == "ObservationNorm" and first.in_keys == first.out_keys
            fix = (
                removed(first.index, first.config)
                if alone and second.name == "VecNorm" and set(first.in_keys) <= set(second.in_keys)
                else None
            )
            yield Found(f"{message} already", "keep one of the two", second.index, key, fix)


@rule(
    "TDX446",
    "a normalisation without its numbers",
    "error",
    why="""
    `ObservationNorm` without `loc` and `scale` waits for `init_stats`, which measures them in the
    env. A pipeline file or command line calls no method, so the first step fails.

    Give `loc` and `scale`, or use `VecNorm`, which measures while it runs.
    """,
    wrong="--env Pendulum-v1 --t ObservationNorm",
    right="--env Pendulum-v1 --t 'ObservationNorm(0.0, 0.5)'",
    replaces=True,
)
def norm_without_numbers(context: LintContext) -> Iterator[Found]:
    """Normalisations whose numbers are left open."""
    for stage in context.named("ObservationNorm"):
        if stage.arguments.get("loc") is None and stage.arguments.get("scale") is None:
            hint = "give them, or use VecNorm, which measures while it runs"
            yield Found("it has neither loc nor scale", hint, stage.index)


@rule(
    "TDX447",
    "a scale of zero",
    "warning",
    why="""
    A factor of zero makes every value the same, so nothing of the observation or the reward is
    left. With `standard_normal=True` the scale is a divisor, and zero is an unmeasured deviation.
    """,
    wrong="--env Pendulum-v1 --t 'ObservationNorm(0.0, 0.0)'",
    right="--env Pendulum-v1 --t 'ObservationNorm(0.0, 0.5)'",
)
def scale_of_zero(context: LintContext) -> Iterator[Found]:
    """Scales that are zero."""
    for stage in context.named("ObservationNorm", "RewardScaling"):
        scale = stage.arguments.get("scale")
        if isinstance(scale, int | float) and scale == 0:
            key = stage.in_keys[0] if stage.in_keys else None
            yield Found("its scale is 0", "give the scale of the data", stage.index, key)


def _does_nothing(stage: LintStage) -> bool:
    arguments = stage.arguments
    return arguments.get("loc") == 0 and arguments.get("scale") == 1
