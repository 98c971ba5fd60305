"""Counters and ends of episodes, and skipped frames."""

from __future__ import annotations

from collections.abc import Iterator

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.fix import changed, moved, removed
from tdx.inspection.lint.rule import Found, rule


@rule(
    "TDX451",
    "a step counter that ends nothing",
    "warning",
    why="""
    `StepCounter` with `max_steps` and `update_done=False` sets `truncated` and leaves `done` as it
    is. Rollouts, batches of envs and collectors look at `done`, so no episode ends there.

    And where an env is made without its time limit and the counter has no `max_steps` either,
    nothing cuts an episode off.
    """,
    wrong="--env Pendulum-v1 --t 'StepCounter(max_steps=50, update_done=False)'",
    right="--env Pendulum-v1 --t 'StepCounter(max_steps=50)'",
)
def counter_that_ends_nothing(context: LintContext) -> Iterator[Found]:
    """Counters whose limit reaches no done flag."""
    truncates = any(
        stage.name == "TerminateTransform"
        or (stage.name == "StepCounter" and stage.arguments.get("max_steps") is not None)
        for stage in context.stages
    )
    for stage in context.named("StepCounter"):
        limit = stage.arguments.get("max_steps")
        if limit is not None and stage.arguments.get("update_done") is False:
            fix = changed(stage.index, stage.config, update_done=None)
            message = f"it truncates at {limit} steps and leaves done as it is"
            yield Found(message, "leave update_done out", stage.index, "done", fix)
        elif limit is None and not truncates and _without_limit(context):
            message = "it only counts, and the env is made without a time limit"
            yield Found(message, "give it max_steps", stage.index, "truncated")


@rule(
    "TDX452",
    "a limit that is never reached",
    "advice",
    why="""
    The env has a time limit of its own, and it is below `max_steps`: the episode is over before the
    counter can end it. Either the counter's limit is not needed, or the env's should be raised, as
    with `env: {kwargs: {max_episode_steps: 1000}}`.
    """,
    wrong="--env Pendulum-v1 --t 'StepCounter(max_steps=1000)'",
    right="--env Pendulum-v1 --t 'StepCounter(max_steps=100)'",
)
def limit_never_reached(context: LintContext) -> Iterator[Found]:
    """Limits above that of the env, which each skipped frame uses up too."""
    own = _own_limit(context)
    skips = any(True for _ in context.named("FrameSkipTransform"))
    for stage in context.named("StepCounter"):
        limit = stage.arguments.get("max_steps")
        if own is not None and not skips and isinstance(limit, int) and limit > own:
            message = f"the env ends at {own} steps, before {limit}"
            hint = "lower max_steps, or raise max_episode_steps of the env"
            yield Found(message, hint, stage.index, "truncated")


@rule(
    "TDX453",
    "a counter or tracker that is there twice",
    "error",
    why="""
    Both write the same key, so the chain cannot be built. One is enough: the count and the
    episode starts are the same at every place of a chain.
    """,
    wrong="--env Pendulum-v1 --t InitTracker --t RewardSum --t InitTracker",
    right="--env Pendulum-v1 --t InitTracker --t RewardSum",
    replaces=True,
)
def tracked_twice(context: LintContext) -> Iterator[Found]:
    """Two stages of one kind that write one key."""
    for name, argument in (("StepCounter", "step_count_key"), ("InitTracker", "init_key")):
        first: dict[object, int] = {}
        for stage in context.named(name):
            key = stage.arguments.get(argument)
            if key not in first:
                first[key] = stage.index
                continue
            other = context.stages[first[key]]
            spare = other if _has_more(stage, other) else stage
            message = f"stage {other.index} ({name}) writes {key!r} already"
            fix = removed(spare.index, spare.config)
            hint = f"remove stage {spare.index}"
            where = key if isinstance(key, str) else None
            yield Found(message, hint, stage.index, where, fix)


@rule(
    "TDX454",
    "steps are counted inside of skipped frames",
    "advice",
    why="""
    `FrameSkipTransform` repeats the step of all that stands in front of it. A `StepCounter` there
    counts frames: with a skip of 4 the count goes 4, 8, 12, and `max_steps` means frames. Behind it
    the counter counts decisions of the policy.
    """,
    wrong="--env Pendulum-v1 --t 'StepCounter(max_steps=100)' --t 'FrameSkipTransform(4)'",
    right="--env Pendulum-v1 --t 'FrameSkipTransform(4)' --t 'StepCounter(max_steps=25)'",
)
def counted_inside_skips(context: LintContext) -> Iterator[Found]:
    """Counters in front of a skip."""
    for skip in context.named("FrameSkipTransform"):
        for stage in context.named("StepCounter"):
            if stage.index < skip.index and skip.arguments.get("frame_skip") != 1:
                message = f"it counts each frame that stage {skip.index} (FrameSkipTransform) skips"
                hint = "put it behind the skip to count decisions"
                fix = moved(stage.index, skip.index, stage.config, skip.config)
                yield Found(message, hint, stage.index, "step_count", fix)


@rule(
    "TDX455",
    "frames are stacked inside of skipped frames",
    "warning",
    why="""
    `FrameSkipTransform` repeats the step of all that stands in front of it. A `CatFrames` there
    takes in every skipped frame, so the stack holds the last few frames of one skip, which hardly
    differ, in the place of what the policy saw at its last decisions.

    Skip first, then stack.
    """,
    wrong="""--env Pendulum-v1 --t 'CatFrames(4, dim=-1, in_keys=["observation"])'
    --t 'FrameSkipTransform(4)'""",
    right="""--env Pendulum-v1 --t 'FrameSkipTransform(4)'
    --t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
)
def stacked_inside_skips(context: LintContext) -> Iterator[Found]:
    """Stacks in front of a skip."""
    for skip in context.named("FrameSkipTransform"):
        for stage in context.named("CatFrames"):
            inside = stage.index < skip.index and not stage.arguments.get("as_inverse")
            if inside and skip.arguments.get("frame_skip") != 1:
                message = f"it stacks each frame that stage {skip.index} (FrameSkipTransform) skips"
                fix = moved(skip.index, stage.index, skip.config, stage.config)
                key = stage.in_keys[0] if stage.in_keys else None
                yield Found(message, "skip first, then stack", stage.index, key, fix)


def _without_limit(context: LintContext) -> bool:
    """Whether the pipeline takes the env's time limit away."""
    return context.pipeline.env.kwargs.get("max_episode_steps") == -1


def _own_limit(context: LintContext) -> int | None:
    """The steps after which Gymnasium ends an episode of the env."""
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


def _has_more(stage: LintStage, other: LintStage) -> bool:
    """Whether the first of two counters ends episodes and the second does not."""
    limits = [each.arguments.get("max_steps") for each in (stage, other)]
    return limits[0] is not None and limits[1] is None
