"""Images: their layout, their dtype, and what is done to them twice."""

from __future__ import annotations

from collections.abc import Iterator

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.fix import changed, moved, removed
from tdx.inspection.lint.rule import Found, rule
from tdx.keys import NestedKey, format_key

_SHRINK = ("Resize", "CenterCrop")
_CASTS = ("ToTensorImage", "DTypeCastTransform")
_CHANNELS = (1, 3, 4)
_PIXELS = "--env CartPole-v1 --from-pixels"


@rule(
    "TDX431",
    "images become floats before they become small",
    "advice",
    why="""
    A pixel is one byte, and four as a float. `Resize` and `CenterCrop` take bytes as well, so a
    cast in front of them turns every pixel of the large image into a float, most of which are
    thrown away right after. A resized byte is rounded to a 255th.

    Where the images have their channels first already, cast behind the stages that make them small.
    (`ToTensorImage` on images with their channels last also brings the channels to the front, which
    those stages need; there this rule is silent.)
    """,
    wrong=f"""{_PIXELS} --t 'PermuteTransform([-1, -3, -2], in_keys=["pixels"])'
    --t 'ToTensorImage(shape_tolerant=True)' --t 'CenterCrop(200)'""",
    right=f"""{_PIXELS} --t 'PermuteTransform([-1, -3, -2], in_keys=["pixels"])'
    --t 'CenterCrop(200)' --t 'ToTensorImage(shape_tolerant=True)'""",
)
def floats_before_small(context: LintContext) -> Iterator[Found]:
    """Casts of bytes that keep the layout, right in front of a stage that shrinks."""
    for cast, small, key in context.pairs(_CASTS, _SHRINK):
        if small.index != cast.index + 1 or cast.before is None or cast.after is None:
            continue
        before, after = cast.before.output.get(key), cast.after.output.get(key)
        if before is None or after is None or before.dtype is None or after.dtype is None:
            continue
        bytes_in = str(before.dtype) == "torch.uint8"
        if bytes_in and after.dtype.is_floating_point and before.shape == after.shape:
            message = f"{format_key(key)!r} is cast to floats before {small.name} makes it smaller"
            fix = moved(cast.index, small.index, cast.config, small.config)
            yield Found(message, f"cast behind {small.name}", cast.index, key, fix)


@rule(
    "TDX432",
    "an image is made a float twice",
    "warning",
    why="""
    The second `ToTensorImage` meets channels that are in front already and moves the last dim there
    once more, so that width takes the place of the channels. Its values are not divided again, so
    nothing in the numbers tells.
    """,
    wrong=f"{_PIXELS} --t ToTensorImage --t ToTensorImage",
    right=f"{_PIXELS} --t ToTensorImage",
    replaces=True,
)
def tensor_image_twice(context: LintContext) -> Iterator[Found]:
    """Two of them with no permutation between."""
    for first, second, key in context.pairs(["ToTensorImage"], ["ToTensorImage"]):
        between = context.stages[first.index + 1 : second.index]
        if not any(stage.name == "PermuteTransform" or stage.opaque for stage in between):
            message = f"stage {first.index} has made {format_key(key)!r} channels-first already"
            fix = removed(second.index, second.config)
            yield Found(message, "remove it", second.index, key, fix)


@rule(
    "TDX433",
    "gray images are made gray",
    "error",
    why="""
    `GrayScale` weighs red, green and blue, and an image that is gray already has one channel. The
    chain cannot be built.
    """,
    wrong=f"{_PIXELS} --t ToTensorImage --t GrayScale --t GrayScale",
    right=f"{_PIXELS} --t ToTensorImage --t GrayScale",
    replaces=True,
)
def gray_made_gray(context: LintContext) -> Iterator[Found]:
    """Gray stages in front of which there is one channel."""
    for stage in context.named("GrayScale"):
        for key in stage.in_keys:
            shape = _image_shape(context, stage, key)
            if shape is not None and shape[-3] == 1 and shape[-1] > 4:
                fix = removed(stage.index, stage.config) if len(stage.in_keys) == 1 else None
                message = f"{format_key(key)!r} has one channel already"
                yield Found(message, "remove it", stage.index, key, fix)


@rule(
    "TDX434",
    "images are resized twice",
    "advice",
    why="""
    Each resizing blurs, and the first one costs the most because it sees the large image. Where
    nothing between the two looks at the image, one resizing to the last size gives a sharper result
    for less.
    """,
    wrong=f"{_PIXELS} --t ToTensorImage --t 'Resize(128)' --t 'Resize(64)'",
    right=f"{_PIXELS} --t ToTensorImage --t 'Resize(64)'",
)
def resized_twice(context: LintContext) -> Iterator[Found]:
    """One right behind the other."""
    for first, second, key in context.pairs(["Resize"], ["Resize"]):
        if second.index == first.index + 1 and first.in_keys == first.out_keys == second.in_keys:
            message = f"{format_key(key)!r} is resized again by stage {second.index}"
            fix = removed(first.index, first.config)
            yield Found(message, "resize once, to the last size", first.index, key, fix)


@rule(
    "TDX435",
    "frames are stacked along height or width",
    "warning",
    why="""
    `CatFrames` joins frames along the dim that it is given. Pictures joined along their height or
    width become one long picture, and convolutions see a seam in the place of motion. Stacks of
    frames belong into the channels: `dim=-3` where these are first, as behind `ToTensorImage`.
    """,
    wrong=f"{_PIXELS} --t ToTensorImage --t 'CatFrames(4, dim=-1)'",
    right=f"{_PIXELS} --t ToTensorImage --t 'CatFrames(4, dim=-3)'",
)
def stacked_along_an_edge(context: LintContext) -> Iterator[Found]:
    """Stacks of images along a dim that is not that of the channels."""
    for stage in context.named("CatFrames"):
        for key in stage.in_keys:
            shape, dim = _image_shape(context, stage, key), stage.arguments["dim"]
            channels = None if shape is None else _channel_dim(shape)
            if channels is not None and dim in (-1, -2, -3) and dim != channels:
                what = {-3: "height", -2: "width"} if channels == -1 else {-2: "height"}
                message = f"dim={dim} joins {format_key(key)!r} along its {what.get(dim, 'width')}"
                fix = changed(stage.index, stage.config, dim=channels)
                hint = f"its channels are in dim {channels}"
                yield Found(message, hint, stage.index, key, fix)
                break


def _image_shape(context: LintContext, stage: LintStage, key: NestedKey) -> tuple[int, ...] | None:
    """The shape of an entry without the batch, where it has three dims."""
    spec = None if stage.before is None else stage.before.output.get(key)
    if spec is None or context.env is None:
        return None
    shape = tuple(spec.shape)[len(context.env.batch_size) :]
    return shape if len(shape) == 3 else None


def _channel_dim(shape: tuple[int, ...]) -> int | None:
    """The dim of the channels, where only one can be it."""
    first, last = shape[0] in _CHANNELS, shape[-1] in _CHANNELS
    if first and min(shape[1:]) > 4:
        return -3
    return -1 if last and min(shape[:-1]) > 4 else None
