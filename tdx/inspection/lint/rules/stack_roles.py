"""TDX475 to TDX480: stages that do a part of the work twice, or that belong to training only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tdx.foundation.keys import NestedKey, split_key
from tdx.inspection.lint.rule import Violation, stack_rule
from tdx.inspection.lint.rules.stacks import EXAMPLE_IMPORTS, RECORDERS, RewardPairs
from tdx.inspection.lint.stack_context import Fact, StackContext, StageCall, fit_line

if TYPE_CHECKING:
    from tdx.stacks import StageInfo

_LIVES = f"""{EXAMPLE_IMPORTS}

class Game(gym.Env):
    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lives = 3
        return self.lives, {{}}

    def step(self, action):
        self.lives -= 1
        return self.lives, 1.0, self.lives == 0, False, {{}}


class EpisodicLifeEnv(gym.Wrapper):
    over = True

    def reset(self, **kwargs):
        if self.over:
            return self.env.reset(**kwargs)
        return self.unwrapped.lives, {{}}

    def step(self, action):
        observation, reward, self.over, truncated, info = self.env.step(action)
        return observation, reward, True, truncated, info
"""


class StepsInside(Fact):
    """How often a stage stepped the level inside, in each step."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def add(self, call: StageCall) -> None:
        if call.stage.direction == "forward" and call.trace.phase == "step":
            self.counts.append(call.steps_inside)


@stack_rule(
    "TDX475",
    "frames are skipped twice",
    "warning",
    why="""
    Two parts of the stack repeat each action: the counts multiply, so the policy acts in every 16th
    frame instead of every fourth. `ALE/…-v5` repeats each action 4 times itself, and
    `AtariPreprocessing`, `MaxAndSkipEnv` and `AtariWrapper` do so again.

    Create the env with `frameskip=1`, or leave out the wrapper.
    """,
    python=f"""{EXAMPLE_IMPORTS}

class Game(gym.Env):
    observation_space = spaces.Box(0, 255, (12, 12), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, frameskip):
        self.frameskip = frameskip

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (12, 12), np.uint8), {{}}

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {{}}


def wrong():
    return wrappers.MaxAndSkipObservation(Game(frameskip=4), skip=4)


def right():
    return wrappers.MaxAndSkipObservation(Game(frameskip=1), skip=4)
""",
    facts=(StepsInside,),
)
def frames_skipped_twice(context: StackContext) -> Iterator[Violation]:
    """Find two parts of a stack that make several steps of the env in one of their own."""
    first: tuple[str, int | None] | None = None
    own = context.stack.env_arguments.get("frameskip")
    # ALE draws the number of frames from a range.
    count = max(own, default=1) if isinstance(own, tuple | list) else own
    if isinstance(count, int) and count > 1:
        first = f"the env (frameskip={own})", None
    for stage in context.stages:
        skip = _frame_skip(context, stage)
        if skip < 2:
            continue
        if first is not None:
            name, index = first
            message = f"it repeats each action {skip} times, and so does {name}"
            hint = "create the env with frameskip=1" if index is None else "remove one of the two"
            yield Violation(message, hint, stage.index, "action", related=index)
        first = f"stage {stage.index} ({stage.name})", stage.index


def _frame_skip(context: StackContext, stage: StageInfo) -> int:
    """Return how many steps of the level inside a stage makes in one of its own."""
    if stage.name == "FrameSkipTransform":
        declared = stage.arguments.get("frame_skip")
        return declared if isinstance(declared, int) else 1
    counts = context.fact(StepsInside, stage.index).counts
    # The last step of an episode may make fewer.
    return max(set(counts), key=counts.count, default=1)


