"""Transforms of tdx that compute what a Gymnasium wrapper computes: one table.

A counterpart is listed only if its values are those of the wrapper, bit for bit or within the
tolerance that it declares. Everything else is ``Missing``, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium import spaces, wrappers

from tdx.pipeline import StageConfig
from tdx.pipeline.values import Dtype, Value
from tdx.stacks.conversion import Counterpart, Missing

ROUNDING = 1e-5
"""Tolerance of arithmetic that Gymnasium computes in another dtype or order."""


@dataclass(slots=True)
class Place:
    """Where a wrapper is in the chain.

    Args:
        key: Key of the observation below it; ``None`` if it has several entries.
        limit: Step limit with which its env is registered.
        only_defaults: True if only wrappers of ``gymnasium.make`` are below it.
        has_limit: True if the ``TimeLimit`` of ``gymnasium.make`` is below it.
        taken: Keys that the stages below it write.
    """

    key: str | None
    limit: int | None
    only_defaults: bool
    has_limit: bool = False
    taken: list[str] = field(default_factory=list)

    def new_key(self, name: str) -> str:
        """Return a key that no stage writes yet, and take it."""
        count = sum(each == name or each.startswith(f"{name}_") for each in self.taken)
        key = name if not count else f"{name}_{count + 1}"
        self.taken.append(key)
        return key


def make_stage(_name: str, *args: Value, **kwargs: Value) -> StageConfig:
    """Return a stage from a name and arguments.

    Example:
        >>> make_stage("StepCounter", max_steps=5).kwargs
        {'max_steps': 5}
    """
    return StageConfig(_name, args, kwargs)


def numbers(array: Any) -> Value:
    """Return an array as a nested tuple, or as one number if all elements are equal.

    Example:
        >>> numbers(np.array([2.0, 2.0])), numbers(np.array([[1.0], [2.0]]))
        (2.0, ((1.0,), (2.0,)))
    """
    array = np.asarray(array)
    if array.size and bool((array == array.flat[0]).all()):
        return array.flat[0].item()
    return as_tuple(array.tolist())


def as_tuple(value: Any) -> Value:
    """Return a nested list as a nested tuple."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def make_pair(loc: Any, scale: Any) -> tuple[Value, Value]:
    """Return both as numbers, or both as nested tuples."""
    pair = numbers(loc), numbers(scale)
    if any(isinstance(each, tuple) for each in pair):
        return as_tuple(np.asarray(loc).tolist()), as_tuple(np.asarray(scale).tolist())
    return pair


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
        found = _affine(place, mean, deviation, comment, standard_normal=True, eps=1e-12)
        cast = cast_observation(wrapper, place)
        if isinstance(cast, Missing) or wrapper.env.observation_space.dtype.kind != "f":
            return found
        # It computes in the dtype of the env, and returns float32.
        return replace(found, stages=(*found.stages, *cast.stages))
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


Find = Callable[[Any, Place], Counterpart | Missing]


