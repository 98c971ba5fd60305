"""Images and shapes: layouts, leading dims, dtypes, bounds, the inverse, and invalid inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchvision.transforms.v2 import functional

from tdx import (
    Bounded,
    CatFrames,
    CenterCrop,
    Compose,
    Composite,
    Crop,
    GrayScale,
    GymEnv,
    InitTracker,
    Resize,
    ToTensorImage,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.core.transforms.images import INTERPOLATIONS, Interpolation
from tdx.foundation.errors import ArgumentError
from tdx.transforms import Transform
from tests.transforms.envs import RowsEnv

LEADING = [(), (5,), (2, 5), (2, 1, 5)]


def images(leading: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    pixels = torch.randint(256, (*leading, 3, 10, 12), dtype=torch.uint8)
    return pixels.to(dtype) / 255 if dtype.is_floating_point else pixels.to(dtype)


# Images


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("leading", LEADING, ids=str)
@pytest.mark.parametrize(
    ("make", "function"),
    [
        (GrayScale, functional.rgb_to_grayscale),
        (partial(CenterCrop, 4, 7), partial(functional.center_crop, output_size=[4, 7])),
        (partial(CenterCrop, 10, 12), lambda image: image),
        (partial(CenterCrop, 13, 5), partial(functional.center_crop, output_size=[13, 5])),
        (
            partial(Crop, 4, 7, top=2, left=5),
            partial(functional.crop, top=2, left=5, height=4, width=7),
        ),
        (
            partial(Crop, 9, 7, top=2, left=8),
            partial(functional.crop, top=2, left=8, height=9, width=7),
        ),
    ],
    ids=["gray", "center", "whole", "padded-center", "crop", "padded"],
)
def test_images_equal_those_of_torchvision(
    make: Callable[[], Transform],
    function: Callable[[Tensor], Tensor],
    leading: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    pixels = images(leading, dtype)
    result = make()(TensorDict(pixels=pixels))["pixels"]
    assert result.dtype is dtype
    assert torch.equal(result, function(pixels))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("make", [GrayScale, partial(CenterCrop, 4), partial(Resize, 4)])
def test_extreme_images_are_within_the_spec(
    make: Callable[[], Transform], dtype: torch.dtype
) -> None:
    highest = 255 if dtype is torch.uint8 else 1
    spec = Bounded(0, highest, shape=(3, 10, 12), dtype=dtype)
    promised = make().transform_observation_spec(Composite(pixels=spec))["pixels"]
    assert isinstance(promised, Bounded)
    for end in (spec.low, spec.high):
        assert promised.is_in(make()(TensorDict(pixels=end))["pixels"])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float16, torch.float32])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_resize_equals_torchvision(interpolation: Interpolation, dtype: torch.dtype) -> None:
    """Stack by stack and image by image."""
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    modes = pytest.importorskip("torchvision.transforms.v2").InterpolationMode
    stack = images((2, 5), dtype)
    resized = Resize(4, 7, interpolation)(TensorDict(pixels=stack))["pixels"]
    expected = [
        functional.resize(image, [4, 7], modes(interpolation), antialias=True)
        for image in stack.flatten(0, 1)
    ]
    torch.testing.assert_close(resized.flatten(0, 1), torch.stack(expected), rtol=0, atol=0)


def test_gray_bytes_are_at_most_254() -> None:
    spec = Composite(pixels=Bounded(0, 255, shape=(3, 4, 4), dtype=torch.uint8))
    gray = GrayScale().transform_observation_spec(spec)["pixels"]
    assert isinstance(gray, Bounded)
    assert (gray.dtype, gray.shape) == (torch.uint8, (1, 4, 4))
    assert (gray.low.max().item(), gray.high.min().item()) == (0, 254)


def test_an_atari_chain() -> None:
    chain = Compose(ToTensorImage(), GrayScale(), CenterCrop(160), Resize(84), CatFrames(4, dim=-3))
    env = TransformedEnv(GymEnv("ALE/Pong-v5", frameskip=1), chain)
    check_env_specs(env)
    assert env.rollout(3)["pixels"].shape == (3, 4, 84, 84)


def test_a_crop_pads_a_smaller_image_with_zeros() -> None:
    crop = CenterCrop(6, 2)
    images = torch.rand(5, 3, 4, 4) + 1.0
    cropped = crop(TensorDict(pixels=images))["pixels"]
    assert cropped.shape == (5, 3, 6, 2)
    assert torch.equal(cropped[..., 1:5, :], images[..., 1:3])
    assert not cropped[..., [0, 5], :].any()
    spec = Composite(pixels=Bounded(1.0, 2.0, shape=(3, 4, 4)))
    assert cropped[0] in crop.transform_observation_spec(spec)["pixels"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (GrayScale, r"GrayScale .*\(6, 7, 3\) has its channels last .put ToTensorImage.. before"),
        (partial(CenterCrop, 4), r"CenterCrop .*\(6, 7, 3\) has its channels last .put ToTensor"),
        (partial(GrayScale, ["observation"]), r"images \[\*B, C, H, W\], got shape \(3,\)"),
        (partial(CenterCrop, 4, in_keys=["observation"]), r"got shape \(3,\)"),
        (partial(Crop, 4, 3, 6, in_keys=["image"]), r"a crop at \(6, 0\) is outside the image"),
    ],
)
def test_incompatible_images(make: Callable[[], Transform], message: str) -> None:
    env = TransformedEnv(RowsEnv(), Compose(InitTracker(), make()))
    with pytest.raises(ArgumentError, match=message) as caught:
        env.output_spec  # noqa: B018
    assert caught.value.where.stage == 1


@pytest.mark.parametrize(
    ("transform", "shape", "message"),
    [
        (GrayScale(), (1, 9, 9), "they are grayscale already: remove GrayScale"),
        (GrayScale(), (12, 9, 9), "has 12 .put GrayScale before the stage"),
        (GrayScale(), (2, 4, 5, 3), "has its channels last"),
    ],
)
def test_incompatible_images_without_a_spec(
    transform: Transform, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        transform(TensorDict(pixels=torch.zeros(shape)))


@pytest.mark.parametrize("size", [0, -3, 2.0, True])
def test_invalid_crop_size(size: object) -> None:
    with pytest.raises(ArgumentError, match="w must be an integer of at least 1"):
        CenterCrop(cast(Any, size))


def test_bytes_without_bounds_become_floats_with_bounds() -> None:
    class Rendered(RowsEnv):
        def __init__(self) -> None:
            super().__init__()
            observed = self.observation_spec.clone()
            observed.unlock_()
            observed["pixels"] = Unbounded((6, 7, 3), dtype=torch.uint8)
            self.observation_spec = observed

    env = TransformedEnv(Rendered(), Compose(ToTensorImage(), Resize(4)))
    check_env_specs(env)
    spec = env.observation_spec["pixels"]
    assert isinstance(spec, Bounded)
    assert (spec.low.min().item(), spec.high.max().item()) == (0, 1)
    kept = TransformedEnv(Rendered(), ToTensorImage(from_int=False))
    assert isinstance(kept.observation_spec["pixels"], Unbounded)


def test_a_padded_crop_is_within_its_spec() -> None:
    env = TransformedEnv(RowsEnv((2,)), Crop(9, 5, top=1, in_keys=["image"], out_keys=["part"]))
    check_env_specs(env)
    assert env.observation_spec["part"].high[..., -1, :].max() == 0
