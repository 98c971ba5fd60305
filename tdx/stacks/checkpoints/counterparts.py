"""What the steps of a checkpoint become as transforms of tdx, with the same bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from tdx.core.transforms import Transform
from tdx.stacks.checkpoints.model import Checkpoint, Step
from tdx.stacks.checkpoints.specs import trace_specs
from tdx.stacks.checkpoints.steps import (
    ACTION,
    DEFINITIONS,
    IMAGENET_MEAN,
    IMAGENET_STD,
    FeatureSpecs,
    is_selected,
    scaling_of,
    why_opaque,
)
from tdx.stacks.refusals import Missing
from tdx.transforms import (
    DTypeCastTransform,
    ObservationNorm,
    RenameTransform,
    UnsqueezeTransform,
)

_TEXT = frozenset(
    {"tokenizer_processor", "smolvla_new_line_processor", "pi0_new_line_processor", "groot_text"}
)
"""Steps of the instruction: they change no array."""
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class StepCounterpart:
    """What a step of a checkpoint becomes."""

    # The one nearest to the robot first; or why there is none.
    transforms: tuple[Transform, ...] | Missing
    is_text: bool = False  # It maps the instruction only, so that the other steps do not need it.


def find_counterparts(checkpoint: Checkpoint) -> tuple[StepCounterpart, ...]:
    """Return the counterpart of each step, from the robot to the policy."""
    specs = trace_specs(checkpoint)
    found = []
    for (processor, step), (observations, _), after in zip(
        checkpoint.stages, specs, specs[1:], strict=False
    ):
        inverse = processor.role == "postprocessor"
        if step.name in _TEXT:
            reason = Missing("it maps text, not arrays", "run it beside the chain")
            found.append(StepCounterpart(reason, is_text=True))
        elif step.name not in DEFINITIONS:
            found.append(StepCounterpart(Missing(why_opaque(step), "write it as a transform")))
        else:
            # A step of the postprocessor gets the actions nearer to the policy.
            leaves = after[1] if inverse else observations
            rule = _RULES.get(step.name)
            result: tuple[Transform, ...] | Missing = Missing(
                f"tdx has no transform like {step.name}", "write it as a transform"
            )
            if rule is not None:
                result = rule(step, leaves, inverse)
            found.append(StepCounterpart(result))
    return tuple(found)


def _rename(step: Step, leaves: FeatureSpecs, inverse: bool) -> tuple[Transform, ...]:
    declared = step.config.get("rename_map")
    names = declared if isinstance(declared, dict) and not inverse else {}
    old = [key for key in leaves if key in names and key.startswith("observation")]
    return (RenameTransform(old, [str(names[key]) for key in old]),) if old else ()


def _add_batch(step: Step, leaves: FeatureSpecs, inverse: bool) -> tuple[Transform, ...] | Missing:
    after = DEFINITIONS[step.name].specs(step, leaves)
    by_dims: dict[int, list[str]] = defaultdict(list)
    for key, leaf in leaves.items():
        if after[key].shape != leaf.shape:
            by_dims[len(leaf.shape)].append(key)
    if inverse and by_dims:
        return Missing("it adds a batch dim to the action", "return actions without it")
    return tuple(UnsqueezeTransform(-dims - 1, in_keys=keys) for dims, keys in by_dims.items())


def _remove_batch(step: Step, leaves: FeatureSpecs, inverse: bool) -> tuple[Transform, ...]:
    leaf = leaves.get(ACTION)
    after = DEFINITIONS[step.name].specs(step, leaves).get(ACTION)
    if leaf is None or after is None or leaf.shape == after.shape:
        return ()
    return (UnsqueezeTransform(-len(leaf.shape), in_keys=[], in_keys_inv=[ACTION]),)


def _cast(step: Step, leaves: FeatureSpecs, inverse: bool) -> tuple[Transform, ...] | Missing:
    name = step.config.get("float_dtype")
    dtype = None if name is None else _DTYPES.get(str(name))
    others: dict[str, list[str]] = defaultdict(list)
    for key, leaf in leaves.items():
        if leaf.dtype in _DTYPES and leaf.dtype != str(name):
            others[leaf.dtype].append(key)
    if name is None or not others:
        return ()
    if dtype is None or inverse:
        return Missing(f"it casts to {name}", "cast the values in the policy")
    return tuple(DTypeCastTransform(_DTYPES[old], dtype, keys) for old, keys in others.items())


def _scale(step: Step, leaves: FeatureSpecs, inverse: bool) -> tuple[Transform, ...] | Missing:
    transforms: list[Transform] = []
    for declared, feature in step.features.items():
        key = step.key_of(declared, feature)
        if key not in leaves or (key == ACTION) != inverse:
            continue
        if not (inverse or is_selected(step, key)):
            continue
        dtype = np.dtype(leaves[key].dtype)
        if dtype.kind != "f":
            return Missing(f"{key} is {dtype}", "cast it before")
        scaling = scaling_of(step, key, feature.kind, dtype, inverse=inverse)
        if scaling is None:
            continue
        mode, low, width = scaling
        # A stage of the action maps from the policy to the robot, by the inverse of its transform.
        if mode == "MEAN_STD":
            transforms.append(_affine(key, low, width, inverse=inverse))
            continue
        # Halves are exact, so that the order of the factors does not matter.
        half = width / dtype.type(2)
        if not inverse:
            transforms += [_affine(key, low, half), _affine(key, dtype.type(1), dtype.type(1))]
        elif mode == "MIN_MAX":
            unit = dtype.type(0.5)
            transforms += [
                _affine(key, low, width, inverse=True),
                _affine(key, unit, unit, inverse=True),
            ]
        else:
            one = dtype.type(1)
            transforms += [
                _affine(key, low, half, inverse=True),
                _affine(key, one, one, inverse=True),
            ]
    return tuple(transforms)


def _affine(key: str, loc: object, scale: object, *, inverse: bool = False) -> ObservationNorm:
    """Return ``(value - loc) / scale``, or its inverse ``value * scale + loc`` for an action."""
    forward, backward = ([], [key]) if inverse else ([key], [])
    return ObservationNorm(
        _tensor(loc),
        _tensor(scale),
        in_keys=forward,
        in_keys_inv=backward,
        standard_normal=True,
        eps=0.0,
    )


def _tensor(value: object) -> Tensor:
    return torch.from_numpy(np.array(value))


def _imagenet(step: Step, leaves: FeatureSpecs, inverse: bool) -> tuple[Transform, ...]:
    chosen = step.config.get("image_keys")
    keys = [
        key
        for key in leaves
        if (key in chosen if isinstance(chosen, list) else key.startswith("observation.images"))
    ]
    mean, std = (
        np.asarray(values, np.float32)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return tuple(_affine(key, mean, std) for key in keys)


def _nothing(step: Step, leaves: FeatureSpecs, inverse: bool) -> tuple[Transform, ...]:
    return ()


_RULES: Mapping[str, Callable[[Step, FeatureSpecs, bool], tuple[Transform, ...] | Missing]] = (
    MappingProxyType(
        {
            "rename_observations_processor": _rename,
            "to_batch_processor": _add_batch,
            "to_batch_processor_observation": _add_batch,
            "to_batch_processor_action": _add_batch,
            "to_batch_processor_complementary_data": _nothing,
            "device_processor": _cast,
            "normalizer_processor": _scale,
            "unnormalizer_processor": _scale,
            "torch2numpy_action_processor": _remove_batch,
            "numpy2torch_action_processor": _nothing,
            "xvla_imagenet_normalize": _imagenet,
        }
    )
)
