"""What a stage of another library becomes in a pipeline: one table.

A row names a class, and the stages of tdx that compute the same values, bit for bit or within the
tolerance of the row; or the reason why there are none. ``tdx init --from`` compares the values, and
the tables of ``docs/stacks-import.md`` are those of this module.

A class is found by the name that its library exports. A subclass may compute anything, so only the
class itself is looked up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from tdx.envs.gym.conversion import is_image
from tdx.envs.gym.numeric_spaces import CodecOptions
from tdx.envs.gym.spaces import entry_key
from tdx.foundation.gymnasium_internals import (
    recorded_arguments,
    statistics_key_of,
    time_limit_of,
)
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.pipeline import StageConfig
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.grammar import parse_value
from tdx.pipeline.values import Call, DictKey, Dtype, Value
from tdx.stacks.conversion import ConvertedStage, Counterpart
from tdx.stacks.refusals import Missing
from tdx.stacks.stack import StageInfo

ROUNDING = 1e-5
"""Tolerance of arithmetic in another dtype or order, and of statistics written as numbers."""


@dataclass(slots=True)
class Place:
    """Where a wrapper is in the chain."""

    key: str | None = None  # Of the observation below it. None: it has several entries.
    limit: int | None = None  # Step limit with which its env is registered.
    only_defaults: bool = False  # True if only wrappers of gymnasium.make are below it.
    has_limit: bool = False  # True if the TimeLimit of gymnasium.make is below it.
    taken: list[str] = field(default_factory=list)  # Keys that the stages below it write.
    # Space of the observations that a wrapper of a vector env gets.
    inside: Space[object] | None = None

    def new_key(self, name: str) -> str:
        """Return a key that no stage writes yet, and take it."""
        count = sum(taken == name or taken.startswith(f"{name}_") for taken in self.taken)
        key = name if not count else f"{name}_{count + 1}"
        self.taken.append(key)
        return key


Find = Callable[[object, Place], Counterpart | Missing]


@dataclass(frozen=True, slots=True)
class Row:
    """What a class becomes."""

    result: Counterpart | Missing | Find  # A function tells it by a stage and its place.
    becomes: str = "–"  # Stages that it becomes, as the documentation shows them.
    tolerance: float = 0.0  # See Counterpart.
    note: str = ""  # When it is converted, or what differs, likewise.
    needs_array: bool = False  # True if the observation has to be a single array.

    @property
    def values(self) -> str:
        """How the values compare, as the documentation shows it."""
        if isinstance(self.result, Missing):
            return f"not converted: {self.result.reason}"
        if self.becomes == "–":
            return self.note
        equal = (
            f"within {self.tolerance:.0e}".replace("e-0", "e-") if self.tolerance else "identical"
        )
        return f"{equal}, {self.note}" if self.note else equal


def find_counterpart(stage: object, place: Place) -> Counterpart | Missing:
    """Return the counterpart of a stage, or why it has none."""
    kind = type(stage)
    name = kind.__name__
    for module, rows in TABLE.items():
        # A class of a module that is not imported has no instances.
        if getattr(sys.modules.get(module), name, None) is not kind:
            continue
        if name in rows:
            row = rows[name]
            problem = _require_array(stage, place) if row.needs_array else None
            if problem is not None:
                return problem
            result = row.result(stage, place) if callable(row.result) else row.result
            if isinstance(result, Counterpart) and row.tolerance:
                result = replace(result, tolerance=row.tolerance)
            return result
        if module == _TORCHRL and name in load_catalog().names:
            return Missing(f"{name} is not converted", "add the transform of this name to the file")
        return Missing(f"tdx has no {name}", "write it as a transform of tdx: module:Name")
    return Missing(_why_custom(kind), _CUSTOM)


def _why_custom(kind: type) -> str:
    """Return why a class that is in no table is not converted."""
    own: dict[str, None] = {}
    for base in kind.__mro__:
        # rl_zoo3 puts its subclass of TimeLimit in place of that of Gymnasium.
        exported = (
            getattr(sys.modules.get(module), base.__name__, None)
            for module, rows in TABLE.items()
            if base.__name__ in rows
        )
        is_known = any(isinstance(value, type) and issubclass(value, base) for value in exported)
        if is_known and own:
            return f"it is a subclass of {base.__name__} with its own {', '.join(own)}"
        own |= dict.fromkeys(name for name in vars(base) if not name.startswith("_"))
    return "it is a class of its own, which may compute anything"


_MADE = ("PassiveEnvChecker", "OrderEnforcing", "TimeLimit")
"""Wrappers that ``gymnasium.make`` puts around each env."""


def convert_stages(
    levels: Iterable[tuple[StageInfo, object, Space[object] | None, Space[object] | None]],
    place: Place,
) -> tuple[ConvertedStage, ...]:
    """Find the counterparts of stages, innermost first; the place is then that after them.

    A level has the description of a stage, the stage itself or its counterpart, and the spaces of
    the observations that it gets and returns, if it has them.
    """
    stages = []
    for info, owner, place.inside, outside in levels:
        result = owner if isinstance(owner, Counterpart) else find_counterpart(owner, place)
        is_default = info.name in _MADE and not getattr(result, "stages", ())
        place.only_defaults = place.only_defaults and is_default
        # A transform keeps the key that it reads.
        key = None if outside is None else root_key(outside)
        place.key = getattr(result, "key", None) or (None if key is None else place.key or key)
        stages.append(ConvertedStage(info.index, info.name, info.call, result, place.key))
    return tuple(stages)


def root_key(space: Space[object]) -> str | None:
    """Return the key of an observation in tdx; ``None`` if it has several entries."""
    if isinstance(space, spaces.Dict):
        return None
    return "pixels" if is_image(space) else "observation"


_CUSTOM = "write it as a transform of tdx, and name it in the file: module:Name"


def _make_stage(_name: str, *args: Value, **kwargs: Value) -> StageConfig:
    """Return a stage from a name and arguments."""
    return StageConfig(_name, args, kwargs)


def write_value(value: object) -> Value:
    """Return an argument of a stage or an env as a value of a pipeline.

    Raises:
        TypeError: A pipeline file cannot contain it.
    """
    if isinstance(value, Tensor):
        return _write_tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        return write_value(value.tolist())
    if isinstance(value, torch.dtype):
        return Dtype.named(str(value))
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, list | tuple):
        return tuple(map(write_value, value))
    if isinstance(value, Mapping):
        return {normalize_key(key): write_value(inner) for key, inner in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a file cannot contain a {type(value).__name__}")


def _write_tensor(value: Tensor) -> Value:
    """Return the numbers of a tensor; those of float32 with as many digits as they need."""
    if value.dtype == torch.float32:
        digits = value.detach().cpu().numpy().astype(str)
        return write_value(digits.astype(np.float64).tolist())
    numbers: Value = write_value(value.detach().cpu().tolist())
    if value.ndim and value.is_floating_point():
        return Call("tensor", (numbers,), {"dtype": Dtype.named(str(value.dtype))})
    return numbers


def _numbers(array: object) -> Value:
    """Return an array as a nested tuple, or as one number if all elements are equal.

    Example:
        >>> _numbers(np.array([2.0, 2.0])), _numbers(np.array([[1.0], [2.0]]))
        (2.0, ((1.0,), (2.0,)))
    """
    array = np.asarray(array)
    if array.size and bool((array == array.flat[0]).all()):
        return array.flat[0].item()
    return write_value(array.tolist())


def _make_pair(loc: object, scale: object) -> tuple[Value, Value]:
    """Return both as numbers, or both as nested tuples."""
    pair = _numbers(loc), _numbers(scale)
    if any(isinstance(value, tuple) for value in pair):
        return write_value(np.asarray(loc).tolist()), write_value(np.asarray(scale).tolist())
    return pair


# Gymnasium


def _require_array(wrapper: Any, place: Place) -> Missing | None:
    if place.key is None or not isinstance(wrapper.env.observation_space, spaces.Box):
        return Missing(
            "the observation is not a single array",
            "apply the transform to each entry, with in_keys",
        )
    return None


def _stack_frames(wrapper: Any, place: Place) -> Counterpart | Missing:
    if wrapper.padding_type not in ("reset", "zero"):
        return Missing("it pads with an observation", "pad with padding_value, one number")
    padding: dict[str, Value] = {"padding": "constant"} if wrapper.padding_type == "zero" else {}
    return _stacked(wrapper, place, wrapper.stack_size, **padding)


def _stack_tianshou(wrapper: Any, place: Place) -> Counterpart | Missing:
    return _stacked(wrapper, place, wrapper.n_frames)


def _stacked(wrapper: Any, place: Place, count: int, **padding: Value) -> Counterpart:
    keys: Value = (str(place.key),)
    dim = -len(wrapper.env.observation_space.shape) - 1
    return Counterpart(
        (
            _make_stage("UnsqueezeTransform", dim=dim, in_keys=keys),
            _make_stage("CatFrames", N=int(count), dim=dim, in_keys=keys, **padding),
        ),
        "stacks along a new dim",
    )


def _flatten_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    space = wrapper.env.observation_space
    if isinstance(space, spaces.Discrete):
        return Counterpart(comment="tdx observes one-hot vectors: nothing to do")
    return _require_array(wrapper, place) or _flatten_array(space, place)


def _flatten_array(space: Any, place: Place) -> Counterpart:
    dims, keys = len(space.shape), (str(place.key),)
    if dims == 1:
        return Counterpart(comment="the observation is a vector already")
    if not dims:
        return Counterpart((_make_stage("UnsqueezeTransform", dim=-1, in_keys=keys),), "a vector")
    stage = _make_stage("FlattenObservation", first_dim=-dims, last_dim=-1, in_keys=keys)
    return Counterpart((stage,), "one vector")


def _reshape_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    before, after = wrapper.env.observation_space.shape, wrapper.observation_space.shape
    if before == after:
        return Counterpart(comment="the observation has this shape already")
    if len(after) == 1:
        return _flatten_array(wrapper.env.observation_space, place)
    return Missing(
        f"tdx does not reshape {before} to {after}",
        "combine FlattenObservation, UnsqueezeTransform, SqueezeTransform, PermuteTransform",
    )


def _cast_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    names = [np.dtype(env.observation_space.dtype).name for env in (wrapper.env, wrapper)]
    if names[0] == names[1]:
        return Counterpart(comment="the observation has this dtype already")
    dtypes = [Dtype.named(name) for name in names]
    if None in dtypes:
        return Missing(f"torch cannot cast {names[0]} to {names[1]}", "choose another dtype")
    stage = _make_stage(
        "DTypeCastTransform", dtype_in=dtypes[0], dtype_out=dtypes[1], in_keys=(str(place.key),)
    )
    return Counterpart((stage,), f"{names[0]} to {names[1]}")


def _rescale_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    inner, outer = wrapper.env.observation_space, wrapper.observation_space
    ends = np.stack([inner.low, inner.high, outer.low, outer.high]).astype(np.float64)
    if inner.dtype.kind != "f" or not np.isfinite(ends).all():
        return Missing("the range is not finite, or of integers", "use ObservationNorm")
    scale = (ends[3] - ends[2]) / (ends[1] - ends[0])
    return _affine(place, ends[2] - ends[0] * scale, scale, "to another range")


def _affine(place: Place, loc: object, scale: object, comment: str, **kwargs: Value) -> Counterpart:
    pair = _make_pair(loc, scale)
    stage = _make_stage(
        "ObservationNorm", loc=pair[0], scale=pair[1], in_keys=(str(place.key),), **kwargs
    )
    return Counterpart((stage,), comment)


def _normalize_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    if not wrapper.update_running_mean:
        mean = np.asarray(wrapper.obs_rms.mean, np.float64)
        deviation = np.sqrt(np.asarray(wrapper.obs_rms.var, np.float64) + wrapper.epsilon)
        comment = "its statistics, which it does not update"
        normalized = _affine(place, mean, deviation, comment, standard_normal=True, eps=1e-12)
        cast = _cast_observation(wrapper, place)
        if isinstance(cast, Missing) or wrapper.env.observation_space.dtype.kind != "f":
            return normalized
        # It computes in the dtype of the env, and returns float32.
        return replace(normalized, stages=(*normalized.stages, *cast.stages))
    return Missing(
        "VecNorm counts only observations, the wrapper starts with mean 0 and variance 1: the "
        "first steps of a run differ",
        "use VecNorm, whose statistics approach those of the wrapper",
        _make_stage("VecNorm", in_keys=(str(place.key),), decay=1.0, eps=float(wrapper.epsilon)),
    )


def _filter_observation(wrapper: Any, place: Place) -> Counterpart | Missing:
    if not isinstance(wrapper.observation_space, spaces.Dict):
        return Missing("elements of a tuple have no names", "name keys with SelectTransform")
    names = tuple(wrapper.observation_space.spaces)
    return Counterpart(
        (_make_stage("SelectTransform", *names, *place.taken),), "keeps some entries"
    )


def _time_limit(wrapper: object, place: Place) -> Counterpart:
    steps = time_limit_of(wrapper)
    if place.has_limit or not place.only_defaults:
        key = place.new_key("step_count")
        kwargs: dict[str, Value] = {} if key == "step_count" else {"step_count_key": key}
        stage = _make_stage("StepCounter", max_steps=steps, **kwargs)
        return Counterpart((stage,), f"truncates after {steps:,} steps")
    place.has_limit = True
    # `...` removes the setting: it is the registered limit.
    setting: object = ... if steps == place.limit else steps
    comment = "part of the env" if setting is ... else "a setting of the env"
    return Counterpart(comment=comment, env={"kwargs": {"max_episode_steps": setting}})


def _record_statistics(wrapper: object, place: Place) -> Counterpart:
    path = statistics_key_of(wrapper)
    total, count = place.new_key("episode_reward"), place.new_key("step_count")
    kwargs: dict[str, Value] = {} if count == "step_count" else {"step_count_key": count}
    return Counterpart(
        (
            _make_stage("RewardSum", in_keys=("reward",), out_keys=(total,)),
            _make_stage("StepCounter", **kwargs),
        ),
        f"info[{path!r}] is in the entries {total} and {count} of each step",
        recorded={total: (path, "r"), count: (path, "l")},
    )


def _rendered(wrapper: object, place: Place) -> Counterpart | Missing:
    arguments = recorded_arguments(vars(wrapper)) or {}
    if not place.only_defaults or not arguments.get("render_only", True):
        return Missing(
            "from_pixels renders the env without wrappers, as its only observation",
            "set from_pixels: true in the env, and rename keys with RenameTransform",
        )
    env = {"from_pixels": True, "kwargs": {"render_mode": ...}}
    return Counterpart(comment="a setting of the env", env=env, key="pixels")


# Rewards


def _clip_reward(wrapper: object, place: Place) -> Counterpart | Missing:
    arguments = recorded_arguments(vars(wrapper)) or {}
    ends: list[Any] = [arguments.get(name) for name in ("min_reward", "max_reward")]
    if any(np.size(end) != 1 for end in ends):
        return Missing("its bounds are arrays", "clip with one number")
    low, high = (None if end is None else float(np.asarray(end).item()) for end in ends)
    stage = _make_stage("RewardClipping", clamp_min=low, clamp_max=high)
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
        zero, low, high = (float(function(reward)) for reward in (0.0, -_FAR, _FAR))
    except Exception:
        return nothing
    scale = (high - zero) / _FAR
    linear = [probe * scale + zero for probe in _PROBES]
    if scale and np.allclose(values, linear, rtol=1e-9, atol=1e-9):
        stage = _make_stage("RewardScaling", loc=zero, scale=scale)
        return Counterpart((stage,), "its function is linear at 73 rewards", ROUNDING)
    if values == [min(max(probe, low), high) for probe in _PROBES]:
        stage = _make_stage(
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
    ends = _numbers(outer.low), _numbers(outer.high)
    kwargs: dict[str, Value] = {}
    if ends == (0.0, 1.0):
        kwargs = {"standard_normal": False}
    elif ends != (-1.0, 1.0):
        kwargs = dict(zip(("loc", "scale"), _make_pair(loc, scale), strict=True))
    actions = np.linspace(outer.low, outer.high, 101, dtype=outer.dtype)
    exact = np.stack([wrapper.action(action) for action in actions])
    gap = float(np.abs(exact - (actions * scale + loc).astype(outer.dtype)).max())
    comment = "the policy's range to that of the env"
    if gap:
        comment += f"; actions differ by {gap:.0e}, which the env may amplify"
    return Counterpart((_make_stage("ActionScaling", **kwargs),), comment, ROUNDING if gap else 0.0)


def _discretize_action(wrapper: Any, place: Place) -> Counterpart | Missing:
    if wrapper.n_dims > 1 and not wrapper.multidiscrete:
        return Missing(
            "one index numbers the bins of all elements",
            "pass multidiscrete=True, or use ActionDiscretizer and an action per element",
        )
    if len(wrapper.env.action_space.shape) != 1:
        return Missing("its action is not a vector", "flatten it with FlattenAction")
    bins = tuple(int(count) for count in wrapper.bins)
    stage = _make_stage("ActionDiscretizer", num_intervals=bins, categorical=False)
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


# Stable-Baselines3


def _list_entries(place: Place) -> Iterator[tuple[str | None, str, Space[object]]]:
    """Yield the name, the key and the space of each entry of the observation."""
    space = place.inside
    assert space is not None
    if not isinstance(space, spaces.Dict):
        yield None, str(place.key), space
        return
    names = list(space.spaces)
    options = CodecOptions(None, categorical=False, remap_state=True)
    for name in names:
        yield name, entry_key(name, names, options), space[name]


def _normalize(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return normalization by fixed statistics; running statistics differ from tdx."""
    entries = list(_list_entries(place))
    keys = wrapper.norm_obs_keys
    entries = [entry for entry in entries if keys is None or entry[0] in keys]
    if wrapper.training and wrapper.norm_obs:
        epsilon = float(wrapper.epsilon)
        names = tuple(key for _, key, _ in entries)
        return Missing(
            "its statistics start with mean 0, variance 1 and a weight of 1e-4; VecNorm counts "
            "observations only"
            + (" and knows no discounted returns, by whose deviation the rewards are divided")
            * bool(wrapper.norm_reward),
            "set training = False: its statistics are then written as numbers",
            _make_stage("VecNorm", in_keys=names, decay=1.0, eps=epsilon),
        )
    if wrapper.training and wrapper.norm_reward:
        return Missing(
            "it divides by the deviation of discounted returns, VecNorm by that of rewards",
            "set training = False, or use RewardScaling with a fixed factor",
        )
    stages: list[StageConfig] = []
    for name, key, space in entries if wrapper.norm_obs else ():
        statistics = wrapper.obs_rms if name is None else wrapper.obs_rms[name]
        stages += _standardize(statistics, key, space, wrapper.epsilon, wrapper.clip_obs)
    if wrapper.norm_reward:
        scale = _round(1 / np.sqrt(wrapper.ret_rms.var + wrapper.epsilon)).item()
        bound = float(wrapper.clip_reward)
        stages.append(_make_stage("RewardScaling", loc=0.0, scale=scale))
        stages.append(_make_stage("RewardClipping", clamp_min=-bound, clamp_max=bound))
    if not stages:
        return Counterpart(comment="normalizes nothing", observable=False)
    return Counterpart(tuple(stages), "its statistics, which it does not update")


