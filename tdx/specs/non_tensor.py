"""Specs of values that are no tensors."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, is_non_tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device, as_device, as_size
from tdx.specs.spec import TensorSpec


class NonTensor(TensorSpec):
    """Anything: strings, lists, Python objects.

    Args:
        shape: batch shape of the values.
        device: device of the values' container; none by default.
        dtype: kept for the API; values have none.
        example_data: the value that ``rand``, ``zero`` and ``one`` give.
        batched: whether those give a ``NonTensorStack`` of one value an element.
        feature_dims: kept for the API.

    Example:
        >>> NonTensor((), example_data="north").rand().data
        'north'
    """

    def __init__(
        self,
        shape: Any = 1,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        example_data: Any = None,
        batched: bool | None = None,
        feature_dims: int | None = None,
    ) -> None:
        self._shape = as_size(shape)
        self._device = None if device is None else as_device(device)
        self._dtype = dtype
        self.example_data = example_data
        self.batched = bool(batched)
        self.feature_dims = feature_dims

    def rand(self, shape: Any = ()) -> Any:
        """The example, in the batch shape."""
        sizes = self._sizes(shape)
        if not self.batched or not sizes:
            return NonTensorData(self.example_data, batch_size=sizes, device=self._device)
        return self._stacked(sizes)

    def _stacked(self, sizes: torch.Size) -> Any:
        if not sizes:
            return NonTensorData(self.example_data, batch_size=(), device=self._device)
        return NonTensorStack(*(self._stacked(sizes[1:]) for _ in range(sizes[0])))

    def zero(self, shape: Any = ()) -> Any:
        """The example, in the batch shape."""
        return self.rand(shape)

    def one(self, shape: Any = ()) -> Any:
        """The example, in the batch shape."""
        return self.rand(shape)

    def _misfit(self, val: Any) -> str | None:
        if is_non_tensor(val) and not self._ends_in_shape(val.batch_size):
            return f"expected shape {self._shape}, got {val.batch_size}"
        return None

    def _contains(self, val: Any) -> bool:
        return True

    def project(self, val: Any) -> Any:
        """The value itself."""
        return val

    def type_check(self, value: Any, key: Any = None) -> None:
        """Any type will do."""

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """The value in a ``NonTensorData`` of the batch shape."""
        if is_non_tensor(val):
            return val
        return NonTensorData(val, batch_size=self._sizes(()), device=self._device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """The value as plain Python data."""
        if isinstance(val, NonTensorStack):
            return val.tolist()
        return val.data if isinstance(val, NonTensorData) else val

    def to(self, dest: Any) -> Any:
        """The spec on a device; a dtype changes nothing."""
        if isinstance(dest, torch.dtype):
            return self
        return super().to(dest)

    def cardinality(self) -> float:
        """There is no end of values.

        Raises:
            SpecError: always.
        """
        raise SpecError(
            "the values of a NonTensor cannot be counted",
            hint="use a spec with finitely many values, such as Categorical",
        )

    def _arguments(self) -> dict[str, Any]:
        return {
            **super()._arguments(),
            "example_data": self.example_data,
            "batched": self.batched,
            "feature_dims": self.feature_dims,
        }

    def _equals(self, other: Any) -> bool:
        return bool(self.batched == other.batched and self.example_data == other.example_data)

    def _fields(self) -> list[tuple[str, object]]:
        return [*super()._fields(), ("example_data", self.example_data)]
