"""Resize images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from tdx.core.transforms import ObservationTransform, TimeBehavior
from tdx.core.transforms.images import (
    INTERPOLATIONS,
    Interpolation,
    LinearImage,
    Matrix,
    check_channels_first,
    image_size,
    resize_image,
)
from tdx.core.transforms.spec_maps import map_bounds
from tdx.core.transforms.validation import check_choice
from tdx.foundation.keys import NestedKey
from tdx.specs import Bounded, TensorSpec, Unbounded


class Resize(ObservationTransform):
    """Resize images ``[*B, C, H, W]`` to ``[*B, C, w, h]``, with antialiasing.

    Images of bytes stay bytes; the rounding error is at most 1.

    Args:
        w: Size of the second to last dim of the result.
        h: Size of the last dim of the result; ``w`` by default.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic".
        in_keys: Images to read; ``pixels`` by default.
        out_keys: Keys to write; the in-keys by default.

    Raises:
        ArgumentError: A size is not an integer of at least 1, or (when its specs are computed, or
            in a call) an image has fewer than 3 dims or has its channels last.
        UnknownNameError: The interpolation is unknown.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import Resize
        >>> Resize(84, 84)(TensorDict(pixels=torch.rand(4, 3, 210, 160)))["pixels"].shape
        torch.Size([4, 3, 84, 84])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("pixels",)

    def __init__(
        self,
        w: int,
        h: int | None = None,
        interpolation: Interpolation = "bilinear",
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.w = image_size(w, "w")
        self.h = self.w if h is None else image_size(h, "h")
        name = getattr(interpolation, "value", interpolation)  # accepts torchvision's enum too
        check_choice(name, "interpolation", INTERPOLATIONS)
        self.interpolation: Interpolation = name

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        check_channels_first(tensor.shape, "Resize")
        return resize_image(tensor, self.w, self.h, self.interpolation)

    def linear_image(self, shape: tuple[int, int, int], dtype: torch.dtype) -> LinearImage | None:
        if dtype != LinearImage.out_dtype:
            return None
        check_channels_first(torch.Size(shape), "Resize")
        rows, cols = (
            None if size == new else _weights(size, new, self.interpolation)
            for size, new in zip(shape[1:], (self.w, self.h), strict=True)
        )
        return LinearImage(shape, dtype, rows=rows, cols=cols)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        check_channels_first(spec.shape, "Resize")
        if isinstance(spec, Bounded) and self.interpolation != "bicubic":
            if bool((spec.low.isfinite() & spec.high.isfinite()).all()):
                return map_bounds(spec, self._apply_transform)
            return spec.replace(low=spec.low.min(), high=spec.high.max(), shape=self._shape(spec))
        # Cubic weights overshoot, so the bounds do not hold.
        return Unbounded(shape=self._shape(spec), dtype=spec.dtype, device=spec.device)

    def _shape(self, spec: TensorSpec) -> torch.Size:
        return torch.Size((*spec.shape[:-2], self.w, self.h))

    def __repr__(self) -> str:
        return (
            f"Resize(w={self.w}, h={self.h}, interpolation={self.interpolation!r}, "
            f"keys={self.in_keys})"
        )


@lru_cache(maxsize=64)
def _weights(size: int, new: int, interpolation: Interpolation) -> Matrix:
    """Return the matrix that resizes ``size`` rows to ``new``: the resized unit vectors."""
    units = torch.eye(size, dtype=LinearImage.out_dtype, device="cpu").unsqueeze(0)
    resized = resize_image(units, new, size, interpolation)
    matrix: Matrix = resized[0].double().numpy()
    matrix.setflags(write=False)
    return matrix