@stack_rule(
    "TDX476",
    "episode statistics record lives instead of games",
    "warning",
    why="""
    A wrapper ends an episode with each life, and the one that records episodes is outside of it:
    the returns and lengths are those of one life. They cannot be compared with published scores,
    which are those of whole games.

    Record inside of the wrapper that ends the episodes.
    """,
    python=f"""{_LIVES}

def wrong():
    return wrappers.RecordEpisodeStatistics(EpisodicLifeEnv(Game()))


def right():
    return EpisodicLifeEnv(wrappers.RecordEpisodeStatistics(Game()))
""",
)
def statistics_of_lives(context: StackContext) -> Iterator[Violation]:
    """Find recorders of episodes outside of a wrapper that ends them with each life."""
    for life in filter(_ends_with_a_life, context.stages):
        for stage in context.stages[life.index + 1 :]:
            if stage.name in RECORDERS:
                message = f"stage {life.index} ({life.name}) inside of it ends episodes with a life"
                hint = f"move {stage.name} inside of {life.name}"
                key = ("info", "episode")
                yield Violation(message, hint, stage.index, key, related=life.index)


# TorchRL's EndOfLifeTransform marks the end of a life, and does not end the episode.
_LIFE = re.compile(r"(episod|los[ts]|terminal).*(life|lives)|(life|lives).*(los[ts]|episod)")


def _ends_with_a_life(stage: StageInfo) -> bool:
    switch = stage.arguments.get("terminal_on_life_loss")
    return bool(switch) if switch is not None else _LIFE.search(stage.name.casefold()) is not None


@stack_rule(
    "TDX477",
    "episodes of an evaluation end with a life",
    "warning",
    why="""
    The wrapper ends an episode with each life, which helps training. In an evaluation, the loop
    counts each life as an episode, so the returns are a fraction of the score of a game. The rule
    applies with `--eval`, or `tdx.check(env, evaluation=True)`.

    Leave the wrapper out of the env for evaluation: `terminal_on_life_loss=False` in
    `AtariWrapper` and `AtariPreprocessing`.
    """,
    python=f"""{_LIVES}

def wrong():
    return EpisodicLifeEnv(Game())


def right():
    return Game()
""",
    options="--eval",
)
def lives_in_evaluation(context: StackContext) -> Iterator[Violation]:
    """Find wrappers that end episodes with a life in an env for evaluation."""
    for stage in context.stages if context.evaluation else ():
        if _ends_with_a_life(stage):
            message = f"it ends an episode with each life{_recorded_inside(context, stage)}"
            hint = f"leave {stage.name} out: terminal_on_life_loss=False"
            yield Violation(message, hint, stage.index, "terminated")


@stack_rule(
    "TDX478",
    "reward is clipped in evaluation",
    "warning",
    why="""
    The returns of an evaluation are sums of clipped rewards, which cannot be compared with the
    score of the env. The rule applies with `--eval`, or `tdx.check(env, evaluation=True)`.

    Leave the wrapper out of the env for evaluation: `clip_reward=False` in `AtariWrapper`.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def wrong():
    return wrappers.ClipReward(gym.make("Pendulum-v1", max_episode_steps=20), -1.0, 1.0)


def right():
    return gym.make("Pendulum-v1", max_episode_steps=20)
""",
    options="--eval",
    facts=(RewardPairs,),
)
def reward_clipped_in_evaluation(context: StackContext) -> Iterator[Violation]:
    """Find stages that clip rewards, or take their sign, in an env for evaluation."""
    for stage in context.stages if context.evaluation else ():
        rewards = context.fact(RewardPairs, stage.index).pairs
        clips = _is_clipped(rewards) and not context.is_normalizer(stage)
        if clips or _CLIP.search(stage.name.casefold()) is not None:
            message = f"it clips rewards{_recorded_inside(context, stage)}"
            hint = f"leave {stage.name} out of the env for evaluation"
            yield Violation(message, hint, stage.index, "reward")


def _is_clipped(rewards: Sequence[tuple[float, float]]) -> bool:
    """Return True if some rewards were moved to the ends of a range, or to their sign."""
    changed = {before for before, after in rewards if before != after}
    if len(changed) < 2:
        return False
    if all(after == (before > 0) - (before < 0) for before, after in rewards):
        return True
    low, high = (end(after for _, after in rewards) for end in (min, max))
    return low < high and all(after == min(max(before, low), high) for before, after in rewards)


