"""Linear stages on images, run as one: equal to the stages one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tdx import CenterCrop, Crop, GrayScale, Resize, ToTensorImage
from tdx.core.plan.image_fusion import ImageKernel, compile_image, has_linear_image, linear_form
from tdx.core.transforms import Transform
from tdx.core.transforms.images import INTERPOLATIONS
from tests.programs import examples

Shape = tuple[int, int, int]
SIZES = st.integers(1, 40)


def staged(stages: Sequence[Transform], frame: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    image = torch.from_numpy(frame)
    for stage in stages:
        image = stage._apply_transform(image)
    return image.numpy()


def kernel_of(stages: Sequence[Transform], shape: Shape, dtype: torch.dtype) -> ImageKernel:
    form = linear_form(stages, shape, dtype)
    assert form is not None
    return ImageKernel(form)


def a_frame(shape: Shape, dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(seed)
    if dtype == np.float32:
        return generator.random(shape, np.float32)
    return generator.integers(0, 256, shape).astype(dtype)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[Transform], np.ndarray[Any, Any]]:
    """Draw stages in a valid order, and a frame for them."""
    channels = draw(st.sampled_from([1, 3, 3, 4]))
    planes = channels, draw(SIZES) + 4, draw(SIZES) + 4
    stages: list[Transform] = []
    last = draw(st.booleans())
    dtype = draw(st.sampled_from([np.uint8, np.int32, np.int64, np.float32]))
    if last:
        stages.append(ToTensorImage(from_int=draw(st.sampled_from([None, True]))))
    shape = (planes[1], planes[2], channels) if last else planes
    size = planes
    for _ in range(draw(st.integers(0 if last else 1, 3))):
        kind = draw(st.sampled_from(["gray", "resize", "crop"]))
        if kind == "gray" and size[0] == 3:
            stages.append(GrayScale())
            size = 1, *size[1:]
        elif kind == "crop":
            size = size[0], draw(st.integers(1, size[1])), draw(st.integers(1, size[2]))
            stages.append(CenterCrop(*size[1:]))
        else:
            size = size[0], draw(SIZES), draw(SIZES)
            mode = draw(st.sampled_from(INTERPOLATIONS))
            stages.append(Resize(*size[1:], interpolation=mode))
        if size[1] > 4 and size[2] <= 4:  # could be read as channels-last
            size = size[0], size[1], 6
            stages[-1] = Resize(*size[1:])
    return stages, a_frame(shape, dtype if last else np.float32, draw(st.integers(0, 99)))


@given(chains())
@settings(max_examples=examples(150))
def test_one_kernel_equals_its_stages(
    case: tuple[list[Transform], np.ndarray[Any, Any]],
) -> None:
    stages, frame = case
    kernel = kernel_of(stages, frame.shape, torch.from_numpy(frame).dtype)
    expected = staged(stages, frame)
    result = kernel(frame)
    assert result.shape == kernel.form.out_shape == expected.shape
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "stages",
    [
        (ToTensorImage(), GrayScale(), Resize(84, 84)),
        (ToTensorImage(), Resize(84, 84), GrayScale()),
        (ToTensorImage(), Resize(84, 84)),
        (ToTensorImage(), GrayScale(), Resize(110, 84), CenterCrop(84)),
        (ToTensorImage(), CenterCrop(160), GrayScale()),
        (ToTensorImage(), Crop(160, 120, top=30, left=7), GrayScale()),
        (ToTensorImage(),),
    ],
    ids=lambda stages: "-".join(type(stage).__name__ for stage in stages),
)
def test_frames_of_pong(stages: tuple[Transform, ...]) -> None:
    frames = [a_frame((210, 160, 3), np.uint8, seed) for seed in range(3)]
    form = linear_form(stages, (210, 160, 3), torch.uint8)
    assert form is not None
    kernel = compile_image(form)
    assert kernel is not None
    results = [kernel(frame) for frame in frames]
    block = np.empty((3, *form.out_shape), np.float32)
    for frame, row in zip(frames, block, strict=True):
        assert kernel(frame, row) is row
    for frame, result, row in zip(frames, results, block, strict=True):
        np.testing.assert_allclose(result, staged(stages, frame), rtol=0, atol=1e-6)
        np.testing.assert_array_equal(result, row)


def test_frames_and_results_of_any_strides() -> None:
    stages = ToTensorImage(), Resize(9, 11)
    kernel = kernel_of(stages, (20, 30, 3), torch.uint8)
    wide = a_frame((40, 30, 6), np.uint8)
    frame = wide[::2, ::-1, 3:]
    out = np.zeros((3, 9, 22), np.float32)
    kernel(frame, out[..., ::2])
    np.testing.assert_allclose(out[..., ::2], staged(stages, frame.copy()), atol=1e-6)
    assert not out[..., 1::2].any()


@pytest.mark.parametrize(
    ("stages", "shape", "dtype"),
    [
        ((GrayScale(),), (3, 8, 8), torch.uint8),
        ((Resize(4),), (3, 8, 8), torch.uint8),
        ((Resize(4),), (3, 8, 8), torch.float64),
        ((ToTensorImage(dtype=torch.float64),), (8, 8, 3), torch.uint8),
        ((ToTensorImage(unsqueeze=True),), (8, 8, 3), torch.uint8),
        ((ToTensorImage(), ToTensorImage()), (8, 8, 3), torch.uint8),
    ],
)
def test_rounding_stages_and_other_dtypes_are_not_fused(
    stages: tuple[Transform, ...], shape: Shape, dtype: torch.dtype
) -> None:
    assert linear_form(stages, shape, dtype) is None


@pytest.mark.parametrize(
    ("stages", "shape", "dtype"),
    [
        ((CenterCrop(4),), (3, 8, 8), torch.float32),
        ((Resize(4),), (3, 8, 8), torch.float32),
        ((ToTensorImage(from_int=False), CenterCrop(4)), (8, 8, 3), torch.uint8),
    ],
    ids=["view", "floats", "copy"],
)
def test_views_and_floats_have_no_kernel(
    stages: tuple[Transform, ...], shape: Shape, dtype: torch.dtype
) -> None:
    form = linear_form(stages, shape, dtype)
    assert form is not None
    assert compile_image(form) is None


def test_subclass_with_an_own_hook_is_not_fused() -> None:
    class Louder(GrayScale):
        def _apply_transform(self, tensor: Tensor) -> Tensor:
            return super()._apply_transform(tensor) * 2

    class Named(GrayScale):
        pass

    assert has_linear_image(Named)
    assert not has_linear_image(Louder)
    assert linear_form((Louder(),), (3, 8, 8), torch.float32) is None
