"""The codecs of one env: of what it observes, takes and rewards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium
from gymnasium import spaces

from tdx.envs.gym.codec import Codec, Encode, Layout
from tdx.envs.gym.containers import action_codec, observation_codec
from tdx.envs.gym.spaces import codec_of
from tdx.envs.gym.values import WrongValueError
from tdx.errors import SpecError, Where
from tdx.specs import Composite

_SPACE = "reward_space"
_RESULTS = ("reward", "done", "terminated", "truncated", "next", "_reset")


@dataclass(frozen=True, slots=True)
class EnvCodecs:
    """The codecs of one env.

    Args:
        observation: ``encode`` gives the root's entries by key.
        action: ``decode`` takes the whole TensorDict.
        reward: of an env that declares its reward to be an array; otherwise a number.
    """

    observation: Codec
    action: Codec
    reward: Codec | None


def env_codecs(env: Any, name: str, layout: Layout) -> EnvCodecs:
    """The codecs of an env, or of a vector env.

    Args:
        env: a Gymnasium env.
        name: the env, as the user named it.
        layout: whether it is a vector env, and how discrete values are held.

    Raises:
        SpecError: an entry of the observation has the name of one of tdx's own.
    """
    prefix = "" if layout.rows is None else "single_"
    observation = observation_codec(getattr(env, f"{prefix}observation_space"), layout)
    action = action_codec(getattr(env, f"{prefix}action_space"), layout)
    _check_keys(root_spec(observation), root_spec(action), name)
    space = reward_space_of(env)
    if space is None:
        return EnvCodecs(observation, action, None)
    reward = replace(codec_of(space, layout), encode=reward_encoder(space, layout))
    return EnvCodecs(observation, action, reward)


def reward_space_of(env: Any) -> spaces.Box | None:
    """The space of one env's rewards where they are arrays; ``None``: rewards are numbers.

    Args:
        env: an env or a vector env. The attribute ``reward_space`` may be on any wrapper; on a
            vector env it may be batched or that of a single env.
    """
    if not isinstance(env, gymnasium.vector.VectorEnv):
        space = env.get_wrapper_attr(_SPACE) if env.has_wrapper_attr(_SPACE) else None
    else:
        base = env.unwrapped
        space = getattr(base, f"single_{_SPACE}", None) or getattr(base, _SPACE, None)
    if not isinstance(space, spaces.Box) or not space.shape:
        return None
    rows = getattr(env, "num_envs", None)
    if rows is not None and len(space.shape) > 1 and space.shape[0] == rows:
        return spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)
    return space


def reward_encoder(space: spaces.Box, layout: Layout) -> Encode:
    """What turns rewards of a space into a tensor; ``WrongValueError`` names the key ``reward``."""
    encode_value = codec_of(space, layout).encode

    def encode(reward: Any) -> Any:
        try:
            return encode_value(reward)
        except WrongValueError as wrong:
            wrong.hint = "fix the env, or its reward_space: each reward must fit the space"
            raise wrong.below("reward") from None

    return encode


def root_spec(codec: Codec) -> Composite:
    """The spec of a codec of root entries."""
    assert isinstance(codec.spec, Composite)
    return codec.spec


def _check_keys(observation: Composite, action: Composite, name: str) -> None:
    taken = {str(key) for key in action.keys()}
    for key in observation.keys():
        if key in _RESULTS or key in taken:
            raise SpecError(
                f"the env observes an entry {key!r}, which is the key of its "
                f"{'action' if key in taken else 'result'}",
                hint="rename it with gymnasium.wrappers.TransformObservation",
                where=Where(env=name),
            )
