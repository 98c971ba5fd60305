"""TDX45x: step limits, trackers and frame skips."""

from __future__ import annotations

from collections.abc import Iterator

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.rule import Violation, change_arguments, move_stage, remove_stage, rule


@rule(
    "TDX451",
    "step limit does not end the episode",
    "warning",
    why="""
    `StepCounter` with `max_steps` and `update_done=False` sets `truncated` but not `done`.
    Rollouts, batched envs and collectors read `done`, so the episode continues.

    The rule also reports a counter without `max_steps` if the time limit of the env is
    disabled: then nothing has_limit an episode.
    """,
    wrong="--env Pendulum-v1 --t 'StepCounter(max_steps=50, update_done=False)'",
    right="--env Pendulum-v1 --t 'StepCounter(max_steps=50)'",
)
def step_limit_without_done(context: LintContext) -> Iterator[Violation]:
    """Find counters whose limit sets no done flag."""
    has_limit = any(
        stage.name == "TerminateTransform"
        or (stage.name == "StepCounter" and stage.arguments.get("max_steps") is not None)
        for stage in context.stages
    )
    for stage in context.stages_named("StepCounter"):
        limit = stage.arguments.get("max_steps")
        if limit is not None and stage.arguments.get("update_done") is False:
            fix = change_arguments(stage.index, stage.config, update_done=None)
            message = f"it sets truncated after {limit} steps, but not done"
            yield Violation(message, "remove update_done=False", stage.index, "done", fix)
        elif limit is None and not has_limit and _is_limit_disabled(context):
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
    wrong="--env Pendulum-v1 --t 'StepCounter(max_steps=1000)'",
    right="--env Pendulum-v1 --t 'StepCounter(max_steps=100)'",
)
def limit_never_reached(context: LintContext) -> Iterator[Violation]:
    """Find limits above that of the env; skipped frames count towards the env's limit."""
    env_limit = _env_limit(context)
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
    wrong="--env Pendulum-v1 --t InitTracker --t RewardSum --t InitTracker",
    right="--env Pendulum-v1 --t InitTracker --t RewardSum",
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
            redundant = other if _is_only_limit(stage, other) else stage
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
    wrong="--env Pendulum-v1 --t 'StepCounter(max_steps=100)' --t 'FrameSkipTransform(4)'",
    right="--env Pendulum-v1 --t 'FrameSkipTransform(4)' --t 'StepCounter(max_steps=25)'",
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
    wrong="""--env Pendulum-v1 --t 'CatFrames(4, dim=-1, in_keys=["observation"])'
    --t 'FrameSkipTransform(4)'""",
    right="""--env Pendulum-v1 --t 'FrameSkipTransform(4)'
    --t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
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


def _is_limit_disabled(context: LintContext) -> bool:
    """Return True if the pipeline disables the time limit of the env."""
    return context.pipeline.env.kwargs.get("max_episode_steps") == -1


def _env_limit(context: LintContext) -> int | None:
    """Return the number of steps after which Gymnasium truncates an episode of the env."""
    env = context.pipeline.env
    given = env.kwargs.get("max_episode_steps")
    if env.code is not None or context.env is None:
        return None
    if isinstance(given, int):
        return given if given > 0 else None
    import gymnasium
    from gymnasium.error import Error

    try:
        return gymnasium.spec(env.id).max_episode_steps
    except Error:
        return None


def _is_only_limit(stage: LintStage, other: LintStage) -> bool:
    """Return True if only the first of two counters has a limit."""
    limits = [each.arguments.get("max_steps") for each in (stage, other)]
    return limits[0] is not None and limits[1] is None
