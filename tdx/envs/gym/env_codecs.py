"""The codecs of one env: of what it observes, takes and rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from tdx.envs.gym.codec import Codec, Layout
from tdx.envs.gym.containers import action_codec, observation_codec
from tdx.envs.gym.spaces import codec_of
from tdx.errors import SpecError, Where
from tdx.specs import Composite

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
    space = getattr(env.unwrapped, "reward_space", None)
    reward = None
    if isinstance(space, spaces.Box) and space.shape:
        reward = codec_of(space, layout)
    return EnvCodecs(observation, action, reward)


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