def _normalize_tianshou(wrapper: Any, place: Place) -> Counterpart | Missing:
    statistics, limit = wrapper.obs_rms, wrapper.obs_rms.clip_max
    if wrapper.update_obs_rms:
        return Missing(
            "its running statistics follow other rules than those of VecNorm",
            "set update_obs_rms = False: its statistics are then written as numbers",
            _make_stage("VecNorm", in_keys=(str(place.key),), decay=1.0, eps=float(statistics.eps)),
        )
    if place.key is None or not isinstance(place.inside, spaces.Box):
        return Missing(
            "the observation is not a single array", "normalize each entry, with in_keys"
        )
    return Counterpart(
        tuple(_standardize(statistics, place.key, place.inside, statistics.eps, limit or np.inf)),
        "its statistics, which it does not update",
    )


def _emulate(wrapper: Any, place: Place) -> Counterpart | Missing:
    if wrapper.is_obs_emulated:
        return Missing(
            "it packs the entries of the observation into one array of bytes",
            "use CatTensors for entries of one dtype, or a policy that reads the entries",
        )
    if wrapper.is_atn_emulated:
        return Missing("it makes one MultiDiscrete action of several", "write the entries instead")
    return Counterpart(comment="passes arrays unchanged")


def _standardize(
    statistics: Any, key: str, space: Space[object], epsilon: float, clip: float
) -> list[StageConfig]:
    pair = _make_pair(_round(statistics.mean), _round(np.sqrt(statistics.var + epsilon)))
    keys, bound = (key,), float(clip)
    stages = [
        _make_stage(
            "ObservationNorm",
            loc=pair[0],
            scale=pair[1],
            in_keys=keys,
            standard_normal=True,
            eps=1e-12,
        )
    ]
    if space.dtype == np.float64:
        dtypes = {"dtype_in": Dtype("float64"), "dtype_out": Dtype("float32")}
        stages.append(_make_stage("DTypeCastTransform", **dtypes, in_keys=keys))
    stages.append(_make_stage("RewardClipping", clamp_min=-bound, clamp_max=bound, in_keys=keys))
    return stages


