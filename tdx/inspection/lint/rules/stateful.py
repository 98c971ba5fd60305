"""TDX44x and TDX45x: frame stacks, normalization, step limits, trackers and frame skips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdx.foundation.keys import NestedKey, format_key
from tdx.inspection.envs import find_time_limit
from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.rule import (
    Edit,
    Fix,
    Violation,
    change_arguments,
    move_stage,
    remove_stage,
    rule,
)

_IMAGES = ("Resize", "CenterCrop", "GrayScale", "ToTensorImage")
_NORMS = ("ObservationNorm", "VecNorm")
_TO_FRONT = {-1: -3, -2: -1, -3: -2}
"""Maps a dim of [H, W, C] to the same dim of [C, H, W]."""
_PIXELS = "CartPole-v1 --from-pixels"


@rule(
    "TDX441",
    "frames are stacked before they are processed",
    "warning",
    why="""
    `CatFrames` keeps the last N frames. `Resize`, `CenterCrop`, `GrayScale` and `ToTensorImage`
    after it process N frames in each step, N - 1 of which they have processed before, and the
    stack holds frames in the size of the env. `GrayScale` cannot tell the color channels of a
    stack apart.

    Stack last: the same result for 1/N of the work.
    """,
    wrong=f"{_PIXELS} -t ToTensorImage -t 'CatFrames(4, dim=-3)' -t 'Resize(64)'",
    right=f"{_PIXELS} -t ToTensorImage -t 'Resize(64)' -t 'CatFrames(4, dim=-3)'",
    replaces=True,
)
def stacked_before_processed(context: LintContext) -> Iterator[Violation]:
    """Find stacks followed by stages that process single images."""
    for stack, late, key in _stacks_read_by(context, _IMAGES):
        message = f"{format_key(key)!r} is stacked before stage {late[-1].index} ({late[-1].name})"
        hint = f"move it after {late[-1].name} to save memory and time"
        yield Violation(message, hint, stack.index, key, _move_stack_last(stack, late))


@rule(
    "TDX442",
    "stacks are normalized instead of frames",
    "warning",
    why="""
    An `ObservationNorm` after `CatFrames` processes N frames in each step, only one of which is
    new. Its statistics do not change, so a frame has the same values if it is normalized before.

    Normalize single frames, then stack. A running normalization such as `VecNorm` belongs after
    the stack: its statistics change with every step (TDX403).
    """,
    wrong="""Pendulum-v1 -t 'CatFrames(4, dim=-1, in_keys=["observation"])'
    -t 'ObservationNorm(0.0, 0.5, in_keys=["observation"])'""",
    right="""Pendulum-v1 -t 'ObservationNorm(0.0, 0.5, in_keys=["observation"])'
    -t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
)
def normalized_after_stacking(context: LintContext) -> Iterator[Violation]:
    """Find stacks followed by a normalization with fixed statistics."""
    for stack, late, key in _stacks_read_by(context, ("ObservationNorm",)):
        # With single numbers, every frame of a stack is treated alike.
        is_uniform = all(
            isinstance(stage.arguments.get(name), int | float)
            for stage in late
            for name in ("loc", "scale")
        )
        place = f"stage {late[-1].index} ({late[-1].name})"
        message = f"{place} normalizes {format_key(key)!r} after it is stacked"
        fix = _move_stack_last(stack, late) if is_uniform else None
        yield Violation(message, f"move it after {late[-1].name}", stack.index, key, fix)


