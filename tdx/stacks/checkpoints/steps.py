"""What each registered step of LeRobot does to a sample, in NumPy.

The results are bit-equal to those of LeRobot on the CPU. A step that is not in :data:`DEFINITIONS`
is opaque: tokenizers, teleoperation, steps of a plugin. It is passed over, and named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError
from tdx.foundation.untrusted import MAX_SIZE
from tdx.specs.leaf import Domain, LeafSpec
from tdx.stacks.checkpoints.groot_images import image_specs, transform_images
from tdx.stacks.checkpoints.model import (
    ABSOLUTE_ACTIONS,
    IDENTITY,
    Feature,
    Processor,
    SampleEntries,
    Step,
    Trace,
)
from tdx.stacks.checkpoints.poses import matrix_to_quaternions, to_absolute
from tdx.stacks.checkpoints.scaling import (
    SCALINGS,
    SIN_COS,
    STATISTICS,
    UNSCALED,
    WIDENING,
    pick_statistics,
)

ACTION = "action"
IMAGES = "observation.images"
IMAGE = "observation.image"
VECTORS = ("observation.state", "observation.environment_state")

FeatureSpecs = Mapping[str, LeafSpec]
"""Specs of a sample by key."""

# Means and standard deviations of the ImageNet training set, as torchvision documents them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Definition:
    """What a registered step does."""

    apply: Callable[[Step, SampleEntries], SampleEntries]
    specs: Callable[[Step, FeatureSpecs], FeatureSpecs] = lambda _, leaves: leaves


def run(processor: Processor, sample: SampleEntries) -> Trace:
    """Run a processor, and record the sample before it and after each step.

    Args:
        processor: Its unknown steps are passed over.
        sample: Arrays and text by key, such as ``observation.state`` and ``task``.

    Raises:
        ArgumentError: A step cannot process the sample.
    """
    samples, skipped = [dict(sample)], {}
    for step in processor.steps:
        definition = DEFINITIONS.get(step.name)
        if definition is None:
            skipped[step.index] = why_opaque(step)
            samples.append(samples[-1])
            continue
        samples.append(dict(definition.apply(step, samples[-1])))
    return Trace(tuple(samples), skipped)


def why_opaque(step: Step) -> str:
    """Return why a step is passed over."""
    if step.is_class:
        return f"{step.name} is a class, which is code: it is not imported"
    return f"what {step.name} does is not known to tdx"


def why_unchanged(step: Step, key: str, feature: Feature) -> str | None:
    """Return why a normalizer passes a feature on unchanged although its mode is not ``IDENTITY``.

    Returns:
        ``None`` if it normalizes the feature, or is not meant to.
    """
    mode = step.mode_of(key, feature)
    if mode in UNSCALED or not is_selected(step, key):
        return None
    if step.key_of(key, feature) not in step.statistics:
        return f"{mode} needs statistics of {key!r}, and it has none"
    return None


def is_selected(step: Step, key: str) -> bool:
    """Return True unless a normalizer leaves an observation out."""
    keys = step.config.get("normalize_observation_keys")
    return not isinstance(keys, list) or key in keys


def normalize(step: Step, sample: SampleEntries, *, inverse: bool) -> SampleEntries:
    """Normalize or unnormalize the features of a step by their statistics.

    Values have the shape ``[..., *feature.shape]``.
    """
    result = dict(sample)
    for key, feature in step.features.items():
        if feature.kind != "ACTION" and key in result and is_selected(step, key):
            result[key] = _scale(step, key, feature.kind, _array(result[key]), inverse=inverse)
    if result.get(ACTION) is not None:
        # The action has one key, whatever the features call it.
        value = _array(result[ACTION])
        result[ACTION] = _scale(step, ACTION, "ACTION", value, inverse=inverse)
    return result


def _normalized_specs(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    scaled = {
        step.key_of(key, feature)
        for key, feature in step.features.items()
        if step.mode_of(key, feature) not in UNSCALED and is_selected(step, key)
    } & step.statistics.keys()
    dtype = "float64" if step.name in WIDENING else None
    result = {
        key: replace(_unbounded(leaf), dtype=dtype or leaf.dtype) if key in scaled else leaf
        for key, leaf in leaves.items()
    }
    for key, feature in step.features.items():
        if key in result and step.mode_of(key, feature) == SIN_COS:
            *lead, size = result[key].shape
            result[key] = replace(result[key], shape=(*lead, 2 * size))
    return result


def scaling_of(
    step: Step, key: str, kind: str, dtype: np.dtype, *, inverse: bool
) -> tuple[str, Array, Array] | None:
    """Return mode, offset and width by which a step scales a feature.

    Returns:
        ``None`` if it does not scale the feature.
    """
    mode = step.modes.get(kind, IDENTITY)
    statistics = step.statistics.get(key)
    if mode == IDENTITY or statistics is None:
        return None
    if mode not in STATISTICS:
        raise ArgumentError(
            f"{step.name} has the unknown mode {mode!r}", hint=f"modes: {', '.join(STATISTICS)}"
        )
    low, high = (array.astype(dtype) for array in pick_statistics(step, key, mode, statistics))
    declared = step.config.get("eps")
    eps = dtype.type(declared if isinstance(declared, int | float) else 1e-8)
    if mode == "MEAN_STD":
        return mode, low, high if inverse else high + eps
    width = high - low
    return mode, low, np.where(width == 0, eps, width)


def _scale(step: Step, key: str, kind: str, value: Array, *, inverse: bool) -> Array:
    scaling = scaling_of(step, key, kind, value.dtype, inverse=inverse)
    if scaling is None:
        return value
    mode, low, width = scaling
    for name in STATISTICS[mode]:
        shape = step.statistics[key][name].shape
        try:
            np.broadcast_shapes(shape, value.shape)
        except ValueError:
            raise ArgumentError(
                f"{name!r} of {key!r} has the shape {list(shape)}, and the value "
                f"{list(value.shape)}",
                hint="load the statistics of this robot, or compute them again",
            ) from None
    one = value.dtype.type(1)
    two = value.dtype.type(2)
    if mode == "MEAN_STD":
        return value * width + low if inverse else (value - low) / width
    if not inverse:
        return two * (value - low) / width - one
    # The two orders of operations differ in the last bit.
    if mode == "MIN_MAX":
        return (value + one) / two * width + low
    return (value + one) * width / two + low


def _array(value: object) -> Array:
    return value if isinstance(value, np.ndarray) else np.asarray(value)


def rename_map(step: Step) -> Mapping[str, str]:
    """Return the new keys of a step that renames observations, by the old ones."""
    declared = step.config.get("rename_map")
    if not isinstance(declared, dict):
        return {}
    return {old: new for old, new in declared.items() if isinstance(new, str)}


def _rename(step: Step, sample: SampleEntries) -> SampleEntries:
    names = rename_map(step)
    return {
        names.get(key, key) if key.startswith("observation") else key: value
        for key, value in sample.items()
    }


def _rename_specs(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    names = rename_map(step)
    renamed = {key: names.get(key, key) for key in leaves if key.startswith("observation")}
    return {
        renamed.get(key, key): replace(leaf, key=renamed.get(key, key))
        for key, leaf in leaves.items()
    }


def _add_batch(step: Step, sample: SampleEntries) -> SampleEntries:
    result = dict(sample)
    for key, value in sample.items():
        if isinstance(value, np.ndarray) and _lacks_batch(step, key, value.ndim):
            result[key] = value[None]
        elif key == "task" and isinstance(value, str) and _adds_batch_to(step, _EXTRA):
            result[key] = [value]
    return result


def _add_batch_specs(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    return {
        key: replace(leaf, shape=(1, *leaf.shape))
        if _lacks_batch(step, key, len(leaf.shape))
        else leaf
        for key, leaf in leaves.items()
    }


def _lacks_batch(step: Step, key: str, dims: int) -> bool:
    """Return True if a step adds a batch dim to an array with a number of dims."""
    if key == ACTION:
        return dims == 1 and _adds_batch_to(step, "action")
    if key in ("index", "task_index"):
        return dims == 0 and _adds_batch_to(step, _EXTRA)
    is_image = key == IMAGE or key.startswith(f"{IMAGES}.")
    expected = 1 if key in VECTORS else 3 if is_image else None
    return dims == expected and _adds_batch_to(step, "observation")


def _adds_batch_to(step: Step, part: str) -> bool:
    only = step.name.removeprefix("to_batch_processor").removeprefix("_")
    return only in ("", part)


_EXTRA = "complementary_data"


_FLOATS: Mapping[str, type[np.floating]] = MappingProxyType(
    {
        "float16": np.float16,
        "half": np.float16,
        "float32": np.float32,
        "float": np.float32,
        "float64": np.float64,
        "double": np.float64,
    }
)


def _to_device(step: Step, sample: SampleEntries) -> SampleEntries:
    """Cast floating-point arrays; the device itself changes no values."""
    name = step.config.get("float_dtype")
    if name is None:
        return sample
    dtype = _FLOATS.get(str(name))
    if dtype is None:
        raise ArgumentError(f"{step.name} casts to {name!r}, which NumPy does not have")
    return {
        key: value.astype(dtype)
        if isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
        else value
        for key, value in sample.items()
    }


def _to_device_specs(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    device, dtype = str(step.config.get("device", "cpu")), step.config.get("float_dtype")
    return {
        key: replace(leaf, device=device, dtype=leaf.dtype if dtype is None else str(dtype))
        for key, leaf in leaves.items()
    }


def _from_env(_: Step, sample: SampleEntries) -> SampleEntries:
    """Rename the observations of a Gymnasium env, and scale its images to 0 … 1."""
    result = dict(sample)
    pixels = result.pop("pixels", None)
    if isinstance(pixels, Mapping):
        result |= {f"{IMAGES}.{name}": _image_to_float(image) for name, image in pixels.items()}
    elif pixels is not None:
        result[IMAGE] = _image_to_float(pixels)
    for name, key in (("environment_state", VECTORS[1]), ("agent_pos", VECTORS[0])):
        if name in result:
            value = _array(result.pop(name)).astype(np.float32)
            result[key] = value[None] if value.ndim == 1 else value
    return result


def _image_to_float(value: object) -> Array:
    image = _array(value)
    image = image[None] if image.ndim == 3 else image
    if image.dtype != np.uint8:
        raise ArgumentError(f"an image has dtype {image.dtype}, not uint8")
    channels_first = np.ascontiguousarray(np.moveaxis(image, -1, -3))
    return channels_first.astype(np.float32) / np.float32(255)


def _chosen_images(step: Step, sample: SampleEntries) -> Iterable[tuple[str, Array]]:
    for key, value in sample.items():
        if _is_chosen(step, key) and isinstance(value, np.ndarray):
            yield key, value


def _is_chosen(step: Step, key: str) -> bool:
    keys = step.config.get("image_keys")
    return key in keys if isinstance(keys, list) else key.startswith(IMAGES)


def _image_specs(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    """Return the specs after a step that scales the values of the images that it chooses."""
    after = _bounded if step.name == "xvla_image_to_float" else _unbounded
    return {key: after(leaf) if _is_chosen(step, key) else leaf for key, leaf in leaves.items()}


def _bounded(leaf: LeafSpec) -> LeafSpec:
    return replace(leaf, kind="BoundedContinuous", domain=Domain(0.0, 1.0))


def _unbounded(leaf: LeafSpec) -> LeafSpec:
    return replace(leaf, kind="UnboundedContinuous", domain=Domain())


SCALES_PIXELS = "xvla_image_to_float"
"""The step that takes images of any dtype in 0 … 255."""


def _scale_images(step: Step, sample: SampleEntries) -> SampleEntries:
    scaled = {key: image * image.dtype.type(255) for key, image in _chosen_images(step, sample)}
    return {**sample, **scaled}


def _images_to_float(step: Step, sample: SampleEntries) -> SampleEntries:
    result = dict(sample)
    for key, image in _chosen_images(step, sample):
        low, high = image.min(), image.max()
        if high <= 1:
            result[key] = image.astype(np.float32)  # taken for an image that is scaled already
            continue
        if step.config.get("validate_range", True) and (low < 0 or high > 255):
            raise ArgumentError(f"{key!r} has values in {low:.4g} … {high:.4g}, not 0 … 255")
        result[key] = image.astype(np.float32) / np.float32(255)
    return result


def _imagenet(step: Step, sample: SampleEntries) -> SampleEntries:
    result = dict(sample)
    for key, image in _chosen_images(step, sample):
        low, high = image.min(), image.max()
        if low < 0 or high > 1:
            raise ArgumentError(f"{key!r} has values in {low:.4g} … {high:.4g}, not 0 … 1")
        mean = np.asarray(IMAGENET_MEAN, image.dtype)[:, None, None]
        std = np.asarray(IMAGENET_STD, image.dtype)[:, None, None]
        result[key] = (image - mean) / std
    return result


def _crop_and_resize(step: Step, sample: SampleEntries) -> SampleEntries:
    """Crop and resize images, as torchvision does: bilinear, with antialiasing."""
    crops, size = step.config.get("crop_params_dict"), step.config.get("resize_size")
    if not crops and size is None:
        return sample
    import torch
    from torchvision.transforms import functional

    result = dict(sample)
    for key, value in sample.items():
        if "image" not in key or not isinstance(value, np.ndarray):
            continue
        image = torch.from_numpy(value.copy())
        crop = crops.get(key) if isinstance(crops, dict) else None
        if crop is not None:
            image = functional.crop(image, *_sizes(crop, 4, f"the crop of {key!r}"))
        if size is not None:
            resized = functional.resize(image, _sizes(size, 2, f"the size of {key!r}"))
            image = resized.clamp(0.0, 1.0)
        result[key] = image.numpy()
    return result


def _sizes(value: object, count: int, what: str) -> list[int]:
    sizes = list(value) if isinstance(value, list | tuple) else []
    is_valid = all(isinstance(size, int) and 0 <= size <= MAX_SIZE for size in sizes)
    if len(sizes) != count or not is_valid:
        raise ArgumentError(f"{what} is {value!r}, not {count} sizes up to {MAX_SIZE}")
    return sizes


def _cropped_specs(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    crops, size = step.config.get("crop_params_dict"), step.config.get("resize_size")
    result = dict(leaves)
    for key, leaf in leaves.items():
        if "image" not in key or len(leaf.shape) < 3:
            continue
        crop = crops.get(key) if isinstance(crops, dict) else None
        height, width = leaf.shape[-2:]
        if isinstance(crop, list) and len(crop) == 4:
            height, width = _sizes(crop, 4, f"the crop of {key!r}")[2:]
        if size is not None:
            height, width = _sizes(size, 2, f"the size of {key!r}")
        result[key] = replace(leaf, shape=(*leaf.shape[:-2], height, width))
    return result


def _end_with_newline(_: Step, sample: SampleEntries) -> SampleEntries:
    task = sample.get("task")
    if isinstance(task, str):
        return {**sample, "task": task if task.endswith("\n") else f"{task}\n"}
    if isinstance(task, list) and all(isinstance(line, str) for line in task):
        return {**sample, "task": [x if x.endswith("\n") else f"{x}\n" for x in task]}
    return sample


def _to_numpy_action(step: Step, sample: SampleEntries) -> SampleEntries:
    value = sample.get(ACTION)
    squeezes = step.config.get("squeeze_batch_dim", True)
    if not isinstance(value, np.ndarray) or not squeezes or value.ndim < 2 or len(value) != 1:
        return sample
    return {**sample, ACTION: value[0]}


def _to_numpy_action_specs(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    leaf = leaves.get(ACTION)
    squeezes = step.config.get("squeeze_batch_dim", True)
    if leaf is None or not squeezes or len(leaf.shape) < 2 or leaf.shape[0] != 1:
        return leaves
    return {**leaves, ACTION: replace(leaf, shape=leaf.shape[1:])}


def _delta_action(step: Step, sample: SampleEntries) -> SampleEntries:
    action = sample.get(ACTION)
    if action is None:
        return sample
    value = _array(action)
    value = value[0] if value.ndim > 1 and len(value) == 1 else value
    names = _delta_names(step)
    if value.ndim != 1 or len(value) < len(names):
        raise ArgumentError(f"{step.name} needs {len(names)} values, not {value.shape}")
    rest = {key: entry for key, entry in sample.items() if key != ACTION}
    return {**rest, **{name: value[i] for i, name in enumerate(names)}}


def _delta_names(step: Step) -> list[str]:
    names = ["delta_x", "delta_y", "delta_z"]
    return [*names, "gripper"] if step.config.get("use_gripper", True) else names


def _delta_action_specs(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    leaf = leaves.get(ACTION)
    if leaf is None:
        return leaves
    rest = {key: other for key, other in leaves.items() if key != ACTION}
    return rest | {name: replace(leaf, key=name, shape=()) for name in _delta_names(step)}


_SIX_D_SIZE = 10
"""Position, two columns of a rotation matrix, gripper."""


def _axis_angle_action(step: Step, sample: SampleEntries) -> SampleEntries:
    """Turn the rotation of actions ``[B, 10]`` into an axis times its angle: ``[B, 7]``.

    The gripper becomes 1 or -1.
    """
    action = sample.get(ACTION)
    if not isinstance(action, np.ndarray):
        return sample
    if action.ndim != 2 or action.shape[1] < _SIX_D_SIZE:
        raise ArgumentError(
            f"{step.name} needs actions [B, {_SIX_D_SIZE}] or more, not {list(action.shape)}"
        )
    first = _unit(action[:, 3:6])
    second = action[:, 6:9]
    second = _unit(second - (first * second).sum(1, keepdims=True) * first)
    matrix = np.stack([first, second, np.cross(first, second)], -1)
    gripper = np.where(action[:, 9:10] > 0.5, 1.0, -1.0)
    parts = [action[:, :3], _axis_angles(matrix), gripper]
    return {**sample, ACTION: np.concatenate(parts, 1).astype(action.dtype)}


def _unit(vectors: Array) -> Array:
    lengths: Array = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / (lengths + 1e-6)


def _axis_angles(matrix: Array) -> Array:
    """Return rotation matrices ``[B, 3, 3]`` as axes times angles, ``[B, 3]``."""
    quaternions = matrix_to_quaternions(matrix.astype(np.float32))
    real = np.minimum(quaternions[:, 3], np.float32(1))
    sines = np.sqrt(1 - real * real)
    # LeRobot takes the arc cosine of the C library; that of NumPy may have another last bit.
    angles = np.asarray([math.acos(value) for value in real.tolist()], np.float32)
    scaled = quaternions[:, :3] * np.float32(2) * angles[:, None]
    result: Array = np.where(
        sines[:, None] == 0, 0, scaled / np.where(sines == 0, 1, sines)[:, None]
    )
    return result


def _axis_angle_specs(_: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    leaf = leaves.get(ACTION)
    if leaf is None or len(leaf.shape) < 1:
        return leaves
    return {**leaves, ACTION: replace(leaf, shape=(*leaf.shape[:-1], 7))}


def _simplify_text(step: Step, sample: SampleEntries) -> SampleEntries:
    """Return instructions in lower case and without punctuation, as GR00T does."""

    def simplified(value: object) -> object:
        if isinstance(value, str):
            return re.sub(r"[^\w\s]", "", value.lower())
        return [simplified(item) for item in value] if isinstance(value, list) else value

    keys = step.config.get("keys")
    known = [key for key in keys if key in sample] if isinstance(keys, list) else []
    return {**sample, **{str(key): simplified(sample[str(key)]) for key in known}}


def _absolute_specs(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    keys = step.config.get("relative")
    names = keys if isinstance(keys, dict) else {}
    # The state or the statistics are float64.
    return {
        key: replace(leaf, dtype="float64") if key in names else leaf
        for key, leaf in leaves.items()
    }


DEFINITIONS: Mapping[str, Definition] = MappingProxyType(
    {
        "rename_observations_processor": Definition(_rename, _rename_specs),
        "to_batch_processor": Definition(_add_batch, _add_batch_specs),
        "to_batch_processor_action": Definition(_add_batch, _add_batch_specs),
        "to_batch_processor_observation": Definition(_add_batch, _add_batch_specs),
        "to_batch_processor_complementary_data": Definition(_add_batch, _add_batch_specs),
        "device_processor": Definition(_to_device, _to_device_specs),
        "normalizer_processor": Definition(
            lambda step, sample: normalize(step, sample, inverse=False), _normalized_specs
        ),
        "unnormalizer_processor": Definition(
            lambda step, sample: normalize(step, sample, inverse=True), _normalized_specs
        ),
        **{name: Definition(scale, _normalized_specs) for name, scale in SCALINGS.items()},
        "groot_images": Definition(transform_images, image_specs),
        "groot_text": Definition(_simplify_text),
        ABSOLUTE_ACTIONS: Definition(to_absolute, _absolute_specs),
        "observation_processor": Definition(_from_env),
        "image_crop_resize_processor": Definition(_crop_and_resize, _cropped_specs),
        "xvla_image_scale": Definition(_scale_images, _image_specs),
        SCALES_PIXELS: Definition(_images_to_float, _image_specs),
        "xvla_imagenet_normalize": Definition(_imagenet, _image_specs),
        "smolvla_new_line_processor": Definition(_end_with_newline),
        "pi0_new_line_processor": Definition(_end_with_newline),
        "torch2numpy_action_processor": Definition(_to_numpy_action, _to_numpy_action_specs),
        "numpy2torch_action_processor": Definition(lambda _, sample: sample),
        "xvla_rotation_6d_to_axis_angle": Definition(_axis_angle_action, _axis_angle_specs),
        "map_tensor_to_delta_action_dict": Definition(_delta_action, _delta_action_specs),
    }
)
"""The steps that are executed, by their name in LeRobot's registry."""