def _round(values: object) -> np.ndarray[Any, Any]:
    """Return numbers with as many digits as float32 needs."""
    return np.asarray(values, np.float32).astype(str).astype(np.float64)


def _stack_vec_frames(wrapper: Any, place: Place) -> Counterpart | Missing:
    stacked = wrapper.stacked_obs
    groups: dict[int, list[str]] = {}
    for name, key, space in _list_entries(place):
        part = stacked if name is None else stacked.sub_stacked_observations[name]
        dim = -1 if part.repeat_axis == -1 else -len(space.shape or ())
        groups.setdefault(dim, []).append(key)
    stages = [
        _make_stage(
            "CatFrames",
            N=int(stacked.n_stack),
            dim=dim,
            in_keys=tuple(keys),
            padding="constant",
        )
        for dim, keys in groups.items()
    ]
    return Counterpart(tuple(stages), "stacks along an existing dim, with zeros at the start")


def _transpose_images(wrapper: Any, place: Place) -> Counterpart | Missing:
    if wrapper.skip:
        return Counterpart(comment="skip=True: changes no value", observable=False)
    images = getattr(wrapper, "image_space_keys", ())
    keys = [key for name, key, _ in _list_entries(place) if name is None or name in images]
    stage = _make_stage("PermuteTransform", dims=(-1, -3, -2), in_keys=tuple(keys))
    return Counterpart((stage,), "channels first")