@rule(
    "TDX443",
    "frames are stacked twice",
    "warning",
    why="""
    A second `CatFrames` on the same key stacks stacks: with N=4 twice, each step holds 16
    frames, 7 of which differ. One `CatFrames` with a larger N holds each frame once.
    """,
    wrong="""Pendulum-v1 -t 'CatFrames(2, dim=-1, in_keys=["observation"])'
    -t 'CatFrames(2, dim=-1, in_keys=["observation"])'""",
    right="""Pendulum-v1 -t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
)
def stacks_stacked(context: LintContext) -> Iterator[Violation]:
    """Find two stacks of one key along one dim."""
    for first, second, key in context.iter_pairs(["CatFrames"], ["CatFrames"]):
        if 1 not in (first.arguments["N"], second.arguments["N"]):
            message = f"{format_key(key)!r} is already stacked by stage {first.index}"
            yield Violation(message, "stack once, with a larger N", second.index, key)


@rule(
    "TDX444",
    "stacks are cast instead of frames",
    "suggestion",
    why="""
    `CatFrames` keeps frames in their original dtype. A later cast from float64 to float32
    converts N frames in each step, only one of which is new, and the stack takes twice the
    memory.
    """,
    wrong="""HalfCheetah-v5 -t 'CatFrames(4, dim=-1, in_keys=["observation"])'
    -t DoubleToFloat""",
    right="""HalfCheetah-v5 -t DoubleToFloat
    -t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
)
def cast_after_stacking(context: LintContext) -> Iterator[Violation]:
    """Find stacks followed by a cast to a smaller dtype."""
    for stack, late, key in _stacks_read_by(context, ("DoubleToFloat",)):
        cast = late[0]
        message = f"stage {cast.index} ({cast.name}) casts {format_key(key)!r} after it is stacked"
        fix = _move_stack_last(stack, late) if cast.index == stack.index + 1 else None
        yield Violation(message, f"move it after {cast.name}", stack.index, key, fix)


def _stacks_read_by(
    context: LintContext, names: Sequence[str]
) -> Iterator[tuple[LintStage, list[LintStage], NestedKey]]:
    """Yield every stack with the later stages of these names that read it."""
    late: dict[int, list[LintStage]] = {}
    keys: dict[int, NestedKey] = {}
    for stack, reader, key in context.iter_pairs(["CatFrames"], names):
        if not stack.arguments.get("as_inverse") and stack.arguments["N"] != 1:
            late.setdefault(stack.index, []).append(reader)
            keys.setdefault(stack.index, key)
    for index, readers in late.items():
        yield context.stages[index], readers, keys[index]


def _move_stack_last(stack: LintStage, late: Sequence[LintStage]) -> Fix | None:
    """Return a fix that moves the stack after the stages, along the same image dim."""
    if stack.in_keys != stack.out_keys:
        return None
    edits: list[Edit] = []
    dim = stack.arguments["dim"]
    if any(stage.name == "ToTensorImage" for stage in late) and dim in _TO_FRONT:
        edits += change_arguments(stack.index, stack.config, dim=_TO_FRONT[dim]).edits
    edits.append(Edit("move", stack.index, late[-1].index))
    return Fix(f"move {stack.name} after {late[-1].name}", tuple(edits))


@rule(
    "TDX445",
    "key is normalized twice",
    "warning",
    why="""
    Two normalizations of the same key distort each other: statistics that were measured on raw
    observations do not fit normalized ones, and `VecNorm` removes the offset and scale of an
    earlier stage.

    Keep one: `ObservationNorm` if the statistics are known, `VecNorm` to estimate them while
    running.
    """,
    wrong="""Pendulum-v1 -t 'ObservationNorm(0.0, 0.5, in_keys=["observation"])'
    -t 'VecNorm(in_keys=["observation"])'""",
    right="""Pendulum-v1 -t 'VecNorm(in_keys=["observation"])'""",
)
def normalized_twice(context: LintContext) -> Iterator[Violation]:
    """Find two normalizations in a row."""
    reported: set[int] = set()
    for first, second, key in context.iter_pairs(_NORMS, _NORMS):
        if second.index not in reported and not _is_identity(first) and not _is_identity(second):
            reported.add(second.index)
            message = (
                f"{format_key(key)!r} is already normalized by stage {first.index} ({first.name})"
            )
            alone = first.name == "ObservationNorm" and first.in_keys == first.out_keys
            fix = (
                remove_stage(first.index, first.config)
                if alone and second.name == "VecNorm" and set(first.in_keys) <= set(second.in_keys)
                else None
            )
            yield Violation(message, "remove one of the two", second.index, key, fix)


