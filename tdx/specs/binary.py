"""The ``Binary`` spec: zeros and ones."""

from __future__ import annotations

from typing import Any

import torch

from tdx.errors import SpecError
from tdx.specs.categorical import Categorical
from tdx.specs.conversion import Device
from tdx.specs.shapes import as_size


class Binary(Categorical):
    """Zeros and ones.

    Args:
        n: Size of the last dimension; derived from ``shape`` if not given.
        shape: Shape of the values; ``(n,)`` if not given.
        device: Device of the values.
        dtype: Dtype of the values.

    Raises:
        SpecError: Neither ``n`` nor ``shape`` is given, or ``shape`` does not end with ``n``.

    Example:
        >>> Binary(3).zero()
        tensor([0, 0, 0], dtype=torch.int8)
    """

    def __init__(
        self,
        n: int | None = None,
        shape: Any = None,
        device: Device | None = None,
        dtype: torch.dtype | str = torch.int8,
    ) -> None:
        if n is None and shape is None:
            raise SpecError("a Binary needs a size", hint="give n or shape")
        size = as_size(n if shape is None else shape)
        if n is not None and (not size or size[-1] != n):
            raise SpecError(
                f"the shape {tuple(size)} of a Binary must end in n={n}",
                hint="leave n out, or end the shape in it",
            )
        super().__init__(2, size, device, dtype)

    def replace(self, **changes: Any) -> Any:
        """Return a copy with ``shape``, ``device`` or ``dtype`` changed."""
        mask = changes.pop("mask", self._mask)
        copied = Binary(**{**self._arguments(), **changes})
        copied.update_mask(mask)
        return copied

    def _arguments(self) -> dict[str, Any]:
        return {"shape": self._shape, "device": self._device, "dtype": self._dtype}
