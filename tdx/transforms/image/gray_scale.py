"""Convert RGB images to grayscale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tdx.core.transforms import ObservationTransform, TimeBehavior
from tdx.core.transforms.images import LinearImage, channels_last, check_channels_first
from tdx.core.transforms.spec_maps import map_bounds
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.specs import TensorSpec

GRAY = (0.2989, 0.587, 0.114)


class GrayScale(ObservationTransform):
    """Convert RGB images ``[*B, 3, H, W]`` to grayscale ``[*B, 1, H, W]``.

    Gray is ``0.2989 * red + 0.587 * green + 0.114 * blue`` in the dtype of the image; integers
    are rounded down.

    Args:
        in_keys: Images to read; ``pixels`` by default.
        out_keys: Keys to write; the in-keys by default.

    Raises:
        ArgumentError: An image has its channels last or does not have three (when its specs are
            computed, or in a call).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import GrayScale
        >>> GrayScale()(TensorDict(pixels=torch.rand(4, 3, 84, 84)))["pixels"].shape
        torch.Size([4, 1, 84, 84])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("pixels",)

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        _check_channels(tensor.shape)
        red, green, blue = tensor.unbind(-3)
        gray = red * GRAY[0]
        gray = gray.add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])
        return gray.unsqueeze(-3).to(tensor.dtype)

    def linear_image(self, shape: tuple[int, int, int], dtype: torch.dtype) -> LinearImage | None:
        if dtype != LinearImage.out_dtype or shape[0] != 3:  # integers are rounded down
            return None
        return LinearImage(shape, dtype, mix=np.array([GRAY]))

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return map_bounds(spec, self._apply_transform)


def _check_channels(shape: torch.Size) -> None:
    if len(shape) >= 3 and shape[-3] == 3:
        return
    check_channels_first(shape, "GrayScale")
    channels = shape[-3]
    if channels == 1:
        raise ArgumentError(
            f"GrayScale takes images of 3 channels, shape {tuple(shape)} has 1",
            hint="they are grayscale already: remove GrayScale",
        )
    if shape[-1] == 3:
        raise channels_last(shape, "GrayScale")
    raise ArgumentError(
        f"GrayScale takes images of 3 channels, shape {tuple(shape)} has {channels}",
        hint="put GrayScale before the stage that stacks frames along the channels",
    )
