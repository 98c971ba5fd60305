"""Crop the center of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import ObservationTransform, TimeBehavior
from tdx.core.transforms.images import (
    LIKELY_CHANNELS,
    LinearImage,
    center_crop_image,
    center_crop_start,
    check_channels_first,
    crop_matrix,
    image_size,
)
from tdx.foundation.keys import NestedKey
from tdx.specs import TensorSpec

MOST_CHANNELS = max(LIKELY_CHANNELS)


class CenterCrop(ObservationTransform):
    """Crop the center ``[*B, C, w, h]`` of images ``[*B, C, H, W]``.

    A smaller image is padded with zeros.

    Args:
        w: Size of the second to last dim of the result.
        h: Size of the last dim of the result; ``w`` by default.
        in_keys: Images to read; ``pixels`` by default.
        out_keys: Keys to write; the in-keys by default.

    Raises:
        ArgumentError: A size is not an integer of at least 1, or (when its specs are computed, or
            in a call) an image has fewer than 3 dims or has its channels last.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import CenterCrop
        >>> CenterCrop(84)(TensorDict(pixels=torch.rand(4, 3, 210, 160)))["pixels"].shape
        torch.Size([4, 3, 84, 84])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("pixels",)

    def __init__(
        self,
        w: int,
        h: int | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.w = image_size(w, "w")
        self.h = self.w if h is None else image_size(h, "h")

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        shape, w, h = tensor.shape, self.w, self.h
        if len(shape) < 3 or shape[-1] <= MOST_CHANNELS:
            check_channels_first(shape, "CenterCrop")
        return center_crop_image(tensor, w, h)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        check_channels_first(spec.shape, "CenterCrop")
        return spec.apply_view(self._apply_transform)

    def linear_image(self, shape: tuple[int, int, int], dtype: torch.dtype) -> LinearImage | None:
        if dtype != LinearImage.out_dtype:
            return None
        check_channels_first(torch.Size(shape), "CenterCrop")
        (_, height, width), (w, h) = shape, (self.w, self.h)
        if height < w or width < h:
            return None
        rows = crop_matrix(height, center_crop_start(height, w), w)
        cols = crop_matrix(width, center_crop_start(width, h), h)
        return LinearImage(shape, dtype, rows=rows, cols=cols)

    def __repr__(self) -> str:
        return f"CenterCrop(w={self.w}, h={self.h}, keys={self.in_keys})"