_CLIP = re.compile(r"clip_?reward|reward_?clip|binarize_?reward|sign_?reward|reward_?sign")


def _recorded_inside(context: StackContext, stage: StageInfo) -> str:
    """Return the end of a message that names a recorder that does not see what a stage does."""
    inside = [other for other in context.stages[: stage.index] if other.name in RECORDERS]
    if not inside:
        return ""
    return f"; the episodes of stage {inside[-1].index} ({inside[-1].name}) are not affected"


@stack_rule(
    "TDX479",
    "each sub-env normalizes with statistics of its own",
    "warning",
    why="""
    The wrapper is inside each sub-env of a vector env, and keeps a running mean and variance there.
    The policy gets the same observation with different numbers from different sub-envs, and there
    is no single state to save for the evaluation.

    Normalize the vector env, which has one set of statistics: in Gymnasium with
    `wrappers.vector.NormalizeObservation`, in Stable-Baselines3 with `VecNormalize`.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def make():
    return gym.make("Pendulum-v1", max_episode_steps=20)


def wrong():
    return gym.vector.SyncVectorEnv([lambda: wrappers.NormalizeObservation(make())] * 2)


def right():
    return wrappers.vector.NormalizeObservation(gym.vector.SyncVectorEnv([make] * 2))
""",
)
def statistics_of_each_sub_env(context: StackContext) -> Iterator[Violation]:
    """Find running statistics of observations that differ between the sub-envs."""
    for stage in context.stages:
        rows = stage.rows or 1
        changed = context.changed_observations(stage)
        if rows < 2 or not changed:
            continue
        state = context.after.get(stage.index, {})
        tensors = [state[name] for name in context.statistics(stage)]
        if any(len(value) == rows and bool((value != value[:1]).any()) for value in tensors):
            message = f"each of the {rows} sub-envs has a mean and variance of its own"
            hint = f"put one normalizer around the vector env, instead of {stage.name} in each"
            yield Violation(message, hint, stage.index, changed[0])


class ObservationSamples(Fact):
    """First elements of each observation before and after a stage that keeps its shape."""

    def __init__(self) -> None:
        self.samples: dict[NestedKey, list[tuple[list[float], list[float]]]] = {}

    def add(self, call: StageCall) -> None:
        from torch import Tensor

        stage = call.stage
        if stage.direction != "forward":
            return
        for key in call.before.keys() & call.context.observations:
            version = call.before[key]
            old, new = version.value, stage.written.get(key, version).value
            samples = self.samples.setdefault(key, [])
            if key in stage.dropped or len(samples) >= _MAX_SAMPLES:
                continue
            if not isinstance(old, Tensor) or not isinstance(new, Tensor) or new.is_complex():
                continue
            if old.shape == new.shape:
                pair = (value.flatten()[:_MAX_ELEMENTS].double().tolist() for value in (old, new))
                samples.append((next(pair), next(pair)))

    def lines(self, key: NestedKey) -> dict[int, tuple[float, float]]:
        """Return factor and offset by which elements of an observation are mapped.

        Elements that do not vary are left out. Empty: not every other element is mapped linearly.
        """
        lines: dict[int, tuple[float, float]] = {}
        samples = self.samples.get(key, [])
        if len(samples) < _MIN_SAMPLES:
            return {}
        for element in range(len(samples[0][0])):
            points = [(before[element], after[element]) for before, after in samples]
            low, high = min(points)[0], max(points)[0]
            if high - low > 1e-3 * max(abs(low), abs(high), 1e-3):
                line = fit_line(points, 1e-3)
                if line is None:
                    return {}
                lines[element] = line
        return lines

    def are_standardized(self, key: NestedKey) -> bool:
        """Return True if the mean of all values so far is subtracted, divided by their spread."""
        samples = self.samples.get(key, [])
        if len(samples) < _MIN_SAMPLES:
            return False
        tested, error, change = 0, 0.0, 0.0
        for element in range(len(samples[0][0])):
            seen: list[float] = []
            for before, after in samples:
                seen.append(before[element])
                mean = sum(seen) / len(seen)
                deviation = (sum((value - mean) ** 2 for value in seen) / len(seen)) ** 0.5
                # Implementations differ in the first steps: epsilon, initial count, n - 1.
                if len(seen) > len(samples) // 2 and deviation > 1e-6:
                    tested += 1
                    error += abs(after[element] - (before[element] - mean) / deviation)
                    change += abs(after[element] - before[element])
        # A stage that follows a normalization, and only casts or clips, changes next to nothing.
        return tested >= _MIN_SAMPLES // 2 and error < min(0.1 * tested, 0.4 * change)