@rule(
    "TDX446",
    "ObservationNorm has no statistics",
    "error",
    why="""
    `ObservationNorm` without `loc` and `scale` requires a call of `init_stats`, which measures
    them. A pipeline file or command line cannot call a method, so the first step fails.

    Set `loc` and `scale`, or use `VecNorm`, which estimates them while running.
    """,
    wrong="Pendulum-v1 -t ObservationNorm",
    right="Pendulum-v1 -t 'ObservationNorm(0.0, 0.5)'",
    replaces=True,
)
def norm_without_statistics(context: LintContext) -> Iterator[Violation]:
    """Find normalizations without statistics."""
    for stage in context.stages_named("ObservationNorm"):
        if stage.arguments.get("loc") is None and stage.arguments.get("scale") is None:
            hint = "set them, or use VecNorm, which estimates them"
            yield Violation("loc and scale are not set", hint, stage.index)


@rule(
    "TDX447",
    "scale is zero",
    "warning",
    why="""
    A factor of zero makes all values equal, so the observation or reward carries no
    information. With `standard_normal=True` the scale is a divisor, and zero is a standard
    deviation that was not measured.
    """,
    wrong="Pendulum-v1 -t 'ObservationNorm(0.0, 0.0)'",
    right="Pendulum-v1 -t 'ObservationNorm(0.0, 0.5)'",
)
def scale_of_zero(context: LintContext) -> Iterator[Violation]:
    """Find scales of zero."""
    for stage in context.stages_named("ObservationNorm", "RewardScaling"):
        scale = stage.arguments.get("scale")
        if isinstance(scale, int | float) and scale == 0:
            key = stage.in_keys[0] if stage.in_keys else None
            yield Violation("scale is 0", "set the scale of the data", stage.index, key)


def _is_identity(stage: LintStage) -> bool:
    arguments = stage.arguments
    return arguments.get("loc") == 0 and arguments.get("scale") == 1


@rule(
    "TDX451",
    "step limit does not end the episode",
    "warning",
    why="""
    `StepCounter` with `max_steps` and `update_done=False` sets `truncated` but not `done`.
    Rollouts, batched envs and collectors read `done`, so the episode continues.

    The rule also reports a counter without `max_steps` if the time limit of the env is
    disabled: then nothing limits an episode.
    """,
    wrong="Pendulum-v1 -t 'StepCounter(max_steps=50, update_done=False)'",
    right="Pendulum-v1 -t 'StepCounter(max_steps=50)'",
)
def step_limit_without_done(context: LintContext) -> Iterator[Violation]:
    """Find counters whose limit sets no done flag."""
    has_limit = any(
        stage.name == "TerminateTransform"
        or (stage.name == "StepCounter" and stage.arguments.get("max_steps") is not None)
        for stage in context.stages
    )
    is_env_unlimited = context.pipeline.env.kwargs.get("max_episode_steps") == -1
    for stage in context.stages_named("StepCounter"):
        limit = stage.arguments.get("max_steps")
        if limit is not None and stage.arguments.get("update_done") is False:
            fix = change_arguments(stage.index, stage.config, update_done=None)
            message = f"it sets truncated after {limit} steps, but not done"
            yield Violation(message, "remove update_done=False", stage.index, "done", fix)
        elif limit is None and not has_limit and is_env_unlimited:
            message = "neither the counter nor the env limits the episode"
            yield Violation(message, "set max_steps", stage.index, "truncated")


@rule(
    "TDX452",
    "step limit is never reached",
    "suggestion",
    why="""
    The env has a time limit below `max_steps`, so the episode ends before the counter reaches
    its limit. Remove `max_steps`, or raise the limit of the env: `env: {kwargs:
    {max_episode_steps: 1000}}`.
    """,
    wrong="Pendulum-v1 -t 'StepCounter(max_steps=1000)'",
    right="Pendulum-v1 -t 'StepCounter(max_steps=100)'",
)
def limit_never_reached(context: LintContext) -> Iterator[Violation]:
    """Find limits above that of the env; skipped frames count towards the env's limit."""
    env_limit = None if context.env is None else find_time_limit(context.pipeline.env)
    skips = any(True for _ in context.stages_named("FrameSkipTransform"))
    for stage in context.stages_named("StepCounter"):
        limit = stage.arguments.get("max_steps")
        if env_limit is not None and not skips and isinstance(limit, int) and limit > env_limit:
            message = f"the env ends an episode after {env_limit} steps, before {limit}"
            hint = "lower max_steps, or raise max_episode_steps of the env"
            yield Violation(message, hint, stage.index, "truncated")


