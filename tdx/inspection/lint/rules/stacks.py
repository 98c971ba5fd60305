"""TDX40x, TDX410 and TDX495: what the stages of any library do in steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tdx.foundation.keys import NestedKey
from tdx.inspection.lint.rule import Violation, stack_rule
from tdx.inspection.lint.stack_context import Fact, StackContext, StageCall, step_limit

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.inspection.value_stats import ValueViolation
    from tdx.stacks import StageInfo

EXAMPLE_IMPORTS = """
import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers
"""
EXAMPLE_IMAGE = """\
class Image(gym.Env):
    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (12, 12, 3), np.uint8), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}

"""


class WrittenShapes(Fact):
    """Shapes of the values that a stage wrote last."""

    def __init__(self) -> None:
        self.shapes: dict[NestedKey, tuple[int, ...]] = {}

    def add(self, call: StageCall) -> None:
        if call.stage.direction == "forward":
            for key, version in call.stage.written.items():
                shape = getattr(version.value, "shape", None)
                if shape is not None:
                    self.shapes[key] = tuple(shape)


@stack_rule(
    "TDX401",
    "values violate the space of a wrapper",
    "error",
    why="""
    A wrapper returns values that are not in its `observation_space` or `action_space`: another
    dtype, another shape, or numbers outside of the bounds. Vector envs copy observations into an
    array of the space's dtype, so the values are cast or truncated there, and networks are created
    for the wrong shape.

    The finding names the innermost wrapper whose values violate its space. Set the space in its
    constructor.
    """,
    python=f"""{EXAMPLE_IMPORTS}

class Scaled(gym.ObservationWrapper):
    def observation(self, observation):
        return observation / 2


class Declared(Scaled):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(-1.0, 1.0, (48,), np.float64)

    def observation(self, observation):
        return np.eye(48)[observation]


def wrong():
    return Scaled(gym.make("CliffWalking-v1"))


def right():
    return Declared(gym.make("CliffWalking-v1"))
""",
    facts=(WrittenShapes,),
)
def values_violate_space(context: StackContext) -> Iterator[Violation]:
    """Find values outside of the specs that the spaces declare."""
    for violation in context.violations:
        if violation.kind in ("stage", "env") and not _is_intended(context, violation):
            yield Violation(
                violation.message,
                violation.hint or "set the space in the constructor of the wrapper",
                violation.index,
                violation.key,
                spec_violation=violation.code,
            )


def _is_intended(context: StackContext, violation: ValueViolation) -> bool:
    """Return True for a shape that an outer stage corrects, or that the env declares."""
    if violation.code != "shape" or context.stack.chain_env is not None:
        # The transforms of a chain declare their specs themselves.
        return False
    index = -1 if violation.index is None else violation.index
    key = violation.key
    if key == "reward":
        # Gymnasium has no space of rewards; multi-objective envs declare one.
        levels: Sequence[Any] = getattr(context.stack, "levels", ())
        if any("reward_space" in dir(level.owner) for level in levels):
            return True
    spec = None if key is None else context.spec(index, key)
    # Some wrappers write their own space into the env inside.
    return spec is not None and any(
        context.fact(WrittenShapes, stage.index).shapes.get(spec.key) == tuple(spec.shape)
        and context.spec(stage.index, spec.key) == spec
        for stage in context.stages[index + 1 :]
    )


class HiddenTruncation(Fact):
    """Number of steps in which a stage cleared ``truncated``."""

    def __init__(self) -> None:
        self.times = 0

    def add(self, call: StageCall) -> None:
        if call.stage.direction == "forward":
            for key, old, new in call.tensors():
                if key == "truncated" and old.shape == new.shape:
                    self.times += bool((old.bool() & ~new.bool()).any())


@stack_rule(
    "TDX402",
    "wrapper has no effect",
    "suggestion",
    why="""
    By its arguments and specs, the wrapper returns what it gets: a limit above another limit, a
    scaling to the range that the env has, a cast to the same dtype, a skip of one frame.

    Remove it, or check its arguments. A wrapper that only changed nothing in the steps of the
    check, such as a clip that no value reached, is no finding: a note names it.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def wrong():
    env = gym.make("CartPole-v1", max_episode_steps=20)
    return wrappers.TimeLimit(env, max_episode_steps=40)


def right():
    return gym.make("CartPole-v1", max_episode_steps=40)
