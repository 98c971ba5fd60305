"""TDX408 and TDX409: wrappers of other libraries that work on images."""

from __future__ import annotations

from collections.abc import Iterator

from tdx.inspection.leaf import shape_text
from tdx.inspection.lint.rule import Violation, stack_rule
from tdx.inspection.lint.rules.stacks import EXAMPLE_IMPORTS
from tdx.inspection.lint.stack_context import StackContext
from tdx.keys import format_key


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

class Image(gym.Env):
    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (12, 12, 3), np.uint8), {{}}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {{}}


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

class Image(gym.Env):
    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (12, 12, 3), np.uint8), {{}}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {{}}


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
