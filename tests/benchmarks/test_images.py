"""Image transforms compared with the functions of torchvision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tdx
from tests.benchmarks.bars import IMAGES, ImageCase
from tests.benchmarks.conftest import Compare, Run

CALLS = 64
ROUNDS = 15


def torchvisions(name: str) -> Callable[[Tensor], Tensor]:
    """Return the function of torchvision for a transform."""
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "ToTensorImage": lambda image: functional.to_dtype_image(
            image.movedim(-1, -3).contiguous(), torch.float32, scale=True
        ),
        "GrayScale": functional.rgb_to_grayscale_image,
        "CenterCrop": lambda image: functional.center_crop_image(image, [84, 84]),
        "Resize": lambda image: functional.resize_image(image, [84, 84], antialias=True),
    }
    return calls[name]


def images(case: ImageCase) -> Tensor:
    """Return random images in the layout of the transform."""
    name, dtype, batch = case
    shape = (batch, 210, 160, 3) if name == "ToTensorImage" else (batch, 3, 210, 160)
    noise = torch.randint(256, shape, dtype=torch.uint8)
    return noise if dtype == "uint8" else noise / 255


@pytest.mark.parametrize("case", IMAGES, ids=lambda case: "-".join(map(str, case)))
def test_image_transform(compare: Compare, case: ImageCase) -> None:
    name, _, batch = case
    transform = tdx.ToTensorImage() if name == "ToTensorImage" else _sized(name)
    image, calls = images(case), CALLS // batch

    def repeat(function: Callable[[Tensor], Tensor]) -> Run:
        def work() -> None:
            for _ in range(calls):
                function(image)

        return Run(work, calls)

    own, call = transform._apply_transform, torchvisions(name)
    compare(IMAGES[case], {"tdx": repeat(own), "bare": repeat(call)}, rounds=ROUNDS)
    torch.testing.assert_close(own(image), call(image))


def _sized(name: str) -> tdx.Transform:
    return tdx.GrayScale() if name == "GrayScale" else getattr(tdx, name)(84, 84)