def _extract(wrapper: Any, place: Place) -> Counterpart | Missing:
    keys = {name: key for name, key, _ in _list_entries(place)}
    key = keys[wrapper.key]
    stage = _make_stage("SelectTransform", key, *place.taken)
    return Counterpart((stage,), "keeps one entry", key=key)


# TorchRL


def _stage(name: str, arguments: Mapping[str, object]) -> Counterpart | Missing:
    """Return a stage without the arguments that have their default."""
    info = load_catalog()[name]
    kwargs: dict[str, Value] = {}
    for key, value in arguments.items():
        parameter = info.parameter(key)
        assert parameter is not None, key
        try:
            written = write_value(value)
        except TypeError:
            return Missing(
                f"a file cannot contain its argument {key}",
                f"write {name} with another {key}",
            )
        has_default = parameter.default is not None
        if not has_default or parse_value(str(parameter.default)) != written:
            kwargs[key] = written
    return Counterpart((_make_stage(name, **kwargs),), "the transform of this name")


def _keys(transform: object, *defaults: NestedKey) -> dict[str, object]:
    """Return the keys of a transform, without the defaults of tdx.

    ``defaults`` are the keys that it reads by default.
    """
    keys: dict[str, object] = {}
    names = (("in_keys", "out_keys"), ("in_keys_inv", "out_keys_inv"))
    for (read, written), default in zip(names, (list(defaults), []), strict=True):
        ins, outs = getattr(transform, read, None), getattr(transform, written, None)
        if ins is None:
            continue
        ins, outs = [list(map(normalize_key, part or ())) for part in (ins, outs)]
        if ins != default:
            keys[read] = ins
        if outs and outs != ins:
            keys |= {read: ins, written: outs}
    return keys


