"""TDX408, TDX409 and TDX496 to TDX499: wrappers of images and of vector envs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdx.foundation.keys import format_key, split_key
from tdx.inspection.lint.rule import Violation, stack_rule
from tdx.inspection.lint.rules.stacks import EXAMPLE_IMAGE, EXAMPLE_IMPORTS
from tdx.inspection.lint.stack_context import Changes, Fact, StackContext, StageCall
from tdx.specs.leaf import shape_text

if TYPE_CHECKING:
    from tdx.foundation.keys import NestedKey

_TERMINAL = ("info", "terminal_observation")
_IMPORTS = """
import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnvWrapper, VecFrameStack, VecNormalize


def make():
    return make_vec_env("CartPole-v1", n_envs=2, env_kwargs={"max_episode_steps": 10})
"""


@stack_rule(
    "TDX496",
    "last observation of an episode is not transformed",
    "warning",
    why="""
    A VecEnv resets a sub-env whose episode ended, and returns the first observation of the next
    episode. The last one is `terminal_observation` of its info. The wrapper changes the
    observations, but not this one: replay buffers store it as the next observation, and the value
    of a truncated episode is computed from it.

    Transform `infos[i]["terminal_observation"]` in `step_wait` as well.
    """,
    python=f"""{_IMPORTS}

class Halved(VecEnvWrapper):
    def reset(self):
        return self.venv.reset() / 2

    def step_wait(self):
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations / 2, rewards, dones, infos


class Complete(Halved):
    def step_wait(self):
        observations, rewards, dones, infos = super().step_wait()
        for info in infos:
            if "terminal_observation" in info:
                info["terminal_observation"] = info["terminal_observation"] / 2
        return observations, rewards, dones, infos


def wrong():
    return Halved(make())


def right():
    return Complete(make())
""",
)
def terminal_observation_unchanged(context: StackContext) -> Iterator[Violation]:
    """Find stages that change observations and leave the last one of each episode unchanged."""
    is_known = any(key[:2] == _TERMINAL for key in _written(context, -1))
    for stage in context.stages:
        written = _written(context, stage.index)
        changed = [key for key in written if key[0] == "observation"]
        missing = [key for key in changed if (*_TERMINAL, *key[1:]) not in written]
        if is_known and missing:
            message = "it changes the observations, but not terminal_observation of the infos"
            hint = 'transform infos[i]["terminal_observation"] in step_wait as well'
            key: NestedKey = (*_TERMINAL, *missing[0][1:])
            yield Violation(message, hint, stage.index, key)
        is_known = is_known or any(key[:2] == _TERMINAL for key in written)


def _written(context: StackContext, index: int) -> set[tuple[str, ...]]:
    return {split_key(key) for key in context.fact(Changes, index).written["forward"]}


@stack_rule(
    "TDX497",
    "reward is normalized in evaluation",
    "warning",
    why="""
    The returns of an evaluation are sums of scaled rewards: they depend on the statistics of the
    training, and cannot be compared with those of another run. The rule applies with `--eval`, or
    `tdx.check(env, evaluation=True)`.

    Set `norm_reward = False` in Stable-Baselines3; remove `NormalizeReward` in Gymnasium, and
    `reward` from the in-keys of `VecNorm`.
    """,
    python=f"""{_IMPORTS}

def load(**arguments):
    env = VecNormalize(make(), training=False, **arguments)
    # Statistics of a training.
    env.obs_rms.count = 1000.0
    return env


def wrong():
    return load()


def right():
    return load(norm_reward=False)
""",
    options="--eval",
)
def reward_normalized_in_evaluation(context: StackContext) -> Iterator[Violation]:
    """Find running normalizations of the reward in an env for evaluation."""
    if not context.evaluation:
        return
    for stage in context.stages:
        switch = stage.arguments.get("norm_reward")
        normalizes = context.writes(stage, "reward") if switch is None else bool(switch)
        if normalizes and context.is_normalizer(stage):
            message = "it divides the rewards by a running standard deviation"
            hint = f"remove {stage.name}"
            if "norm_reward" in stage.arguments:
                hint = "set norm_reward = False"
            elif context.changed_observations(stage):
                hint = "normalize the observations only"
            yield Violation(message, hint, stage.index, "reward")


@stack_rule(
    "TDX498",
    "frames are stacked along the height or width of an image",
    "warning",
    why="""
    The wrapper joins the images of several steps along another axis than that of the channels: it
    makes one taller or wider image of them, in which a convolution does not compare two frames.

    Stack along the channels: the first axis of `[C, H, W]`, the last one of `[H, W, C]`.
    """,
    python=f"""{_IMPORTS}

class Image(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (3, 36, 40), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (3, 36, 40), np.uint8), {{}}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {{}}


def wrong():
    return VecFrameStack(make_vec_env(Image, n_envs=2), 4, channels_order="last")


def right():
    return VecFrameStack(make_vec_env(Image, n_envs=2), 4)
