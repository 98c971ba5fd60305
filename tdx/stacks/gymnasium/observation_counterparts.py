"""Counterparts of the Gymnasium wrappers that change observations."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tdx.pipeline.values import Dtype, Value
from tdx.stacks.conversion import Counterpart, Missing
from tdx.stacks.gymnasium.places import ROUNDING, Place, make_pair, make_stage


def _require_box(wrapper: Any, place: Place) -> Missing | None:
    if place.key is None or not isinstance(wrapper.env.observation_space, spaces.Box):
        return Missing(
            "the observation is not a single array",
            "apply the transform to each entry, with in_keys",
        )
    return None


def stack_frames(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return the counterpart, ``CatFrames`` along a new dim."""
    problem = _require_box(wrapper, place)
    if problem is not None:
        return problem
    if wrapper.padding_type not in ("reset", "zero"):
        return Missing("it pads with an observation", "pad with padding_value, one number")
    keys: Value = (str(place.key),)
    dim = -len(wrapper.env.observation_space.shape) - 1
    padding: dict[str, Value] = {"padding": "constant"} if wrapper.padding_type == "zero" else {}
    return Counterpart(
        (
            make_stage("UnsqueezeTransform", dim=dim, in_keys=keys),
            make_stage("CatFrames", N=int(wrapper.stack_size), dim=dim, in_keys=keys, **padding),
        ),
        "stacks along a new dim",
    )


def flatten_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return the counterpart, ``FlattenObservation``."""
    space = wrapper.env.observation_space
    if isinstance(space, spaces.Discrete):
        return Counterpart(comment="tdx observes one-hot vectors: nothing to do")
    return _require_box(wrapper, place) or _flatten_array(space, place)


def _flatten_array(space: Any, place: Place) -> Counterpart:
    dims, keys = len(space.shape), (str(place.key),)
    if dims == 1:
        return Counterpart(comment="the observation is a vector already")
    if not dims:
        return Counterpart((make_stage("UnsqueezeTransform", dim=-1, in_keys=keys),), "a vector")
    stage = make_stage("FlattenObservation", first_dim=-dims, last_dim=-1, in_keys=keys)
    return Counterpart((stage,), "one vector")


def reshape_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return the counterpart, ``FlattenObservation``."""
    problem = _require_box(wrapper, place)
    if problem is not None:
        return problem
    before, after = wrapper.env.observation_space.shape, wrapper.observation_space.shape
    if before == after:
        return Counterpart(comment="the observation has this shape already")
    if len(after) == 1:
        return _flatten_array(wrapper.env.observation_space, place)
    return Missing(
        f"tdx does not reshape {before} to {after}",
        "combine FlattenObservation, UnsqueezeTransform, SqueezeTransform, PermuteTransform",
    )


def cast_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return the counterpart, ``DTypeCastTransform``."""
    problem = _require_box(wrapper, place)
    if problem is not None:
        return problem
    names = [np.dtype(each.observation_space.dtype).name for each in (wrapper.env, wrapper)]
    if names[0] == names[1]:
        return Counterpart(comment="the observation has this dtype already")
    dtypes = [Dtype.named(name) for name in names]
    if None in dtypes:
        return Missing(f"torch cannot cast {names[0]} to {names[1]}", "choose another dtype")
    stage = make_stage(
        "DTypeCastTransform", dtype_in=dtypes[0], dtype_out=dtypes[1], in_keys=(str(place.key),)
    )
    return Counterpart((stage,), f"{names[0]} to {names[1]}")


def rescale_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return the counterpart, ``ObservationNorm``."""
    problem = _require_box(wrapper, place)
    if problem is not None:
        return problem
    inner, outer = wrapper.env.observation_space, wrapper.observation_space
    ends = np.stack([inner.low, inner.high, outer.low, outer.high]).astype(np.float64)
    if inner.dtype.kind != "f" or not np.isfinite(ends).all():
        return Missing("the range is not finite, or of integers", "use ObservationNorm")
    scale = (ends[3] - ends[2]) / (ends[1] - ends[0])
    return _affine(place, ends[2] - ends[0] * scale, scale, "to another range")


def _affine(place: Place, loc: Any, scale: Any, comment: str, **kwargs: Value) -> Counterpart:
    pair = make_pair(loc, scale)
    stage = make_stage(
        "ObservationNorm", loc=pair[0], scale=pair[1], in_keys=(str(place.key),), **kwargs
    )
    return Counterpart((stage,), comment, ROUNDING)


def normalize_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return the counterpart, ``ObservationNorm``."""
    problem = _require_box(wrapper, place)
    if problem is not None:
        return problem
    if not wrapper.update_running_mean:
        mean = np.asarray(wrapper.obs_rms.mean, np.float64)
        deviation = np.sqrt(np.asarray(wrapper.obs_rms.var, np.float64) + wrapper.epsilon)
        comment = "its statistics, which it does not update"
        return _affine(place, mean, deviation, comment, standard_normal=True, eps=1e-12)
    return Missing(
        "VecNorm counts only observations, the wrapper starts with mean 0 and variance 1: the "
        "first steps of a run differ",
        "use VecNorm, whose statistics approach those of the wrapper",
        make_stage("VecNorm", in_keys=(str(place.key),), decay=1.0, eps=float(wrapper.epsilon)),
    )


def filter_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return the counterpart, ``SelectTransform``."""
    if not isinstance(wrapper.observation_space, spaces.Dict):
        return Missing("elements of a tuple have no names", "name keys with SelectTransform")
    names = tuple(wrapper.observation_space.spaces)
    return Counterpart((make_stage("SelectTransform", *names, *place.taken),), "keeps some entries")