@rule(
    "TDX453",
    "StepCounter or InitTracker is used twice",
    "error",
    why="""
    Both write the same key, so the chain cannot be built. One is enough: step count and episode
    starts are the same at every position of a chain.
    """,
    wrong="Pendulum-v1 -t InitTracker -t RewardSum -t InitTracker",
    right="Pendulum-v1 -t InitTracker -t RewardSum",
    replaces=True,
)
def tracked_twice(context: LintContext) -> Iterator[Violation]:
    """Find two stages of one kind that write one key."""
    for name, argument in (("StepCounter", "step_count_key"), ("InitTracker", "init_key")):
        first: dict[object, int] = {}
        for stage in context.stages_named(name):
            key = stage.arguments.get(argument)
            if key not in first:
                first[key] = stage.index
                continue
            other = context.stages[first[key]]
            limit, inner_limit = (counter.arguments.get("max_steps") for counter in (stage, other))
            redundant = other if limit is not None and inner_limit is None else stage
            message = f"{key!r} is already written by stage {other.index} ({name})"
            fix = remove_stage(redundant.index, redundant.config)
            hint = f"remove stage {redundant.index}"
            where = key if isinstance(key, str) else None
            yield Violation(message, hint, stage.index, where, fix)


@rule(
    "TDX454",
    "StepCounter counts skipped frames",
    "suggestion",
    why="""
    `FrameSkipTransform` repeats the step of everything before it, so an earlier `StepCounter`
    counts frames: with a skip of 4 the count is 4, 8, 12, and `max_steps` is a number of
    frames. After the skip, it counts actions of the policy.
    """,
    wrong="Pendulum-v1 -t 'StepCounter(max_steps=100)' -t 'FrameSkipTransform(4)'",
    right="Pendulum-v1 -t 'FrameSkipTransform(4)' -t 'StepCounter(max_steps=25)'",
)
def counter_before_frame_skip(context: LintContext) -> Iterator[Violation]:
    """Find counters before a skip."""
    for skip in context.stages_named("FrameSkipTransform"):
        for stage in context.stages_named("StepCounter"):
            if stage.index < skip.index and skip.arguments.get("frame_skip") != 1:
                message = f"it counts each frame that stage {skip.index} (FrameSkipTransform) skips"
                hint = "move it after the skip to count actions"
                fix = move_stage(stage.index, skip.index, stage.config, skip.config)
                yield Violation(message, hint, stage.index, "step_count", fix)


@rule(
    "TDX455",
    "CatFrames stacks skipped frames",
    "warning",
    why="""
    `FrameSkipTransform` repeats the step of everything before it, so an earlier `CatFrames`
    stacks every skipped frame: the last, nearly identical frames of one skip instead of what
    the policy observed at its last actions.

    Skip first, then stack.
    """,
    wrong="""Pendulum-v1 -t 'CatFrames(4, dim=-1, in_keys=["observation"])'
    -t 'FrameSkipTransform(4)'""",
    right="""Pendulum-v1 -t 'FrameSkipTransform(4)'
    -t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
)
def stack_before_frame_skip(context: LintContext) -> Iterator[Violation]:
    """Find stacks before a skip."""
    for skip in context.stages_named("FrameSkipTransform"):
        for stage in context.stages_named("CatFrames"):
            is_inside = stage.index < skip.index and not stage.arguments.get("as_inverse")
            if is_inside and skip.arguments.get("frame_skip") != 1:
                message = f"it stacks each frame that stage {skip.index} (FrameSkipTransform) skips"
                fix = move_stage(skip.index, stage.index, skip.config, stage.config)
                key = stage.in_keys[0] if stage.in_keys else None
                yield Violation(message, "skip first, then stack", stage.index, key, fix)
