"""Spaces of what VecEnv wrappers return, where their ``observation_space`` differs from it.

``VecNormalize`` keeps the space of the env inside, and ``VecFrameStack`` repeats each bound of a
vector instead of the vector of bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from tdx.stacks.sources import attributes_of


def returned_space(owner: Any, declared_inside: Space[Any], inside: Space[Any]) -> Space[Any]:
    """Return the space of the observations that a VecEnv wrapper returns.

    Args:
        owner: The wrapper.
        declared_inside: ``observation_space`` of the VecEnv inside.
        inside: Space of the observations that the VecEnv inside returns.
    """
    declared: Space[Any] = owner.observation_space
    attributes = attributes_of(owner)
    stacked = attributes.get("stacked_obs")
    if stacked is not None and hasattr(stacked, "n_stack"):
        return _stacked(stacked, inside, declared)
    if "obs_rms" in attributes and attributes.get("norm_obs") and "clip_obs" in attributes:
        return _normalized(inside, float(attributes["clip_obs"]), attributes.get("norm_obs_keys"))
    key = attributes.get("key")
    if isinstance(key, str) and isinstance(inside, spaces.Dict) and key in inside.spaces:
        return inside[key]
    return _inherited(declared, declared_inside, inside)


def _stacked(stacked: Any, inside: Space[Any], declared: Space[Any]) -> Space[Any]:
    parts = attributes_of(stacked).get("sub_stacked_observations")
    if parts is not None and isinstance(inside, spaces.Dict) and isinstance(declared, spaces.Dict):
        return spaces.Dict(
            {name: _stacked(each, inside[name], declared[name]) for name, each in parts.items()}
        )
    if not isinstance(inside, spaces.Box) or parts is not None:
        return declared
    count, axis = stacked.n_stack, stacked.repeat_axis
    low, high = (np.concatenate([each] * count, axis) for each in (inside.low, inside.high))
    # The first frames of an episode are filled up with zeros.
    return spaces.Box(np.minimum(low, 0), np.maximum(high, 0), dtype=inside.dtype.type)


def _normalized(inside: Space[Any], clip: float, keys: Any, name: str | None = None) -> Space[Any]:
    if isinstance(inside, spaces.Dict):
        return spaces.Dict(
            {part: _normalized(each, clip, keys, part) for part, each in inside.items()}
        )
    if not isinstance(inside, spaces.Box) or (keys is not None and name not in keys):
        return inside
    return spaces.Box(-clip, clip, inside.shape, np.float32)


def _inherited(declared: Space[Any], declared_inside: Space[Any], inside: Space[Any]) -> Space[Any]:
    """Return the space inside where a wrapper declares that it does not change it."""
    if declared == declared_inside:
        return inside
    parts = (declared, declared_inside, inside)
    if not all(isinstance(each, spaces.Dict) for each in parts):
        return declared
    mine, before, now = (dict(each.items()) for each in parts)  # type: ignore[attr-defined]
    known = before.keys() & now.keys()
    return spaces.Dict(
        {
            name: _inherited(each, before[name], now[name]) if name in known else each
            for name, each in mine.items()
        }
    )
