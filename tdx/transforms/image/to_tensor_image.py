"""Convert images of bytes with channels last to floats with channels first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tdx.core.transforms import ObservationTransform, TimeBehavior
from tdx.core.transforms.images import LinearImage
from tdx.core.transforms.spec_maps import map_bounds
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.specs import Bounded, TensorSpec, Unbounded

FRACTION = 1 / 255


class ToTensorImage(ObservationTransform):
    """Convert integer images ``[*B, H, W, C]`` to float images ``[*B, C, H, W]`` from 0 to 1.

    Args:
        from_int: Divide by 255. ``None``: divide integers but not floats.
        unsqueeze: Add a leading dim of size 1 to an image without batch dims.
        dtype: Dtype of the result. ``None``: torch's default dtype.
        in_keys: Images to read; ``pixels`` by default.
        out_keys: Keys to write; the in-keys by default.
        shape_tolerant: Keep the layout of an image whose last dim is not 3, since its channels
            are first already.

    Raises:
        ArgumentError: The dtype is an integer dtype but values are divided, or an image has fewer
            than 3 dims (when its specs are computed, or in a call).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import ToTensorImage
        >>> frame = torch.full((2, 5, 3), 51, dtype=torch.uint8)
        >>> pixels = ToTensorImage()(TensorDict(pixels=frame))["pixels"]
        >>> pixels.shape, pixels[0, 0, 0]
        (torch.Size([3, 2, 5]), tensor(0.2000))
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("pixels",)

    def __init__(
        self,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: torch.dtype | None = None,
        *,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        shape_tolerant: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys)
        if dtype is not None and not dtype.is_floating_point and from_int is not False:
            raise ArgumentError(
                f"dtype must be floating for values from 0 to 1, got {dtype}",
                hint="remove it, or pass from_int=False to keep integers",
            )
        self.from_int = from_int
        self.unsqueeze = unsqueeze
        self.dtype = dtype
        self.shape_tolerant = shape_tolerant
        if unsqueeze:
            # A chunk of images has leading dims, a single image has none.
            self.time_behavior = TimeBehavior.CONTROL

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        shape = tensor.shape
        _check_layout(shape)
        divide = not tensor.is_floating_point() if self.from_int is None else self.from_int
        if not self.shape_tolerant or shape[-1] == 3:
            tensor = tensor.movedim(-1, -3)
        # Layout first, since integers have fewer bytes than floats.
        floats = tensor.contiguous().to(self.dtype or torch.get_default_dtype())
        if divide:
            # As in torchvision: a division takes twice as long as a multiplication.
            floats = floats * FRACTION if tensor.is_floating_point() else floats.mul_(FRACTION)
        tensor = floats
        return tensor.unsqueeze(0) if self.unsqueeze and tensor.ndim == 3 else tensor

    def linear_image(self, shape: tuple[int, int, int], dtype: torch.dtype) -> LinearImage | None:
        made = self.dtype or torch.get_default_dtype()
        if made != LinearImage.out_dtype or self.unsqueeze:
            return None
        if dtype.is_floating_point and dtype != made:
            return None
        last = not self.shape_tolerant or shape[-1] == 3
        divide = not dtype.is_floating_point if self.from_int is None else self.from_int
        channels = shape[-1] if last else shape[0]
        return LinearImage(shape, dtype, last, mix=np.eye(channels) * FRACTION if divide else None)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        mapped = map_bounds(spec, self._apply_transform)
        if (
            spec.dtype is torch.uint8
            and self.from_int is not False
            and isinstance(mapped, Unbounded)
        ):
            # Many envs declare images of bytes without bounds.
            made, device = mapped.dtype, mapped.device
            return Bounded(0.0, 1.0, shape=mapped.shape, dtype=made, device=device)
        return mapped


def _check_layout(shape: torch.Size) -> None:
    if len(shape) < 3:
        raise ArgumentError(
            f"ToTensorImage takes images [*B, H, W, C], got shape {tuple(shape)}",
            hint="name the images by in_keys",
        )
