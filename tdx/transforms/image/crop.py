"""Crop images at a position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from tdx.core.transforms import ObservationTransform, TimeBehavior
from tdx.core.transforms.images import LinearImage, check_channels_first, crop_matrix, image_size
from tdx.core.transforms.spec_maps import map_bounds
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.specs import TensorSpec


class Crop(ObservationTransform):
    """Crop the part ``[*B, C, w, h]`` of images ``[*B, C, H, W]`` that starts at a position.

    Where an image ends before the crop, the rest is zero.

    Args:
        w: Size of the second to last dim of the result.
        h: Size of the last dim of the result; ``w`` by default.
        top: First row.
        left: First column.
        in_keys: Images to read; ``pixels`` by default.
        out_keys: Keys to write; the in-keys by default.

    Raises:
        ArgumentError: A size is not an integer of at least 1, a position is negative, or (when its
            specs are computed, or in a call) the image ends before the position, has fewer than
            3 dims or has its channels last.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import Crop
        >>> Crop(80, top=30)(TensorDict(pixels=torch.rand(4, 3, 210, 160)))["pixels"].shape
        torch.Size([4, 3, 80, 80])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("pixels",)

    def __init__(
        self,
        w: int,
        h: int | None = None,
        top: int = 0,
        left: int = 0,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.w = image_size(w, "w")
        self.h = self.w if h is None else image_size(h, "h")
        self.top = check_integer(top, "top", 0, "for example 30")
        self.left = check_integer(left, "left", 0, "for example 30")

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        self._check_image(tensor.shape)
        rows, cols = (self.top, self.top + self.w), (self.left, self.left + self.h)
        part = tensor[..., rows[0] : rows[1], cols[0] : cols[1]]
        missing = self.w - part.shape[-2], self.h - part.shape[-1]
        return part if missing == (0, 0) else pad(part, (0, missing[1], 0, missing[0]))

    def _is_inside(self, shape: torch.Size) -> bool:
        return self.top + self.w <= shape[-2] and self.left + self.h <= shape[-1]

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_image(spec.shape)
        if self._is_inside(spec.shape):
            return spec.apply_view(self._apply_transform)
        return map_bounds(spec, self._apply_transform)

    def linear_image(self, shape: tuple[int, int, int], dtype: torch.dtype) -> LinearImage | None:
        self._check_image(torch.Size(shape))
        if dtype != LinearImage.out_dtype or not self._is_inside(torch.Size(shape)):
            return None
        _, height, width = shape
        rows, cols = crop_matrix(height, self.top, self.w), crop_matrix(width, self.left, self.h)
        return LinearImage(shape, dtype, rows=rows, cols=cols)

    def _check_image(self, shape: torch.Size) -> None:
        check_channels_first(shape, "Crop")
        if shape[-2] <= self.top or shape[-1] <= self.left:
            raise ArgumentError(
                f"a crop at ({self.top}, {self.left}) is outside the image, which has "
                f"{shape[-2]} × {shape[-1]} in shape {tuple(shape)}",
                hint=f"top can be up to {shape[-2] - 1} and left up to {shape[-1] - 1}",
            )

    def __repr__(self) -> str:
        place = f"top={self.top}, left={self.left}"
        return f"Crop(w={self.w}, h={self.h}, {place}, keys={self.in_keys})"
