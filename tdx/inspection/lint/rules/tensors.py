"""TDX43x and TDX46x: layout, size and dtype of images, dtype casts and device transfers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.text import dtype_name
from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.rule import (
    Fix,
    Violation,
    change_arguments,
    insert_stage,
    move_stage,
    remove_stage,
    rule,
)
from tdx.pipeline.values import StageConfig

if TYPE_CHECKING:
    from tdx.specs import TensorSpec

_DOWNSIZE = ("Resize", "CenterCrop")
_CASTS = ("ToTensorImage", "DTypeCastTransform")
_CHANNELS = (1, 3, 4)
_PIXELS = "CartPole-v1 --from-pixels"


@rule(
    "TDX431",
    "images are converted to float before they are downsized",
    "suggestion",
    why="""
    A pixel takes one byte as uint8 and four as float32. `Resize` and `CenterCrop` accept uint8,
    so an earlier cast converts every pixel of the large image, most of which are discarded
    right after. A resized uint8 value is rounded to 1/255.

    If the channels already come first, cast after the stages that downsize. (`ToTensorImage` on
    images with channels last also moves the channels to the front, which those stages require;
    the rule does not apply there.)
    """,
    wrong=f"""{_PIXELS} -t 'PermuteTransform([-1, -3, -2], in_keys=["pixels"])'
    -t 'ToTensorImage(shape_tolerant=True)' -t 'CenterCrop(200)'""",
    right=f"""{_PIXELS} -t 'PermuteTransform([-1, -3, -2], in_keys=["pixels"])'
    -t 'CenterCrop(200)' -t 'ToTensorImage(shape_tolerant=True)'""",
)
def float_before_downsizing(context: LintContext) -> Iterator[Violation]:
    """Find casts that keep the layout right before a stage that downsizes."""
    for cast, small, key in context.iter_pairs(_CASTS, _DOWNSIZE):
        if small.index != cast.index + 1 or cast.before is None or cast.after is None:
            continue
        before, after = cast.before.outputs.get(key), cast.after.outputs.get(key)
        if before is None or after is None or before.dtype is None or after.dtype is None:
            continue
        bytes_in = str(before.dtype) == "torch.uint8"
        if bytes_in and after.dtype.is_floating_point and before.shape == after.shape:
            message = f"{format_key(key)!r} is converted to float before {small.name} downsizes it"
            fix = move_stage(cast.index, small.index, cast.config, small.config)
            yield Violation(message, f"convert after {small.name}", cast.index, key, fix)


@rule(
    "TDX432",
    "ToTensorImage is applied twice",
    "warning",
    why="""
    The channels come first after the first `ToTensorImage`. The second one moves the last dim
    to the front again, so the width takes the place of the channels. The values are not divided
    again, so they do not reveal the mistake.
    """,
    wrong=f"{_PIXELS} -t ToTensorImage -t ToTensorImage",
    right=f"{_PIXELS} -t ToTensorImage",
    replaces=True,
)
def tensor_image_twice(context: LintContext) -> Iterator[Violation]:
    """Find two conversions without a permutation between them."""
    for first, second, key in context.iter_pairs(["ToTensorImage"], ["ToTensorImage"]):
        between = context.stages[first.index + 1 : second.index]
        if not any(stage.name == "PermuteTransform" or stage.is_opaque for stage in between):
            message = f"stage {first.index} has already converted {format_key(key)!r}"
            fix = remove_stage(second.index, second.config)
            yield Violation(message, "remove it", second.index, key, fix)


@rule(
    "TDX433",
    "GrayScale is applied to single-channel images",
    "error",
    why="""
    `GrayScale` computes a weighted sum of red, green and blue. A grayscale image has one
    channel, so the chain cannot be built.
    """,
    wrong=f"{_PIXELS} -t ToTensorImage -t GrayScale -t GrayScale",
    right=f"{_PIXELS} -t ToTensorImage -t GrayScale",
    replaces=True,
)
def grayscale_of_single_channel(context: LintContext) -> Iterator[Violation]:
    """Find grayscale stages whose input has one channel."""
    for stage in context.stages_named("GrayScale"):
        for key in stage.in_keys:
            shape = _image_shape(context, stage, key)
            if shape is not None and shape[-3] == 1 and shape[-1] > 4:
                fix = remove_stage(stage.index, stage.config) if len(stage.in_keys) == 1 else None
                message = f"{format_key(key)!r} has a single channel"
                yield Violation(message, "remove it", stage.index, key, fix)


@rule(
    "TDX434",
    "images are resized twice",
    "suggestion",
    why="""
    Each resize blurs, and the first one costs most because it reads the large image. If nothing
    reads the image between the two, a single resize to the final size is sharper and cheaper.
    """,
    wrong=f"{_PIXELS} -t ToTensorImage -t 'Resize(128)' -t 'Resize(64)'",
    right=f"{_PIXELS} -t ToTensorImage -t 'Resize(64)'",
)
def resized_twice(context: LintContext) -> Iterator[Violation]:
    """Find two adjacent resizes."""
    for first, second, key in context.iter_pairs(["Resize"], ["Resize"]):
        if second.index == first.index + 1 and first.in_keys == first.out_keys == second.in_keys:
            message = f"{format_key(key)!r} is resized again by stage {second.index}"
            fix = remove_stage(first.index, first.config)
            yield Violation(message, "resize once, to the final size", first.index, key, fix)


@rule(
    "TDX435",
    "frames are stacked along height or width",
    "warning",
    why="""
    `CatFrames` concatenates frames along the given dim. Frames concatenated along height or
    width form one long image, and convolutions see an edge instead of motion. Stack frames
    along the channels: `dim=-3` if they come first, as after `ToTensorImage`.
    """,
    wrong=f"{_PIXELS} -t ToTensorImage -t 'CatFrames(4, dim=-1)'",
    right=f"{_PIXELS} -t ToTensorImage -t 'CatFrames(4, dim=-3)'",
)
def frames_stacked_along_edge(context: LintContext) -> Iterator[Violation]:
    """Find stacks of images along a dim other than the channels."""
    for stage in context.stages_named("CatFrames"):
        for key in stage.in_keys:
            shape, dim = _image_shape(context, stage, key), stage.arguments["dim"]
            channels = None if shape is None else _channel_dim(shape)
            if channels is not None and dim in (-1, -2, -3) and dim != channels:
                edge = {-3: "height", -2: "width"} if channels == -1 else {-2: "height"}
                message = f"dim={dim} stacks {format_key(key)!r} along its {edge.get(dim, 'width')}"
                fix = change_arguments(stage.index, stage.config, dim=channels)
                hint = f"stack along the channels: dim={channels}"
                yield Violation(message, hint, stage.index, key, fix)
                break


def _image_shape(context: LintContext, stage: LintStage, key: NestedKey) -> tuple[int, ...] | None:
    """Return the shape of an image without the batch dims."""
    spec = None if stage.before is None else stage.before.outputs.get(key)
    if spec is None or context.env is None:
        return None
    shape = tuple(spec.shape)[len(context.env.batch_size) :]
    return shape if len(shape) == 3 else None


def _channel_dim(shape: tuple[int, ...]) -> int | None:
    """Return the dim of the channels, unless it is ambiguous."""
    first, last = shape[0] in _CHANNELS, shape[-1] in _CHANNELS
    if first and min(shape[1:]) > 4:
        return -3
    return -1 if last and min(shape[:-1]) > 4 else None


_DTYPE_CASTS = ("DTypeCastTransform", "DoubleToFloat")
_SHORT = ("torch.float16", "torch.bfloat16")


@rule(
    "TDX461",
    "reward is cast",
    "warning",
    why="""
    `DTypeCastTransform` without `in_keys` casts every key of the dtype, including the reward.
    As an integer, a reward loses its fraction; in half precision, small differences; in double
    precision, it no longer matches networks and losses in single precision.

    List the observations in `in_keys`. (Casting a reward from float64 to float32 is not
    reported.)
    """,
    wrong="Pendulum-v1 -t 'DTypeCastTransform(torch.float32, torch.float16)'",
    right="""Pendulum-v1
    -t 'DTypeCastTransform(torch.float32, torch.float16, in_keys=["observation"])'""",
)
def reward_cast(context: LintContext) -> Iterator[Violation]:
    """Find casts that lose precision of the reward, or include it by default."""
    for stage in context.stages_named(*_DTYPE_CASTS):
        if stage.before is None or stage.after is None:
            continue
        for key in stage.before.rewards:
            before = stage.before.outputs[key].dtype
            spec = stage.after.outputs.get(key)
            if key not in stage.in_keys or spec is None or before is None or spec.dtype is None:
                continue
            is_lossless = spec.dtype.is_floating_point and str(spec.dtype) not in _SHORT
            is_chosen = stage.has_in_keys_argument or _is_double(stage.before.outputs[key])
            if before != spec.dtype and not (is_lossless and is_chosen):
                cast = f"from {dtype_name(before)} to {dtype_name(spec.dtype)}"
                message = f"{format_key(key)!r} is cast {cast}"
                hint = "list the keys to cast in in_keys"
                yield Violation(message, hint, stage.index, key, _exclude_reward(stage, key))


@rule(
    "TDX462",
    "cast has no effect",
    "suggestion",
    why="""
    No key at this position has the dtype that the stage casts from, in either direction. It may
    be left over from an env in double precision.
    """,
    wrong="Pendulum-v1 -t DoubleToFloat -t RewardSum",
    right="Pendulum-v1 -t RewardSum",
)
def cast_without_effect(context: LintContext) -> Iterator[Violation]:
    """Find casts that change no spec."""
    for stage in context.stages_named(*_DTYPE_CASTS):
        if stage.before is None or stage.after is None or stage.in_keys != stage.out_keys:
            continue
        sides = (
            (stage.before.outputs, stage.after.outputs),
            (stage.before.inputs, stage.after.inputs),
        )
        if all(_dtypes(before) == _dtypes(after) for before, after in sides):
            fix = remove_stage(stage.index, stage.config, safe=True)
            yield Violation("no key has the dtype that it casts", "remove it", stage.index, fix=fix)


@rule(
    "TDX463",
    "data is moved to a device and back",
    "warning",
    why="""
    Each transfer between devices copies data and synchronizes in each step. A chain that moves
    data to a device and back, or to the device that it is on, pays for it twice. Move the data
    once, where it is smallest, or place the env on the device: `env: {device: cuda}`.
    """,
    wrong="""Pendulum-v1 -t 'DeviceCastTransform("cuda")' -t RewardSum
    -t 'DeviceCastTransform("cpu")'""",
    right="""Pendulum-v1 -t RewardSum -t 'DeviceCastTransform("cuda")'""",
)
def device_and_back(context: LintContext) -> Iterator[Violation]:
    """Find transfers to a device that the data was on before."""
    visited = [context.pipeline.env.device or "cpu"]
    for stage in context.stages_named("DeviceCastTransform"):
        device = str(stage.arguments.get("device"))
        if stage.has_in_keys_argument:
            return
        if device == visited[-1]:
            fix = remove_stage(stage.index, stage.config, safe=True)
            yield Violation(f"the data is already on {device}", "remove it", stage.index, fix=fix)
        elif device in visited:
            path = " → ".join([*visited, device])
            hint = "move once, after the stages that reduce the data"
            yield Violation(f"the data is moved {path}", hint, stage.index)
        visited.append(device)


@rule(
    "TDX464",
    "chain outputs double precision",
    "suggestion",
    why="""
    The env computes in double precision, and no stage casts. A policy in single precision fails
    on float64 because of the dtype, and stored steps take twice the memory.

    Put `DoubleToFloat` first, so that the later stages compute in single precision too.
    """,
    wrong="HalfCheetah-v5 -t RewardSum",
    right="HalfCheetah-v5 -t DoubleToFloat -t RewardSum",
)
def double_precision_output(context: LintContext) -> Iterator[Violation]:
    """Find observations and rewards that stay in double precision."""
    last, first = context.last, context.stages[0].before if context.stages else context.last
    if last is None or first is None:
        return
    env_keys = [key for key in first.outputs if _is_double(first.outputs[key])]
    doubles = [key for key in env_keys if key in last.outputs and _is_double(last.outputs[key])]
    if doubles and env_keys == doubles:
        names = ", ".join(repr(format_key(key)) for key in doubles)
        fix = insert_stage(0, StageConfig("DoubleToFloat"))
        message = f"{names} {'is' if len(doubles) == 1 else 'are'} in double precision"
        yield Violation(message, "put DoubleToFloat first", None, doubles[0], fix)


def _is_double(spec: TensorSpec) -> bool:
    return str(spec.dtype) == "torch.float64"


def _exclude_reward(stage: LintStage, reward: NestedKey) -> Fix | None:
    """Return a fix that casts the same keys except the reward."""
    others = tuple(key for key in stage.in_keys if key != reward)
    if not others or stage.in_keys != stage.out_keys:
        return None
    arguments = {"in_keys": others}
    if stage.in_keys_inv and not stage.arguments.get("in_keys_inv"):
        arguments["in_keys_inv"] = tuple(stage.in_keys_inv)
    return change_arguments(stage.index, stage.config, **arguments)


def _dtypes(specs: Mapping[NestedKey, TensorSpec]) -> dict[NestedKey, object]:
    return {key: spec.dtype for key, spec in specs.items()}