""",
    same_as=("TDX435",),
)
def stacked_along_wrong_axis(context: StackContext) -> Iterator[Violation]:
    """Find stacks of images along an axis that is not that of the channels."""
    lead = context.batch_dims
    for stage in context.stages:
        if not context.is_stack_of_frames(stage):
            continue
        inner, outer = context.leaves[stage.index], context.leaves[stage.index + 1]
        for key, before in inner.items():
            after = outer.get(key)
            if after is None or before.dtype != "uint8" or split_key(key)[0] != "observation":
                continue
            old, new = before.shape[lead:], after.shape[lead:]
            if len(old) != 3 or len(new) != 3:
                continue
            grown = [axis for axis in range(3) if new[axis] > old[axis]]
            if grown and old[grown[0]] != min(old):
                message = f"it stacks images {shape_text(old)} to {shape_text(new)}"
                yield Violation(message, "set channels_order, or remove it", stage.index, key)


class Overwritten(Fact):
    """Keys that a stage returned in the memory of their value of the previous step."""

    def __init__(self) -> None:
        self.keys: dict[NestedKey, None] = {}

    def add(self, call: StageCall) -> None:
        self.keys.update(dict.fromkeys(call.stage.overwritten))


@stack_rule(
    "TDX499",
    "observation is overwritten by the next step",
    "warning",
    why="""
    A step returns its observation in the array, or in the dict, that the previous step returned.
    Whoever kept the previous observation, such as a replay buffer or the loop that stores
    transitions, now has the new one twice.

    Return a copy of the array, or a new dict.
    """,
    python="""
import gymnasium as gym
import numpy as np


class Halved(gym.ObservationWrapper):
    buffer = np.zeros(4, np.float32)

    def observation(self, observation):
        self.buffer[:] = observation / 2
        return self.buffer


class Copied(Halved):
    def observation(self, observation):
        return super().observation(observation).copy()


def wrong():
    return Halved(gym.make("CartPole-v1"))


def right():
    return Copied(gym.make("CartPole-v1"))
""",
    facts=(Overwritten,),
)
def overwritten_observation(context: StackContext) -> Iterator[Violation]:
    """Find observations that the next step overwrites, and the level that reuses their memory."""
    indices = [-1, *(stage.index for stage in context.stages)]
    for key in context.fact(Overwritten, indices[-1]).keys:
        # The levels outside of the first one pass the same array on.
        index = indices[-1]
        for inner in reversed(indices):
            if key not in context.fact(Overwritten, inner).keys:
                break
            index = inner
        message = "a step returns it in the memory of the previous one, which it overwrites"
        yield Violation(message, "return a copy of it", None if index < 0 else index, key)


@stack_rule(
    "TDX408",
    "frame stacking adds a dimension to an image",
    "suggestion",
    why="""
    The wrapper stacks images along a new first dimension, `[4, 84, 84, 3]`, which convolutional
    networks take for a batch, and which Stable-Baselines3 does not recognize as an image: it
    flattens the observation without a message.

    Stack gray images, whose frames become channels, or stack along the channels.
    """,
    python=f"""{EXAMPLE_IMPORTS}

{EXAMPLE_IMAGE}
def wrong():
    return wrappers.FrameStackObservation(Image(), 4)


def right():
    return wrappers.FrameStackObservation(wrappers.GrayscaleObservation(Image()), 4)
""",
)
def stacked_images(context: StackContext) -> Iterator[Violation]:
    """Find stacks of images with channels."""
    for stage in context.stages:
        after = context.spec(stage.index, "observation")
        if after is None or not context.is_stack_of_frames(stage):
            continue
        last = context.spec(len(context.stages) - 1, "observation")
        if last is None or last.shape != after.shape:
            # A stage outside of it makes channels of the frames.
            continue
        if after.dtype == "uint8" and len(after.shape) == 4 + context.batch_dims:
            message = f"images of {format_key('observation')!r} become {shape_text(after.shape)}"
            hint = "put GrayscaleObservation inside of it, or stack along the channels"
            yield Violation(message, hint, stage.index, "observation")


@stack_rule(
    "TDX409",
    "image channels are in an unexpected order",
    "warning",
    why="""
    The wrapper resizes or converts images `[H, W, C]`, but gets `[C, H, W]`: it mixes the channels
    with the rows of the image without an error.

    Move the channels after the last wrapper that works on images.
    """,
    python=f"""{EXAMPLE_IMPORTS}

{EXAMPLE_IMAGE}
class Transposed(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        height, width, channels = env.observation_space.shape
        self.observation_space = spaces.Box(0, 255, (channels, height, width), np.uint8)

    def observation(self, observation):
        return observation.transpose(2, 0, 1)


class Smaller(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        first, second, *rest = env.observation_space.shape
        shape = (max(first // 2, 1), second // 2, *rest)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def observation(self, observation):
        return observation[: self.observation_space.shape[0] * 2 : 2, ::2][
            : self.observation_space.shape[0]
        ]


def wrong():
    return Smaller(Transposed(Image()))


def right():
    return Transposed(Smaller(Image()))
""",
)
def channels_first_too_early(context: StackContext) -> Iterator[Violation]:
    """Find stages that change the number of channels of an image with the channels first."""
    for stage in context.stages:
        before = context.spec(stage.index - 1, "observation")
        after = context.spec(stage.index, "observation")
        if before is None or after is None or before.dtype != "uint8":
            continue
        lead = context.batch_dims
        old, new = before.shape[lead:], after.shape[lead:]
        if len(old) != 3 or len(new) != 3 or old[0] not in (1, 3, 4) or old[-1] in (1, 3, 4):
            continue
        if new[-1] == old[-1] and new[0] != old[0] and new[1] != old[1]:
            message = f"it maps {shape_text(old)} to {shape_text(new)}: the channels come first"
            hint = "move the channels after this stage"
            yield Violation(message, hint, stage.index, "observation")