_MIN_SAMPLES, _MAX_SAMPLES, _MAX_ELEMENTS = 10, 100, 16
"""Observations that are compared before the effect of a stage on them counts as known; the most
observations, and elements of each, that are kept."""


@stack_rule(
    "TDX480",
    "observation is normalized twice",
    "warning",
    why="""
    Two stages normalize the same observation: both subtract the mean of the values that they get
    and divide by their spread, or both apply the same scale and offset. The second one gets values
    that are normalized already, so the policy reads other numbers than those that it was trained
    on, or than the statistics are for.

    The rule compares what the stages do in the steps of the check, whatever their classes are.
    Remove one of them.
    """,
    python=f"""{EXAMPLE_IMPORTS}

MEAN, STD = np.array([0.1, -0.2, 0.5]), np.array([0.7, 0.6, 3.0])


class Standardized(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def observation(self, observation):
        return (observation - MEAN) / STD


class FromDataset(Standardized):
    pass


def make():
    return gym.make("Pendulum-v1", max_episode_steps=20)


def wrong():
    return FromDataset(Standardized(make()))


def right():
    return Standardized(make())
""",
    same_as=("TDX445", "TDX446", "TDX493"),
    facts=(ObservationSamples,),
)
def observation_normalized_twice(context: StackContext) -> Iterator[Violation]:
    """Find two stages with the effect of a normalization on the same observation."""
    for stage in context.stages:
        pairs = (
            (first, key)
            for first in context.stages[: stage.index]
            for key in context.changed_observations(stage)
            if any(
                _overlaps(key, other) and _repeats(context, first, other, stage, key)
                for other in context.changed_observations(first)
            )
        )
        if (pair := next(pairs, None)) is not None:
            first, key = pair
            message = f"stage {first.index} ({first.name}) normalizes the observation already"
            yield Violation(message, "remove one of the two", stage.index, key, related=first.index)


def _overlaps(one: NestedKey, other: NestedKey) -> bool:
    """Return True if one key is the other, or a group that contains it."""
    return all(a == b for a, b in zip(split_key(one), split_key(other), strict=False))


def _repeats(
    context: StackContext, first: StageInfo, before: NestedKey, stage: StageInfo, key: NestedKey
) -> bool:
    """Return True if a stage applies the normalization of another stage once more."""
    inner, outer = (
        context.fact(ObservationSamples, normalizer.index) for normalizer in (first, stage)
    )
    if (context.is_normalizer(first) or inner.are_standardized(before)) and (
        context.is_normalizer(stage) or outer.are_standardized(key)
    ):
        return True
    one, other = inner.lines(before), outer.lines(key)
    shared = one.keys() & other.keys()
    if not shared or len(one) != len(other):
        return False
    pairs = [pair for at in shared for pair in zip(one[at], other[at], strict=True)]
    if any(abs(a - b) > 1e-2 * max(abs(a), abs(b), 0.1) for a, b in pairs):
        return False
    lines = [one[element] for element in shared]
    is_identity = all(abs(factor - 1) < 1e-2 and abs(offset) < 1e-2 for factor, offset in lines)
    undoes = all(abs(abs(factor) - 1) < 1e-2 and factor < 0 for factor, _ in lines)
    # TDX489 reports pixels that are divided by 255 twice.
    is_pixel = all(abs(255 * factor - 1) < 1e-2 for factor, _ in lines)
    return not (is_identity or undoes or is_pixel)