def _same(
    *names: str,
    reads: tuple[str, ...] | None = None,
    tolerance: float = 0.0,
    **attributes: str,
) -> Row:
    """Return the row of a transform that becomes the one of the same name.

    Args:
        *names: Arguments that are attributes.
        reads: Keys that the transform reads by default. ``None``: it takes no keys.
        tolerance: Tolerance of its values.
        **attributes: Arguments whose attribute has another name.
    """

    def find(transform: object, place: Place) -> Counterpart | Missing:
        read = {**{name: name for name in names}, **attributes}
        arguments = {name: getattr(transform, attribute) for name, attribute in read.items()}
        if reads is not None:
            arguments |= _keys(transform, *reads)
        return _stage(type(transform).__name__, arguments)

    return Row(find, _SAME_NAME, tolerance)


# Observations, rewards and actions


def _scaling(transform: Any, place: Place) -> Counterpart | Missing:
    if not getattr(transform, "initialized", True):
        return Missing("it has no statistics yet", "call init_stats in the function")
    name = type(transform).__name__
    arguments = {
        **{"loc": transform.loc, "scale": transform.scale},
        "standard_normal": bool(transform.standard_normal),
    }
    if name == "ObservationNorm":
        return _stage(name, {**arguments, "eps": transform.eps, **_keys(transform)})
    return _stage(name, {**arguments, **_keys(transform, "reward")})


def _cat_tensors(transform: Any, place: Place) -> Counterpart | Missing:
    names = {"out_key": transform.out_keys[0], "del_keys": transform._del_keys}
    names |= {name: getattr(transform, name) for name in ("dim", "unsqueeze_if_oor")}
    if transform._initialized:
        names |= {"in_keys": list(transform.in_keys), "sort": False}
    return _stage("CatTensors", names)


def _target_return(transform: object, place: Place) -> Counterpart | Missing:
    arguments = {name: getattr(transform, name) for name in ("target_return", "mode")}
    # Without keys it asks its env for the rewards, which it may not have.
    keys = {name: vars(transform).get(f"_{name}") for name in ("in_keys", "out_keys")}
    if keys["in_keys"] not in (None, ["reward"]) or keys["out_keys"] not in (
        None,
        ["target_return"],
    ):
        arguments |= keys
    return _stage("TargetReturn", arguments)


def _reward_sum(transform: Any, place: Place) -> Counterpart | Missing:
    if transform.reward_spec:
        return Missing("it declares the sum as a reward", "leave out reward_spec=True")
    keys = {"in_keys": list(transform.in_keys), "out_keys": list(transform.out_keys)}
    if keys == {"in_keys": ["reward"], "out_keys": ["episode_reward"]}:
        keys = {}
    return _stage("RewardSum", {**keys, "reset_keys": transform._reset_keys})


def _action_scaling(transform: Any, place: Place) -> Counterpart | Missing:
    keys = _keys(transform, *map(normalize_key, transform.in_keys_inv))
    if keys.get("in_keys_inv") == ["action"] and len(keys) == 1:
        keys = {}
    if not transform._explicit:
        arguments = {"standard_normal": transform.standard_normal, **keys}
        return _stage("ActionScaling", arguments)
    numbers = {name: getattr(transform, name) for name in ("loc", "scale", "standard_normal")}
    return _stage("ActionScaling", {**numbers, **keys})


def _action_discretizer(transform: Any, place: Place) -> Counterpart | Missing:
    sampling = transform.sampling.name.lower()
    if sampling == "random":
        return Missing("it draws its actions at random", "use ActionDiscretizer")
    names = ("num_intervals", "action_key", "categorical")
    arguments = {name: getattr(transform, name) for name in names}
    if sampling != "median":
        arguments["sampling"] = sampling
    if transform.out_action_key != transform.action_key:
        arguments["out_action_key"] = transform.out_action_key
    return _stage("ActionDiscretizer", arguments)