""",
    facts=(HiddenTruncation,),
)
def wrapper_without_effect(context: StackContext) -> Iterator[Violation]:
    """Find stages whose definition shows that they change nothing."""
    limit: int | None = None
    for stage in context.stages:
        if stage.index in context.declared:
            continue
        own = step_limit(stage)
        if context.fact(HiddenTruncation, stage.index).times:
            limit = None
        if own is not None:
            if limit is not None and own >= limit:
                message = f"an inner wrapper ends the episode after {limit} steps, before {own}"
                hint = "pass max_episode_steps to gymnasium.make instead"
                yield Violation(message, hint, stage.index, "truncated")
            limit = own if limit is None else min(limit, own)
        elif (reason := _why_without_effect(context, stage)) is not None:
            yield Violation(reason, "remove it, or check its arguments", stage.index)


def untriggered_stages(context: StackContext) -> Iterator[StageInfo]:
    """Yield the stages that changed nothing in the steps, although they may in others."""
    for stage in context.stages if context.steps else ():
        if (
            stage.index not in context.declared
            and step_limit(stage) is None
            and stage.name not in _PASSIVE
            and not _changes(context, stage)
            and context.leaves[stage.index] == context.leaves[stage.index + 1]
            # A stage that counts or learns may act later.
            and not context.after.get(stage.index)
            and _why_without_effect(context, stage) is None
        ):
            yield stage


def _why_without_effect(context: StackContext, stage: StageInfo) -> str | None:
    """Return why a stage returns what it gets; ``None`` if that is not certain."""
    if not context.steps or _changes(context, stage):
        return None
    has_equal_specs = context.leaves[stage.index] == context.leaves[stage.index + 1]
    if stage.name in _IDENTITY_OF_EQUAL_SPECS and has_equal_specs:
        return "the specs before and after it are equal, so it returns what it gets"
    for names, argument, neutral in _NEUTRAL_ARGUMENTS:
        if stage.name in names and stage.arguments.get(argument) == neutral:
            return f"with {argument}={neutral} it returns what it gets"
    return None


def _changes(context: StackContext, stage: StageInfo) -> bool:
    changes = context.changes(stage)
    return changes.acts or changes.drops or any(changes.written.values())


_IDENTITY_OF_EQUAL_SPECS = (
    *("RescaleAction", "RescaleObservation", "DtypeObservation", "ResizeObservation"),
    *("ReshapeObservation", "DoubleToFloat", "DTypeCastTransform", "Resize"),
)
"""Stages that are defined by the specs before and after them."""
_NEUTRAL_ARGUMENTS: tuple[tuple[tuple[str, ...], str, float], ...] = (
    (("MaxAndSkipEnv", "MaxAndSkipObservation"), "skip", 1),
    (("FrameSkipTransform",), "frame_skip", 1),
    (("NoopResetEnv",), "noop_max", 0),
    (("StickyAction",), "repeat_action_probability", 0),
    (("VecFrameStack",), "n_stack", 1),
    (("CatFrames",), "N", 1),
)
"""Names of stages, an argument, and its value with which they return what they get."""


_PASSIVE = (
    *("HumanRendering", "RecordVideo", "RenderCollection", "SyncVectorEnv", "Autoreset"),
    *("VecCheckNan", "VecVideoRecorder", "PassiveEnvChecker", "OrderEnforcing", "DummyVecEnv"),
    # Only made of other wrappers, which are stages of their own.
    "AtariWrapper",
)
"""Wrappers whose effect is not in the values of a step."""


class DeclaredReads(Fact):
    """Keys that a stage declares to read; empty: not declared."""

    def __init__(self) -> None:
        self.keys: set[NestedKey] = set()

    def add(self, call: StageCall) -> None:
        if call.stage.direction == "forward":
            self.keys.update(version.key for version in call.stage.read)


@stack_rule(
    "TDX403",
    "observations are normalized before they are stacked",
    "suggestion",
    why="""
    Running statistics change with every step, so the frames of one stack are normalized with
    different statistics, and the same frame has other values in the next stack. The difference is
    large in the first steps of a training and small after many, so some training code uses this
    order on purpose: the rule is a suggestion.

    Stack first, then normalize.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def wrong():
    env = wrappers.NormalizeObservation(gym.make("CartPole-v1", max_episode_steps=20))
    return wrappers.FrameStackObservation(env, 4)