def find_counterpart(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return the counterpart of a wrapper, or why it has none.

    A subclass of a wrapper may compute anything, so only the class itself is looked up.

    Args:
        wrapper: The wrapper.
        place: Where it is in the chain.

    Example:
        >>> import gymnasium
        >>> from gymnasium import wrappers
        >>> env = wrappers.FrameStackObservation(gymnasium.make("Pendulum-v1"), 3)
        >>> [each.name for each in find_counterpart(env, Place("observation", None, True)).stages]
        ['UnsqueezeTransform', 'CatFrames']
    """
    find = COUNTERPARTS.get(type(wrapper))
    if find is not None:
        return find(wrapper, place)
    missing = MISSING.get(type(wrapper))
    if missing is not None:
        return Missing(*missing)
    return Missing("no counterpart of this class is known", "write it as a transform of tdx")


# Env and episodes


def _default(wrapper: Any, place: Place) -> Counterpart:
    return Counterpart(comment="part of the env")


def _invisible(wrapper: Any, place: Place) -> Counterpart:
    return Counterpart(comment="changes no value: left out", observable=False)


def _time_limit(wrapper: Any, place: Place) -> Counterpart:
    steps = int(wrapper._max_episode_steps)
    if place.has_limit or not place.only_defaults:
        key = place.new_key("step_count")
        kwargs: dict[str, Value] = {} if key == "step_count" else {"step_count_key": key}
        stage = make_stage("StepCounter", max_steps=steps, **kwargs)
        return Counterpart((stage,), f"truncates after {steps:,} steps")
    place.has_limit = True
    # `...` removes the setting: it is the registered limit.
    setting: Any = ... if steps == place.limit else steps
    comment = "part of the env" if setting is ... else "a setting of the env"
    return Counterpart(comment=comment, env={"kwargs": {"max_episode_steps": setting}})


def _statistics(wrapper: Any, place: Place) -> Counterpart:
    return find_statistics(place, getattr(wrapper, "_stats_key", "episode"))


def find_statistics(place: Place, path: str) -> Counterpart:
    """Return the counterpart of a wrapper that writes return and length of an episode.

    Args:
        place: Where it is in the chain.
        path: Entry of ``info`` that it writes, with ``r`` and ``l``.
    """
    total, count = place.new_key("episode_reward"), place.new_key("step_count")
    kwargs: dict[str, Value] = {} if count == "step_count" else {"step_count_key": count}
    return Counterpart(
        (
            make_stage("RewardSum", in_keys=("reward",), out_keys=(total,)),
            make_stage("StepCounter", **kwargs),
        ),
        f"info[{path!r}] is in the entries {total} and {count} of each step",
        recorded={total: (path, "r"), count: (path, "l")},
    )


def _rendered(wrapper: Any, place: Place) -> Counterpart | Missing:
    arguments: Mapping[str, Any] = getattr(wrapper, "_saved_kwargs", {})
    if not place.only_defaults or not arguments.get("render_only", True):
        return Missing(
            "from_pixels renders the env without wrappers, as its only observation",
            "set from_pixels: true in the env, and rename keys with RenameTransform",
        )
    env = {"from_pixels": True, "kwargs": {"render_mode": ...}}
    return Counterpart(comment="a setting of the env", env=env, key="pixels")


# Rewards


def _clip_reward(wrapper: Any, place: Place) -> Counterpart | Missing:
    arguments: Mapping[str, Any] = getattr(wrapper, "_saved_kwargs", {})
    ends: list[Any] = [arguments.get(name) for name in ("min_reward", "max_reward")]
    if any(np.size(end) != 1 for end in ends):
        return Missing("its bounds are arrays", "clip with one number")
    low, high = (None if end is None else float(np.asarray(end).item()) for end in ends)
    stage = make_stage("RewardClipping", clamp_min=low, clamp_max=high)
    return Counterpart((stage,), "clips rewards")


_FAR = 2.0**20
_PROBES = (*np.linspace(-3, 3, 61), *(sign * 10.0**power for sign in (-1, 1) for power in range(6)))


def _transform_reward(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Recognize a linear function or a clip by its values at many rewards."""
    function = wrapper.func
    nothing = Missing(
        "its function is neither linear nor a clip",
        "write it as a transform of tdx, and name it in the file: module:Name",
    )
    try:
        values = [float(function(float(probe))) for probe in _PROBES]
        zero, low, high = (float(function(each)) for each in (0.0, -_FAR, _FAR))
    except Exception:
        return nothing
    scale = (high - zero) / _FAR
    linear = [probe * scale + zero for probe in _PROBES]
    if scale and np.allclose(values, linear, rtol=1e-9, atol=1e-9):
        stage = make_stage("RewardScaling", loc=zero, scale=scale)
        return Counterpart((stage,), "its function is linear at 73 rewards", ROUNDING)
    if values == [min(max(probe, low), high) for probe in _PROBES]:
        stage = make_stage(
            "RewardClipping",
            clamp_min=None if low == -_FAR else low,
            clamp_max=None if high == _FAR else high,
        )
        return Counterpart((stage,), "its function clips 73 rewards")
    return nothing


# Actions


def _rescale_action(wrapper: Any, place: Place) -> Counterpart | Missing:
    inner, outer = wrapper.env.action_space, wrapper.action_space
    if not bool(np.isfinite(inner.low).all() and np.isfinite(inner.high).all()):
        return Missing("the range of the env is not finite", "bound the action space of the env")
    scale = (inner.high - inner.low) / (outer.high - outer.low)
    loc = inner.low - outer.low * scale
    ends = numbers(outer.low), numbers(outer.high)
    kwargs: dict[str, Value] = {}
    if ends == (0.0, 1.0):
        kwargs = {"standard_normal": False}
    elif ends != (-1.0, 1.0):
        kwargs = dict(zip(("loc", "scale"), make_pair(loc, scale), strict=True))
    actions = np.linspace(outer.low, outer.high, 101, dtype=outer.dtype)
    exact = np.stack([wrapper.action(each) for each in actions])
    gap = float(np.abs(exact - (actions * scale + loc).astype(outer.dtype)).max())
    comment = "the policy's range to that of the env"
    if gap:
        comment += f"; actions differ by {gap:.0e}, which the env may amplify"
    return Counterpart((make_stage("ActionScaling", **kwargs),), comment, ROUNDING if gap else 0.0)


def _discretize_action(wrapper: Any, place: Place) -> Counterpart | Missing:
    if wrapper.n_dims > 1 and not wrapper.multidiscrete:
        return Missing(
            "one index numbers the bins of all elements",
            "pass multidiscrete=True, or use ActionDiscretizer and an action per element",
        )
    if len(wrapper.env.action_space.shape) != 1:
        return Missing("its action is not a vector", "flatten it with FlattenAction")
    bins = tuple(int(each) for each in wrapper.bins)
    stage = make_stage("ActionDiscretizer", num_intervals=bins, categorical=False)
    gap = 0.0
    for low, high, centers in zip(wrapper.low, wrapper.high, wrapper.bin_centers, strict=True):
        places = ((np.arange(len(centers)) + 0.5) / len(centers)).astype(low.dtype)
        gap = max(gap, float(np.abs(low + (high - low) * places - centers).max()))
    if gap:
        return Missing(
            f"the centers of the bins differ by {gap:.0e}, which the env may amplify",
            "use ActionDiscretizer if that does not matter",
            stage,
        )
    return Counterpart((stage,), "one-hot bins; the env gets their centers")


COUNTERPARTS: dict[type, Find] = {
    wrappers.PassiveEnvChecker: _default,
    wrappers.OrderEnforcing: _default,
    wrappers.TimeLimit: _time_limit,
    wrappers.RecordEpisodeStatistics: _statistics,
    wrappers.RecordVideo: _invisible,
    wrappers.RenderCollection: _invisible,
    wrappers.HumanRendering: _invisible,
    wrappers.AddRenderObservation: _rendered,
    wrappers.ClipReward: _clip_reward,
    wrappers.TransformReward: _transform_reward,
    wrappers.RescaleAction: _rescale_action,
    wrappers.FrameStackObservation: stack_frames,
    wrappers.FlattenObservation: flatten_observation,
    wrappers.ReshapeObservation: reshape_observation,
    wrappers.DtypeObservation: cast_observation,
    wrappers.RescaleObservation: rescale_observation,
    wrappers.NormalizeObservation: normalize_observation,
    wrappers.FilterObservation: filter_observation,
}
"""Functions that find the counterpart of a wrapper."""
if hasattr(wrappers, "DiscretizeAction"):
    # Gymnasium 1.0 does not have it.
    COUNTERPARTS[wrappers.DiscretizeAction] = _discretize_action

_CUSTOM = "write it as a transform of tdx, and name it in the file: module:Name"
MISSING: dict[type, tuple[str, str]] = {
    wrappers.AtariPreprocessing: (
        "it takes the maximum of two frames and resizes with OpenCV, both unlike tdx",
        "see sample_pipelines/atari_pixels.yaml for the same steps with other values",
    ),
    wrappers.MaxAndSkipObservation: (
        "FrameSkipTransform returns the last frame, not the maximum of two",
        "add FrameSkipTransform if the last frame is enough",
    ),
    wrappers.GrayscaleObservation: (
        "GrayScale weighs the channels by 0.2989, 0.587, 0.114 instead of 0.2125, 0.7154, 0.0721",
        "add ToTensorImage and GrayScale if such differences do not matter",
    ),
    wrappers.ResizeObservation: (
        "OpenCV averages areas, Resize interpolates",
        "add ToTensorImage and Resize if such differences do not matter",
    ),
    wrappers.NormalizeReward: (
        "it divides by the deviation of discounted returns, VecNorm by that of rewards",
        "use RewardScaling with a fixed factor",
    ),
    wrappers.ClipAction: ("tdx passes actions unchanged", "clip them in the policy"),
    wrappers.Autoreset: (
        "it resets in the step after the end of an episode",
        "leave it out: a rollout resets the env",
    ),
    wrappers.TransformObservation: ("its function can be anything", _CUSTOM),
    wrappers.TransformAction: ("its function can be anything", _CUSTOM),
}
"""Reason and advice for wrappers that have no counterpart."""