def _action_mask(transform: Any, place: Place) -> Counterpart | Missing:
    action_key, mask_key = transform.in_keys
    return _stage("ActionMask", {"action_key": action_key, "mask_key": mask_key})


# Images and shapes


def _resize(transform: Any, place: Place) -> Counterpart | Missing:
    mode = transform.interpolation
    arguments = {"w": transform.w, "h": transform.h, "interpolation": getattr(mode, "value", mode)}
    return _stage("Resize", {**arguments, **_keys(transform, "pixels")})


def _cat_frames(transform: Any, place: Place) -> Counterpart | Missing:
    if transform.future or transform.mask_key is not None:
        return Missing("tdx stacks no future frames and writes no mask", "leave both out")
    names = ("N", "dim", "padding", "padding_value", "as_inverse")
    arguments = {name: getattr(transform, name) for name in names}
    for name in ("reset_key", "done_key"):
        arguments[name] = getattr(transform, f"_{name}")
    return _stage("CatFrames", {**arguments, **_keys(transform, "pixels")})


def _selected(
    name: str, attribute: str, defaults: Mapping[str, Any], transform: object, place: Place
) -> Counterpart | Missing:
    keys = [normalize_key(key) for key in getattr(transform, attribute)]
    changed = {
        option: getattr(transform, read)
        for option, (read, default) in defaults.items()
        if getattr(transform, read) != default
    }
    return Counterpart((_make_stage(name, *keys, **changed),), "the transform of this name")


def _expand_as(transform: Any, place: Place) -> Counterpart | Missing:
    keys = {"in_key": transform.in_key, "ref_key": transform.ref_key}
    if transform.out_key != transform.in_key:
        keys["out_key"] = transform.out_key
    return _stage("ExpandAs", keys)


def _cast(transform: Any, place: Place) -> Counterpart | Missing:
    # Without keys it casts every entry, and has no attributes for them.
    has_keys = any(vars(transform).get(name) for name in ("_in_keys", "_in_keys_inv"))
    keys = _keys(transform) if has_keys else {}
    name = type(transform).__name__
    types = {"dtype_in": transform.dtype_in, "dtype_out": transform.dtype_out}
    return _stage(name, keys if name == "DoubleToFloat" else {**types, **keys})


# State


def _primer(transform: Any, place: Place) -> Counterpart | Missing:
    values = transform.default_value
    if transform.random or callable(values) or transform.single_default_value:
        return Missing("its values are random, or those of a function", "use fixed values")
    primers = transform.primers
    specs: dict[DictKey, Value] = {
        normalize_key(key): write_spec(spec) for key, spec in primers.items(True, True)
    }
    if None in specs.values():
        return Missing("a file cannot contain one of its specs", "write it with Unbounded")
    fixed = {normalize_key(key): value for key, value in values.items()}
    if any(callable(value) for value in fixed.values()):
        return Missing("its values are those of a function", "use fixed values")
    arguments: dict[str, Any] = {"reset_key": transform._reset_key}
    if any(fixed.values()):
        arguments["default_value"] = fixed
    if transform.expand_specs is not None:
        arguments["expand_specs"] = transform.expand_specs
    if transform.call_before_env_reset:
        arguments["call_before_env_reset"] = True
    result = _stage("TensorDictPrimer", arguments)
    if isinstance(result, Missing):
        return result
    stage = _make_stage("TensorDictPrimer", primers=specs, **result.stages[0].kwargs)
    return Counterpart((stage,), result.comment)


def write_spec(spec: Any) -> Value:
    """Return a spec as a call; ``None`` if it is not unbounded or bounded by two numbers."""
    place: dict[str, Value] = {"shape": tuple(spec.shape)}
    if spec.dtype != torch.get_default_dtype():
        place["dtype"] = Dtype.named(str(spec.dtype))
    if type(spec).__name__.startswith("Unbounded"):
        return Call("Unbounded", (), place)
    if type(spec).__name__.startswith("Bounded"):
        low, high = spec.space.low.unique(), spec.space.high.unique()
        if low.numel() == high.numel() == 1:
            return Call("Bounded", (write_value(low[0]), write_value(high[0])), place)
    return None


def _vec_norm(transform: Any, place: Place) -> Counterpart | Missing:
    """Return a normalizer with fixed statistics; running statistics differ from tdx."""
    if not transform.frozen:
        keys = _keys(transform, "observation", "reward")
        suggestion = _stage("VecNorm", {"decay": transform.decay, "eps": transform.eps, **keys})
        stages = suggestion.stages if isinstance(suggestion, Counterpart) else ()
        return Missing(
            "TorchRL adds up its running statistics in float32, tdx in float64",
            "use VecNorm, or freeze the transform: its statistics are then written as numbers",
            stages[0] if stages else None,
        )
    loc, scale = transform.loc, transform.scale
    if loc is None:
        return Missing("it is frozen without statistics", "step the env before freeze()")
    fixed: list[StageConfig] = []
    for read, written in zip(transform.in_keys, transform.out_keys, strict=True):
        arguments = {
            "loc": loc[read] if hasattr(loc, "keys") else loc,
            "scale": scale[read] if hasattr(scale, "keys") else scale,
            "standard_normal": True,
            "eps": 1e-12,
            "in_keys": [normalize_key(read)],
        }
        if written != read:
            arguments["out_keys"] = [normalize_key(written)]
        normalized = _stage("ObservationNorm", arguments)
        assert isinstance(normalized, Counterpart)
        fixed += normalized.stages
    return Counterpart(tuple(fixed), "its frozen statistics")