def right():
    env = wrappers.FrameStackObservation(gym.make("CartPole-v1", max_episode_steps=20), 4)
    return wrappers.NormalizeObservation(env)
""",
    facts=(DeclaredReads,),
)
def normalized_before_stacked(context: StackContext) -> Iterator[Violation]:
    """Find running normalizations of observations inside a stack of frames."""
    for stage in context.stages:
        # Statistics that stand still are the same for all frames.
        if not context.is_normalizer(stage) or not context.learns(stage):
            continue
        normalized = context.changed_observations(stage)
        for stack in context.stages[stage.index + 1 :]:
            reads = context.fact(DeclaredReads, stack.index).keys
            keys = [key for key in normalized if key in reads]
            if keys and context.is_stack_of_frames(stack):
                message = f"stage {stack.index} ({stack.name}) stacks its results of several steps"
                hint = f"move {stage.name} outside of {stack.name}"
                yield Violation(message, hint, stage.index, keys[0])
                break


@stack_rule(
    "TDX404",
    "normalizer keeps learning in evaluation",
    "warning",
    why="""
    The running statistics change while the policy is evaluated, so the observations are not those
    of training, and two evaluations of one policy differ. The rule applies with `--eval`, or
    `tdx.check(env, evaluation=True)`.

    Load the statistics of training and stop their updates: `env.update_running_mean = False` in
    Gymnasium, `training = False` in Stable-Baselines3, `freeze()` in TorchRL and tdx.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def wrong():
    return wrappers.NormalizeObservation(gym.make("CartPole-v1", max_episode_steps=20))


def right():
    env = wrappers.NormalizeObservation(gym.make("CartPole-v1", max_episode_steps=20))
    # Statistics of a training.
    env.obs_rms.mean, env.obs_rms.var, env.obs_rms.count = np.zeros(4), np.ones(4), 1000.0
    env.update_running_mean = False
    return env
""",
    options="--eval",
    same_as=("TDX484",),
)
def learning_in_evaluation(context: StackContext) -> Iterator[Violation]:
    """Find running statistics that change in an env for evaluation."""
    if not context.evaluation:
        return
    for stage in context.stages:
        writes = context.changes(stage).written["forward"]
        # Statistics that are only logged change nothing.
        if writes and context.is_normalizer(stage) and context.learns(stage):
            key = "reward" if context.writes(stage, "reward") else "observation"
            message = "its running statistics changed in the steps of the check"
            names = (*stage.arguments, *context.after[stage.index])
            how = "call its freeze(), or use ObservationNorm with the statistics of training"
            if switches := [name for name in names if name == "training" or "update" in name]:
                how = f"{switches[0].lstrip('_')} = False"
            hint = f"stop the updates: {how}"
            yield Violation(message, hint, stage.index, key)


class RewardPairs(Fact):
    """Reward before and after a stage, of each step of the first sub-env.

    A stage that did not write the reward passed it on.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[float, float]] = []

    def add(self, call: StageCall) -> None:
        before = call.before.get("reward")
        if call.stage.direction != "forward" or before is None or len(self.pairs) > 10 * _MIN_PAIRS:
            return
        after = call.stage.written.get("reward", before)
        old, new = (version.value.flatten()[:1].tolist() for version in (before, after))
        if old and new:
            self.pairs.append((float(old[0]), float(new[0])))

    @property
    def is_scaled(self) -> bool:
        """True if every reward was multiplied by the same factor other than 0 and 1."""
        pairs = [(before, after) for before, after in self.pairs if abs(before) > 1e-6]
        if len(pairs) < _MIN_PAIRS:
            return False
        factors = [after / before for before, after in pairs]
        low, high = min(factors), max(factors)
        if abs(high - low) > 1e-5 * abs(high) or min(abs(high), abs(high - 1)) <= 1e-6:
            return False
        # A clip, sign or binarization has a factor too if all rewards of one sign are equal. Only a
        # scaling has the same one, other than 0 and 1, for different values of one sign.
        sides = ([abs(x) for x, _ in pairs if (x > 0) is side] for side in (True, False))
        return any(side and max(side) > 1.001 * min(side) for side in sides)


_MIN_PAIRS = 5
"""Rewards that are compared before a stage counts as one that scales them."""
_MIN_LOST = 10
"""Rewards other than 0 that a stage must get before a reward of 0 is a finding."""


