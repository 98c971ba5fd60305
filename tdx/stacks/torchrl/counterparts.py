"""Transforms of tdx that compute what a transform of TorchRL computes: one table.

Most have the same name and the same arguments, which are read from the instance. Whether the values
are equal is for the comparison to prove.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data import tensor_specs
from torchrl.envs import transforms as rl

from tdx.foundation.keys import NestedKey, normalize_key
from tdx.pipeline import StageConfig
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.grammar import parse_value
from tdx.pipeline.values import Call, DictKey, Dtype, Value
from tdx.stacks.conversion import Counterpart, Missing
from tdx.stacks.gymnasium.counterparts import make_stage

Find = Callable[[Any], Counterpart | Missing]

_ROUNDING = 1e-5
"""Tolerance of arithmetic in another order, and of statistics that are written as numbers."""


def find_counterpart(transform: Any) -> Counterpart | Missing:
    """Return the counterpart of a transform, or why it has none.

    A subclass may compute anything, so only the class itself is looked up.

    Args:
        transform: A ``torchrl.envs.Transform``.

    Example:
        >>> find_counterpart(rl.StepCounter(5)).stages[0].kwargs
        {'max_steps': 5}
    """
    kind = type(transform)
    find = COUNTERPARTS.get(kind)
    if find is not None:
        return find(transform)
    missing = MISSING.get(kind)
    if missing is not None:
        return Missing(*missing)
    name = kind.__name__
    if name in load_catalog().names:
        return Missing(f"{name} is not converted", "add the transform of this name to the file")
    if getattr(rl, name, None) is kind:
        return Missing(f"tdx has no {name}", "write it as a transform of tdx: module:Name")
    return Missing(
        "it is a class of its own, which may compute anything",
        "write it as a transform of tdx, and name it in the file: module:Name",
    )


# Arguments


def _write(value: Any) -> Value:
    """Return an argument of a transform as a value of a pipeline."""
    if isinstance(value, Tensor):
        return _write_tensor(value)
    if isinstance(value, torch.dtype):
        return Dtype.named(str(value))
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, list | tuple):
        return tuple(map(_write, value))
    if isinstance(value, Mapping):
        return {normalize_key(key): _write(each) for key, each in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError


def _write_tensor(value: Tensor) -> Value:
    """Return the numbers of a tensor; those of float32 with as many digits as they need."""
    if value.dtype == torch.float32:
        digits = value.detach().cpu().numpy().astype(str)
        return _write(digits.astype(np.float64).tolist())
    numbers: Value = _write(value.detach().cpu().tolist())
    if value.ndim and value.is_floating_point():
        return Call("tensor", (numbers,), {"dtype": Dtype.named(str(value.dtype))})
    return numbers


def _stage(name: str, arguments: Mapping[str, Any]) -> Counterpart | Missing:
    """Return a stage without the arguments that have their default."""
    info = load_catalog()[name]
    kwargs: dict[str, Value] = {}
    for key, value in arguments.items():
        parameter = info.parameter(key)
        assert parameter is not None, key
        try:
            written = _write(value)
        except TypeError:
            return Missing(
                f"a file cannot contain its argument {key}",
                f"write {name} with another {key}",
            )
        has_default = parameter.default is not None
        if not has_default or parse_value(str(parameter.default)) != written:
            kwargs[key] = written
    return Counterpart((make_stage(name, **kwargs),), "the transform of this name")


def _keys(transform: Any, *defaults: NestedKey) -> dict[str, Any]:
    """Return the keys of a transform, without the defaults of tdx.

    Args:
        transform: The transform.
        *defaults: Keys that it reads by default.
    """
    found: dict[str, Any] = {}
    names = (("in_keys", "out_keys"), ("in_keys_inv", "out_keys_inv"))
    for (read, written), default in zip(names, (list(defaults), []), strict=True):
        ins, outs = getattr(transform, read, None), getattr(transform, written, None)
        if ins is None:
            continue
        ins, outs = [list(map(normalize_key, each or ())) for each in (ins, outs)]
        if ins != default:
            found[read] = ins
        if outs and outs != ins:
            found |= {read: ins, written: outs}
    return found


def _same(
    *names: str,
    reads: tuple[str, ...] | None = None,
    tolerance: float = 0.0,
    **attributes: str,
) -> Callable[[Any], Counterpart | Missing]:
    """Return a function that finds the transform of the same name.

    Args:
        *names: Arguments that are attributes.
        reads: Keys that the transform reads by default. ``None``: it takes no keys.
        tolerance: Tolerance of its values.
        **attributes: Arguments whose attribute has another name.
    """

    def find(transform: Any) -> Counterpart | Missing:
        read = {**{name: name for name in names}, **attributes}
        arguments = {name: getattr(transform, each) for name, each in read.items()}
        if reads is not None:
            arguments |= _keys(transform, *reads)
        return _within(tolerance, _stage(type(transform).__name__, arguments))

    return find


def _within(tolerance: float, found: Counterpart | Missing) -> Counterpart | Missing:
    return found if isinstance(found, Missing) else replace(found, tolerance=tolerance)


# Observations, rewards and actions


def _affine(transform: Any, reads: tuple[str, ...], **more: Any) -> Counterpart | Missing:
    if not getattr(transform, "initialized", True):
        return Missing("it has no statistics yet", "call init_stats in the function")
    arguments = {
        **{"loc": transform.loc, "scale": transform.scale},
        "standard_normal": bool(transform.standard_normal),
        **more,
        **_keys(transform, *reads),
    }
    return _stage(type(transform).__name__, arguments)


def _observation_norm(transform: Any) -> Counterpart | Missing:
    return _affine(transform, (), eps=transform.eps)


def _reward_scaling(transform: Any) -> Counterpart | Missing:
    return _affine(transform, ("reward",))


def _reward_clipping(transform: Any) -> Counterpart | Missing:
    bounds = {name: getattr(transform, name) for name in ("clamp_min", "clamp_max")}
    return _stage("RewardClipping", {**bounds, **_keys(transform, "reward")})


def _cat_tensors(transform: Any) -> Counterpart | Missing:
    names = {"out_key": transform.out_keys[0], "del_keys": transform._del_keys}
    names |= {name: getattr(transform, name) for name in ("dim", "unsqueeze_if_oor")}
    if transform._initialized:
        names |= {"in_keys": list(transform.in_keys), "sort": False}
    return _stage("CatTensors", names)


def _target_return(transform: Any) -> Counterpart | Missing:
    arguments = {name: getattr(transform, name) for name in ("target_return", "mode")}
    # Without keys it asks its env for the rewards, which it may not have.
    keys = {name: vars(transform).get(f"_{name}") for name in ("in_keys", "out_keys")}
    if keys["in_keys"] not in (None, ["reward"]) or keys["out_keys"] not in (
        None,
        ["target_return"],
    ):
        arguments |= keys
    return _stage("TargetReturn", arguments)


def _reward_sum(transform: Any) -> Counterpart | Missing:
    if transform.reward_spec:
        return Missing("it declares the sum as a reward", "leave out reward_spec=True")
    keys = {"in_keys": list(transform.in_keys), "out_keys": list(transform.out_keys)}
    if keys == {"in_keys": ["reward"], "out_keys": ["episode_reward"]}:
        keys = {}
    return _stage("RewardSum", {**keys, "reset_keys": transform._reset_keys})


def _action_scaling(transform: Any) -> Counterpart | Missing:
    keys = _keys(transform, *map(normalize_key, transform.in_keys_inv))
    if keys.get("in_keys_inv") == ["action"] and len(keys) == 1:
        keys = {}
    if not transform._explicit:
        arguments = {"standard_normal": transform.standard_normal, **keys}
        return _stage("ActionScaling", arguments)
    numbers = {name: getattr(transform, name) for name in ("loc", "scale", "standard_normal")}
    return _stage("ActionScaling", {**numbers, **keys})


def _action_discretizer(transform: Any) -> Counterpart | Missing:
    sampling = transform.sampling.name.lower()
    if sampling == "random":
        return Missing("it draws its actions at random", "use ActionDiscretizer")
    names = ("num_intervals", "action_key", "categorical")
    arguments = {name: getattr(transform, name) for name in names}
    if sampling != "median":
        arguments["sampling"] = sampling
    if transform.out_action_key != transform.action_key:
        arguments["out_action_key"] = transform.out_action_key
    return _within(_ROUNDING, _stage("ActionDiscretizer", arguments))


def _action_mask(transform: Any) -> Counterpart | Missing:
    action_key, mask_key = transform.in_keys
    return _stage("ActionMask", {"action_key": action_key, "mask_key": mask_key})


# Images and shapes


def _resize(transform: Any) -> Counterpart | Missing:
    mode = transform.interpolation
    arguments = {"w": transform.w, "h": transform.h, "interpolation": getattr(mode, "value", mode)}
    return _within(_ROUNDING, _stage("Resize", {**arguments, **_keys(transform, "pixels")}))


def _cat_frames(transform: Any) -> Counterpart | Missing:
    if transform.future or transform.mask_key is not None:
        return Missing("tdx stacks no future frames and writes no mask", "leave both out")
    names = ("N", "dim", "padding", "padding_value", "as_inverse")
    arguments = {name: getattr(transform, name) for name in names}
    for name in ("reset_key", "done_key"):
        arguments[name] = getattr(transform, f"_{name}")
    return _stage("CatFrames", {**arguments, **_keys(transform, "pixels")})


def _selected(
    name: str, attribute: str, defaults: Mapping[str, Any], transform: Any
) -> Counterpart | Missing:
    keys = [normalize_key(key) for key in getattr(transform, attribute)]
    changed = {
        option: getattr(transform, read)
        for option, (read, default) in defaults.items()
        if getattr(transform, read) != default
    }
    return Counterpart((make_stage(name, *keys, **changed),), "the transform of this name")


def _expand_as(transform: Any) -> Counterpart | Missing:
    keys = {"in_key": transform.in_key, "ref_key": transform.ref_key}
    if transform.out_key != transform.in_key:
        keys["out_key"] = transform.out_key
    return _stage("ExpandAs", keys)


def _cast(transform: Any) -> Counterpart | Missing:
    # Without keys it casts every entry, and has no attributes for them.
    has_keys = any(vars(transform).get(name) for name in ("_in_keys", "_in_keys_inv"))
    keys = _keys(transform) if has_keys else {}
    name = type(transform).__name__
    types = {"dtype_in": transform.dtype_in, "dtype_out": transform.dtype_out}
    return _stage(name, keys if name == "DoubleToFloat" else {**types, **keys})


# State


def _primer(transform: Any) -> Counterpart | Missing:
    values = transform.default_value
    if transform.random or callable(values) or transform.single_default_value:
        return Missing("its values are random, or those of a function", "use fixed values")
    primers = transform.primers
    specs: dict[DictKey, Value] = {
        normalize_key(key): _write_spec(spec) for key, spec in primers.items(True, True)
    }
    if None in specs.values():
        return Missing("a file cannot contain one of its specs", "write it with Unbounded")
    found = {normalize_key(key): value for key, value in values.items()}
    if any(callable(value) for value in found.values()):
        return Missing("its values are those of a function", "use fixed values")
    arguments: dict[str, Any] = {"reset_key": transform._reset_key}
    if any(found.values()):
        arguments["default_value"] = found
    if transform.expand_specs is not None:
        arguments["expand_specs"] = transform.expand_specs
    if transform.call_before_env_reset:
        arguments["call_before_env_reset"] = True
    result = _stage("TensorDictPrimer", arguments)
    if isinstance(result, Missing):
        return result
    stage = make_stage("TensorDictPrimer", primers=specs, **result.stages[0].kwargs)
    return Counterpart((stage,), result.comment)


def _write_spec(spec: Any) -> Value:
    """Return a spec as a call; ``None`` if it is not unbounded or bounded by two numbers."""
    place: dict[str, Value] = {"shape": tuple(spec.shape)}
    if spec.dtype != torch.get_default_dtype():
        place["dtype"] = Dtype.named(str(spec.dtype))
    if isinstance(spec, tensor_specs.Unbounded):
        return Call("Unbounded", (), place)
    if type(spec).__name__.startswith("Bounded"):
        low, high = spec.space.low.unique(), spec.space.high.unique()
        if low.numel() == high.numel() == 1:
            return Call("Bounded", (_write(low[0]), _write(high[0])), place)
    return None


def _vec_norm(transform: Any) -> Counterpart | Missing:
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
        found = _stage("ObservationNorm", arguments)
        assert isinstance(found, Counterpart)
        fixed += found.stages
    return Counterpart(tuple(fixed), "its frozen statistics", _ROUNDING)


def _noops(transform: Any) -> Counterpart | Missing:
    stage = make_stage("NoopResetEnv", noops=transform.noops, random=transform.random)
    return Missing("it steps random actions, which tdx draws otherwise", "use it", stage)


def _invisible(transform: Any) -> Counterpart:
    return Counterpart(comment="changes no value: left out", observable=False)


_PIXELS = ("pixels",)
COUNTERPARTS: dict[type, Find] = {
    rl.ActionDiscretizer: _action_discretizer,
    rl.ActionMask: _action_mask,
    rl.ActionScaling: _action_scaling,
    rl.BinarizeReward: _same(reads=("reward",)),
    rl.CatFrames: _cat_frames,
    rl.CatTensors: _cat_tensors,
    rl.CenterCrop: _same("w", "h", reads=_PIXELS),
    rl.ClipTransform: _same("low", "high", reads=()),
    rl.Crop: _same("w", "h", "top", "left", reads=_PIXELS),
    rl.DTypeCastTransform: _cast,
    rl.DoubleToFloat: _cast,
    rl.ExcludeTransform: partial(
        _selected, "ExcludeTransform", "excluded_keys", {"inverse": ("inverse", False)}
    ),
    rl.ExpandAs: _expand_as,
    rl.FiniteTensorDictCheck: _invisible,
    rl.FlattenObservation: _same(first_dim="_first_dim", last_dim="_last_dim", reads=_PIXELS),
    rl.FrameSkipTransform: _same("frame_skip"),
    rl.GrayScale: _same(reads=_PIXELS, tolerance=_ROUNDING),
    rl.InitTracker: _same("init_key"),
    rl.LineariseRewards: _same("weights", reads=()),
    rl.NoopResetEnv: _noops,
    rl.ObservationNorm: _observation_norm,
    rl.PermuteTransform: _same("dims", reads=()),
    rl.RenameTransform: _same("create_copy", reads=()),
    rl.Resize: _resize,
    rl.RewardClipping: _reward_clipping,
    rl.RewardScaling: _reward_scaling,
    rl.RewardSum: _reward_sum,
    rl.SelectTransform: partial(
        _selected,
        "SelectTransform",
        "selected_keys",
        {"keep_rewards": ("keep_reward_keys", True), "keep_dones": ("keep_done_keys", True)},
    ),
    rl.SignTransform: _same(reads=()),
    rl.SqueezeTransform: _same(dim="_dim", reads=()),
    rl.StepCounter: _same("max_steps", "truncated_key", "step_count_key", "update_done"),
    rl.TargetReturn: _target_return,
    rl.TensorDictPrimer: _primer,
    rl.TimeMaxPool: _same(T="buffer_size", reads=("observation",)),
    rl.ToTensorImage: _same(
        "from_int", "unsqueeze", "shape_tolerant", reads=_PIXELS, tolerance=_ROUNDING
    ),
    rl.UnsqueezeTransform: _same("allow_positive_dim", dim="_dim", reads=()),
    rl.VecNorm: _vec_norm,
    rl.VecNormV2: _vec_norm,
}
"""Functions that find the counterpart of a transform."""

_CODE = "write it in the file with a function of a module: module:name"
MISSING: dict[type, tuple[str, str]] = {
    rl.BatchSizeTransform: ("its function is Python code", _CODE),
    rl.BurnInTransform: ("its modules are Python code", _CODE),
    rl.TerminateTransform: ("its function is Python code", _CODE),
}
"""Reason and advice for transforms that have no counterpart."""