def _noops(transform: Any, place: Place) -> Counterpart | Missing:
    stage = _make_stage("NoopResetEnv", noops=transform.noops, random=transform.random)
    return Missing("it steps random actions, which tdx draws otherwise", "use it", stage)


# The table

_OF_ENV = Row(Counterpart(comment="part of the env"), note="part of the env")
_LEFT_OUT = Row(
    Counterpart(comment="changes no value: left out", observable=False),
    note="left out: it changes no values",
)
_EPISODES = Row(
    _record_statistics,
    "`RewardSum`, `StepCounter`",
    note='`info["episode"]` within 1e-4, without its time',
)
_ANYTHING = Row(Missing("its function can be anything", _CUSTOM))


def _missing(reason: str, advice: str, suggestion: StageConfig | None = None) -> Row:
    return Row(Missing(reason, advice, suggestion))


_WRITE = "write it as a transform of tdx, or do without it"
_CODE = "write it in the file with a function of a module: module:name"
_PIXELS = ("pixels",)
_SAME_NAME = "same name"
_TORCHRL = "torchrl.envs.transforms"

_OF_ATARI = {
    "ClipRewardEnv": _missing(
        "it returns the sign of the reward, RewardClipping a value between",
        "use RewardClipping if the rewards are whole numbers",
        _make_stage("RewardClipping", clamp_min=-1.0, clamp_max=1.0),
    ),
    "EpisodicLifeEnv": _missing("it ends an episode when a life is lost", _WRITE),
    "FireResetEnv": _missing("it presses fire after each reset", _WRITE),
    "MaxAndSkipEnv": _missing("FrameSkipTransform returns the last frame, not the maximum", _WRITE),
    "NoopResetEnv": _missing(
        "it takes a random number of steps, which tdx draws otherwise", _WRITE
    ),
    "WarpFrame": _missing("OpenCV averages areas, Resize interpolates", _WRITE),
}
"""Wrappers of the same names in Stable-Baselines3 and Tianshou."""

