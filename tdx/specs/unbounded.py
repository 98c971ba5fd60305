"""Specs of numbers without ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, as_device, as_dtype, as_size, safe_size
from tdx.specs.bounds import WIDE_UNSIGNED, extremes, is_continuous
from tdx.specs.boxes import ContinuousBox
from tdx.specs.spec import TensorSpec


class Unbounded(TensorSpec):
    """Any numbers that the dtype has, infinities and NaN too.

    Making one gives an ``UnboundedContinuous`` for floating and complex dtypes and an
    ``UnboundedDiscrete`` for integers and bools.

    Args:
        shape: shape of the values.
        device: device of the values.
        dtype: dtype of the values, torch's default one where it is left out.
        domain: "continuous" or "discrete", to override what follows from the dtype.

    Example:
        >>> Unbounded(3).is_in(torch.full((3,), 1e30))
        True
    """

    _dtype: torch.dtype
    _device: torch.device

    def __new__(
        cls,
        shape: Any = 1,
        device: Device | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> Unbounded:
        """An instance of the class for the dtype."""
        return object.__new__(_kind(domain, as_dtype(dtype)) if cls is Unbounded else cls)

    def __init__(
        self,
        shape: Any = 1,
        device: Device | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> None:
        if dtype is None and self.domain == "discrete" and domain is None:
            dtype = torch.int64
        self._shape = as_size(shape)
        self._device = as_device(device)
        self._dtype = as_dtype(dtype)

    @property
    def space(self) -> ContinuousBox | None:
        """The range of the dtype; ``None`` for complex numbers."""
        if self._dtype.is_complex:
            return None
        shape = safe_size(self._shape)
        low, high = (
            torch.full(shape, end, dtype=self._dtype, device=self._device)
            for end in extremes(self._dtype)
        )
        return ContinuousBox(low, high)

    def rand(self, shape: Any = ()) -> Tensor:
        """Standard normal values; for integers, equal chances from 0 to the dtype's largest."""
        sizes = self._sizes(shape)
        if is_continuous(self._dtype):
            work = torch.float32 if self._dtype.itemsize == 1 else self._dtype
            return torch.randn(sizes, dtype=work, device=self._device).to(self._dtype)
        if self._dtype in WIDE_UNSIGNED:
            return self._draw_unsigned(sizes)
        return torch.empty(sizes, dtype=self._dtype, device=self._device).random_()

    def _draw_unsigned(self, sizes: torch.Size) -> Tensor:
        """Torch draws no unsigned integers beyond 8 bits; their bits are drawn as signed ones."""
        signed = torch.empty(sizes, dtype=torch.int64, device=self._device)
        bits = signed.random_(torch.iinfo(torch.int64).min, None)
        return bits.view(torch.uint64) if self._dtype is torch.uint64 else bits.to(self._dtype)

    def _contains(self, val: Tensor) -> bool:
        return True

    def _project(self, val: Tensor) -> Tensor:
        return val

    def _equals(self, other: Any) -> bool:
        return True

    def replace(self, **changes: Any) -> Any:
        """A copy with some of ``shape``, ``device`` and ``dtype`` changed.

        With an end, ``low`` or ``high``, it becomes a ``Bounded``.
        """
        arguments = {**self._arguments(), **changes}
        if "dtype" not in changes:
            arguments["domain"] = self.domain
        if arguments.get("low") is None and arguments.get("high") is None:
            arguments.pop("low", None)
            arguments.pop("high", None)
            return Unbounded(**arguments)
        from tdx.specs.bounded import Bounded

        return Bounded(**arguments)


class UnboundedContinuous(Unbounded):
    """An ``Unbounded`` of numbers with fractions."""

    domain = "continuous"


class UnboundedDiscrete(Unbounded):
    """An ``Unbounded`` of integers or bools."""

    domain = "discrete"


def _kind(domain: str | None, dtype: torch.dtype) -> type[Unbounded]:
    if domain not in (None, "continuous", "discrete"):
        raise SpecError(
            f"domain must be 'continuous' or 'discrete', got {domain!r}",
            hint="leave it out to have it follow from the dtype",
        )
    continuous = is_continuous(dtype) if domain is None else domain == "continuous"
    return UnboundedContinuous if continuous else UnboundedDiscrete