@stack_rule(
    "TDX405",
    "reward is scaled twice",
    "warning",
    why="""
    Two wrappers scale the reward, by a constant or by running statistics. A normalization undoes a
    constant factor before it, and a factor after it undoes the normalization.

    Keep one of the two wrappers.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def wrong():
    env = gym.make("Pendulum-v1", max_episode_steps=20)
    env = wrappers.TransformReward(env, lambda reward: 0.1 * reward)
    return wrappers.NormalizeReward(env)


def right():
    return wrappers.NormalizeReward(gym.make("Pendulum-v1", max_episode_steps=20))
""",
    same_as=("TDX425", "TDX493"),
    facts=(RewardPairs,),
)
def reward_scaled_twice(context: StackContext) -> Iterator[Violation]:
    """Find two stages that multiply the reward."""
    first = None
    for stage in context.stages:
        normalizes = context.is_normalizer(stage) and context.writes(stage, "reward")
        if not (normalizes or context.fact(RewardPairs, stage.index).is_scaled):
            continue
        if first is not None:
            message = f"stage {first.index} ({first.name}) scales the reward already"
            hint = "remove one of the two"
            yield Violation(message, hint, stage.index, "reward", related=first.index)
        first = stage


@stack_rule(
    "TDX495",
    "reward is 0 after a stage",
    "suggestion",
    why="""
    The env returned rewards other than 0 in at least half of the steps of the check, and after the
    stage the reward was 0 in all of them: a clip whose range does not contain the rewards, a
    binarization of negative rewards, or a cast to integers. A policy has nothing to learn from.

    Choose a range that contains the rewards, or scale them into it first. The steps of the check
    are few and have random actions: if the stage keeps only rare rewards, such as that of a goal or
    of a whole episode, ignore this finding.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def wrong():
    # The rewards of Pendulum are negative.
    return wrappers.ClipReward(gym.make("Pendulum-v1", max_episode_steps=20), 0.0, 1.0)


def right():
    return wrappers.ClipReward(gym.make("Pendulum-v1", max_episode_steps=20), -5.0, 0.0)
""",
    # A scale of 0, and a clip before a scaling, are causes that these rules name.
    same_as=("TDX421", "TDX447"),
    facts=(RewardPairs,),
)
def zero_reward(context: StackContext) -> Iterator[Violation]:
    """Find stages that get rewards and return 0."""
    for stage in context.stages:
        pairs = context.fact(RewardPairs, stage.index).pairs
        lost = [before for before, _ in pairs if before]
        is_zero = not any(after for _, after in pairs)
        if not is_zero or len(lost) < max(_MIN_LOST, len(pairs) / 2):
            continue
        outer = (context.fact(RewardPairs, at.index).pairs for at in context.stages)
        if any(len({after for _, after in known}) > 1 for known in [*outer][stage.index + 1 :]):
            # An outer stage adds a reward of its own.
            continue
        low, high = f"{min(lost):.4g}", f"{max(lost):.4g}"
        yield Violation(
            f"the reward is 0 in each of {len(pairs)} steps; before this stage it was "
            f"{low if low == high else f'{low} to {high}'}",
            "choose a range that contains the rewards, or scale them into it first",
            stage.index,
            "reward",
        )


@stack_rule(
    "TDX406",
    "wrapper hides the truncation of an episode",
    "warning",
    why="""
    A step limit ends the episode by `truncated`, and the wrapper returns `truncated=False`. If it
    returns `terminated=True` instead, the value of the last state is not bootstrapped and the
    policy learns that the episode ends there by itself. If it returns neither, the loop steps an
    env whose episode has ended.

    Return both flags as they are.
    """,
    python=f"""{EXAMPLE_IMPORTS}

class Merged(gym.Wrapper):
    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, False, info


def wrong():
    return Merged(gym.make("Pendulum-v1", max_episode_steps=10))


def right():
    return gym.make("Pendulum-v1", max_episode_steps=10)
""",
    facts=(HiddenTruncation,),
)
def truncation_hidden(context: StackContext) -> Iterator[Violation]:
    """Find stages that clear ``truncated``."""
    for stage in context.stages:
        times = context.fact(HiddenTruncation, stage.index).times
        # A vector env clears the flags of the sub-envs that it resets.
        if times and "num_envs" not in stage.arguments:
            message = f"it cleared truncated {times} time{'s' if times > 1 else ''}"
            yield Violation(message, "return truncated unchanged", stage.index, "truncated")