TABLE: dict[str, dict[str, Row]] = {
    "gymnasium.wrappers": {
        "PassiveEnvChecker": _OF_ENV,
        "OrderEnforcing": _OF_ENV,
        "TimeLimit": Row(_time_limit, "`max_episode_steps` of the env, `StepCounter(max_steps=…)`"),
        "RecordEpisodeStatistics": _EPISODES,
        "RecordVideo": _LEFT_OUT,
        "RenderCollection": _LEFT_OUT,
        "HumanRendering": _LEFT_OUT,
        "AddRenderObservation": Row(
            _rendered,
            "`from_pixels` of the env",
            note="directly around the env, without `obs_key`",
        ),
        "ClipReward": Row(_clip_reward, "`RewardClipping`"),
        "TransformReward": Row(
            _transform_reward,
            "`RewardScaling`, `RewardClipping`",
            note="if its function is linear or a clip at 73 rewards",
        ),
        "RescaleAction": Row(
            _rescale_action,
            "`ActionScaling`",
            note="or the rounding of the action is shown",
        ),
        "DiscretizeAction": Row(
            _discretize_action,
            "`ActionDiscretizer(categorical=False)`",
            note="if the centers of the bins are",
        ),
        "FrameStackObservation": Row(
            _stack_frames,
            "`UnsqueezeTransform`, `CatFrames`",
            note="with padding `reset` and `zero`",
            needs_array=True,
        ),
        "FlattenObservation": Row(_flatten_observation, "`FlattenObservation`"),
        "ReshapeObservation": Row(
            _reshape_observation,
            "`FlattenObservation`",
            note="if the result is a vector",
            needs_array=True,
        ),
        "DtypeObservation": Row(_cast_observation, "`DTypeCastTransform`", needs_array=True),
        "RescaleObservation": Row(
            _rescale_observation, "`ObservationNorm`", ROUNDING, needs_array=True
        ),
        "NormalizeObservation": Row(
            _normalize_observation,
            "`ObservationNorm`, and `DTypeCastTransform` of float64 to float32",
            ROUNDING,
            "if it does not update its statistics",
            needs_array=True,
        ),
        "FilterObservation": Row(
            _filter_observation, "`SelectTransform`", note="if the observation is a dict"
        ),
        "AtariPreprocessing": _missing(
            "it takes the maximum of two frames and resizes with OpenCV, both unlike tdx",
            "see sample_pipelines/atari_pixels.yaml for the same steps with other values",
        ),
        "MaxAndSkipObservation": _missing(
            "FrameSkipTransform returns the last frame, not the maximum of two",
            "add FrameSkipTransform if the last frame is enough",
        ),
        "GrayscaleObservation": _missing(
            "GrayScale weighs the channels by 0.2989, 0.587, 0.114 instead of 0.2125, 0.7154, "
            "0.0721",
            "add ToTensorImage and GrayScale if such differences do not matter",
        ),
        "ResizeObservation": _missing(
            "OpenCV averages areas, Resize interpolates",
            "add ToTensorImage and Resize if such differences do not matter",
        ),
        "NormalizeReward": _missing(
            "it divides by the deviation of discounted returns, VecNorm by that of rewards",
            "use RewardScaling with a fixed factor",
        ),
        "ClipAction": _missing("tdx passes actions unchanged", "clip them in the policy"),
        "Autoreset": _missing(
            "it resets in the step after the end of an episode",
            "leave it out: a rollout resets the env",
        ),
        "TransformObservation": _ANYTHING,
        "TransformAction": _ANYTHING,
    },
    "stable_baselines3.common.monitor": {"Monitor": _EPISODES},
    "stable_baselines3.common.vec_env": {
        "VecMonitor": _EPISODES,
        "VecNormalize": Row(
            _normalize,
            "`ObservationNorm` and `RewardScaling` with its statistics, `RewardClipping`",
            ROUNDING,
            "with `training=False`",
        ),
        "VecFrameStack": Row(_stack_vec_frames, "`CatFrames` with zeros at the start"),
        "VecTransposeImage": Row(_transpose_images, "`PermuteTransform`"),
        "VecExtractDictObs": Row(_extract, "`SelectTransform`"),
        "VecCheckNan": _LEFT_OUT,
        "VecVideoRecorder": _LEFT_OUT,
    },
    "stable_baselines3.common.atari_wrappers": {
        "AtariWrapper": _LEFT_OUT,
        **_OF_ATARI,
        "StickyActionEnv": _missing("it repeats actions at random", _WRITE),
    },
    "tianshou.env": {
        "VectorEnvNormObs": Row(
            _normalize_tianshou,
            "`ObservationNorm` with its statistics, `RewardClipping`",
            ROUNDING,
            "with `update_obs_rms=False`",
        ),
        "ContinuousToDiscrete": _missing("its bins are a grid of its own", "use ActionDiscretizer"),
        "MultiDiscreteToDiscrete": _missing("it makes one action of several", _WRITE),
        "TruncatedAsTerminated": _missing("it reports a truncation as a termination", _WRITE),
    },
    "tianshou.env.atari.atari_wrapper": {
        **_OF_ATARI,
        "ScaledFloatFrame": _missing(
            "it computes in float64, ToTensorImage in float32",
            "use ToTensorImage, which also moves the channels",
        ),
        "FrameStack": Row(_stack_tianshou, "`UnsqueezeTransform`, `CatFrames`", needs_array=True),
    },
    "pufferlib.emulation": {
        "GymnasiumPufferEnv": Row(
            _emulate, note="passes unchanged, if observation and action are arrays"
        ),
    },
    "pufferlib.postprocess": {
        "EpisodeStats": Row(
            Counterpart(
                (_make_stage("RewardSum"), _make_stage("StepCounter")),
                "the sums of an episode are entries of each step",
                observable=False,
            ),
            "`RewardSum`, `StepCounter`",
            note="its infos are not compared",
        ),
    },
    _TORCHRL: {
        "ActionDiscretizer": Row(_action_discretizer, _SAME_NAME, ROUNDING),
        "ActionMask": Row(_action_mask, _SAME_NAME),
        "ActionScaling": Row(_action_scaling, _SAME_NAME),
        "BinarizeReward": _same(reads=("reward",)),
        "CatFrames": Row(_cat_frames, _SAME_NAME),
        "CatTensors": Row(_cat_tensors, _SAME_NAME),
        "CenterCrop": _same("w", "h", reads=_PIXELS),
        "ClipTransform": _same("low", "high", reads=()),
        "Crop": _same("w", "h", "top", "left", reads=_PIXELS),
        "DTypeCastTransform": Row(_cast, _SAME_NAME),
        "DoubleToFloat": Row(_cast, _SAME_NAME),
        "ExcludeTransform": Row(
            partial(
                _selected, "ExcludeTransform", "excluded_keys", {"inverse": ("inverse", False)}
            ),
            _SAME_NAME,
        ),
        "ExpandAs": Row(_expand_as, _SAME_NAME),
        "FiniteTensorDictCheck": _LEFT_OUT,
        "FlattenObservation": _same(first_dim="_first_dim", last_dim="_last_dim", reads=_PIXELS),
        "FrameSkipTransform": _same("frame_skip"),
        "GrayScale": _same(reads=_PIXELS, tolerance=ROUNDING),
        "InitTracker": _same("init_key"),
        "LineariseRewards": _same("weights", reads=()),
        "NoopResetEnv": Row(
            _noops, note="not converted: it steps random actions, which tdx draws otherwise"
        ),
        "ObservationNorm": Row(_scaling, _SAME_NAME),
        "PermuteTransform": _same("dims", reads=()),
        "RenameTransform": _same("create_copy", reads=()),
        "Resize": Row(_resize, _SAME_NAME, ROUNDING),
        "RewardClipping": _same("clamp_min", "clamp_max", reads=("reward",)),
        "RewardScaling": Row(_scaling, _SAME_NAME),
        "RewardSum": Row(_reward_sum, _SAME_NAME),
        "SelectTransform": Row(
            partial(
                _selected,
                "SelectTransform",
                "selected_keys",
                {
                    "keep_rewards": ("keep_reward_keys", True),
                    "keep_dones": ("keep_done_keys", True),
                },
            ),
            _SAME_NAME,
        ),
        "SignTransform": _same(reads=()),
        "SqueezeTransform": _same(dim="_dim", reads=()),
        "StepCounter": _same("max_steps", "truncated_key", "step_count_key", "update_done"),
        "TargetReturn": Row(_target_return, _SAME_NAME),
        "TensorDictPrimer": Row(_primer, _SAME_NAME, note="with fixed values"),
        "TimeMaxPool": _same(T="buffer_size", reads=("observation",)),
        "ToTensorImage": _same(
            "from_int", "unsqueeze", "shape_tolerant", reads=_PIXELS, tolerance=ROUNDING
        ),
        "UnsqueezeTransform": _same("allow_positive_dim", dim="_dim", reads=()),
        "VecNorm": Row(
            _vec_norm, "`ObservationNorm` with its statistics", ROUNDING, "if it is frozen"
        ),
        "VecNormV2": Row(
            _vec_norm, "`ObservationNorm` with its statistics", ROUNDING, "if it is frozen"
        ),
        "BatchSizeTransform": _missing("its function is Python code", _CODE),
        "BurnInTransform": _missing("its modules are Python code", _CODE),
        "TerminateTransform": _missing("its function is Python code", _CODE),
    },
}
"""Rows by the module that exports the class, and its name."""