@stack_rule(
    "TDX407",
    "episode statistics do not see the step limit",
    "warning",
    why="""
    The wrapper records an episode when it ends, and a step limit outside of it ends episodes that
    it does not see: their statistics are missing, and the next episode adds to them.

    Record outside of the step limit.
    """,
    python=f"""{EXAMPLE_IMPORTS}

def wrong():
    env = wrappers.RecordEpisodeStatistics(gym.make("Pendulum-v1").unwrapped)
    return wrappers.TimeLimit(env, 10)


def right():
    env = wrappers.TimeLimit(gym.make("Pendulum-v1").unwrapped, 10)
    return wrappers.RecordEpisodeStatistics(env)
""",
)
def statistics_inside_limit(context: StackContext) -> Iterator[Violation]:
    """Find recorders of episodes inside a step limit that is the lowest one."""
    limits = [(step_limit(stage), stage) for stage in context.stages]
    for stage in context.stages:
        if stage.name not in RECORDERS:
            continue
        inner = [
            limit for limit, limiter in limits if limit is not None and limiter.index < stage.index
        ]
        for limit, limiter in limits:
            if (
                limit is not None
                and limiter.index > stage.index
                and limit < min(inner, default=1e9)
            ):
                message = f"stage {limiter.index} ({limiter.name}) ends episodes outside of it"
                hint = f"move {stage.name} outside of {limiter.name}"
                yield Violation(message, hint, stage.index, ("info", "episode"))


RECORDERS = ("RecordEpisodeStatistics", "Monitor", "VecMonitor")
"""Wrappers that add the return and length of an episode to its last info."""


class RowSteps(Fact):
    """Steps of the sub-envs of a vector env, as the outermost level returns them.

    Args:
        total: Number of steps of all sub-envs.
        resets: Number of them that only reset a sub-env.
    """

    def __init__(self) -> None:
        self.total = self.resets = 0
        self._ended: Tensor | None = None

    def add(self, call: StageCall) -> None:
        trace, ended = call.trace, self._ended
        if call.stage.direction != "forward":
            return
        self._ended = None
        if "truncated" not in trace.after(len(call.context.leaves) - 1):
            # Its sub-envs are reset within the step that ends the episode.
            return
        done, reward = (trace.env_tensordict.get(name, None) for name in ("done", "reward"))
        if done is None or not done.ndim:
            return
        self._ended = done
        if trace.phase == "step":
            self.total += done.numel()
            env = next((stage for stage in trace.stages if stage.index < 0), None)
            given = None if env is None else env.written.get("reward")
            base = reward if given is None else given.value
            if ended is not None and base is not None and base.shape == ended.shape:
                # A vector env returns the reward 0 for a row that it resets.
                self.resets += int((ended & (base == 0)).sum())


@stack_rule(
    "TDX410",
    "normalizer learns from automatic resets",
    "warning",
    why="""
    After the end of an episode, a vector env uses the next step to reset the sub-env and returns
    the reward 0. The wrapper counts these rewards, so its statistics differ from those of the same
    wrapper inside each sub-env.

    Skip the rows that ended in the previous step.
    """,
    python=f"""{EXAMPLE_IMPORTS}
from gymnasium.wrappers.utils import RunningMeanStd


class CountsAll(gym.vector.VectorWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.rms = RunningMeanStd(shape=())

    def step(self, actions):
        observation, reward, terminated, truncated, info = self.env.step(actions)
        self.rms.update(reward)
        scaled = reward / np.sqrt(self.rms.var + 1e-8)
        return observation, scaled, terminated, truncated, info


def make():
    envs = [lambda: gym.make("Pendulum-v1", max_episode_steps=5)] * 2
    return gym.vector.SyncVectorEnv(envs)


def wrong():
    return CountsAll(make())


def right():
    return wrappers.vector.NormalizeReward(make())
""",
    facts=(RowSteps,),
)
def learning_from_resets(context: StackContext) -> Iterator[Violation]:
    """Find running statistics of rewards that count the rows that are only reset."""
    for stage in context.stages:
        rows = context.fact(RowSteps, stage.index)
        if stage.rows is not None or not context.is_normalizer(stage) or not rows.resets:
            continue
        if context.writes(stage, "reward") and context.counted(stage) == rows.total:
            message = f"it counted {rows.resets} rewards of automatic resets"
            hint = "skip the rows that ended in the previous step"
            yield Violation(message, hint, stage.index, "reward")
