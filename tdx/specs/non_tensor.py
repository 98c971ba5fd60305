"""The ``NonTensor`` spec: arbitrary Python values."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, is_non_tensor

from tdx.errors import SpecError
from tdx.specs.conversion import Device, as_device
from tdx.specs.shapes import as_size, ends_with
from tdx.specs.spec import TensorSpec


class NonTensor(TensorSpec):
    """Any Python value, such as a string, a list or an object.

    Args:
        shape: Batch shape of the values.
        device: Device of the container of the values; ``None`` by default.
        dtype: Has no effect; part of the API.
        example_data: Value that ``rand``, ``zero`` and ``one`` return.
        batched: True to return a ``NonTensorStack`` with one value for each element.
        feature_dims: Has no effect; part of the API.

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
        """Return the example, in the batch shape."""
        full = self._full_shape(shape)
        if not self.batched or not full:
            return NonTensorData(self.example_data, batch_size=full, device=self._device)
        return self._stack_examples(full)

    def _stack_examples(self, shape: torch.Size) -> Any:
        if not shape:
            return NonTensorData(self.example_data, batch_size=(), device=self._device)
        return NonTensorStack(*(self._stack_examples(shape[1:]) for _ in range(shape[0])))

    def zero(self, shape: Any = ()) -> Any:
        """Return the example, in the batch shape."""
        return self.rand(shape)

    def one(self, shape: Any = ()) -> Any:
        """Return the example, in the batch shape."""
        return self.rand(shape)

    def _explain_mismatch(self, val: Any) -> str | None:
        if is_non_tensor(val) and not ends_with(val.batch_size, self._shape):
            return f"expected shape {self._shape}, got {val.batch_size}"
        return None

    def _contains(self, val: Any) -> bool:
        return True

    def project(self, val: Any) -> Any:
        """Return the value unchanged."""
        return val

    def type_check(self, value: Any, key: Any = None) -> None:
        """Do nothing: any type is valid."""

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Wrap a value in a ``NonTensorData`` of the batch shape."""
        if is_non_tensor(val):
            return val
        return NonTensorData(val, batch_size=self._full_shape(()), device=self._device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Convert a value to plain Python data."""
        if isinstance(val, NonTensorStack):
            return val.tolist()
        return val.data if isinstance(val, NonTensorData) else val

    def to(self, dest: Any) -> Any:
        """Return the spec on a device; a dtype has no effect."""
        if isinstance(dest, torch.dtype):
            return self
        return super().to(dest)

    def cardinality(self) -> float:
        """Raise an error, since there are infinitely many values.

        Raises:
            SpecError: Always.
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

    def _has_same_space(self, other: Any) -> bool:
        return bool(self.batched == other.batched and self.example_data == other.example_data)

    def _repr_fields(self) -> list[tuple[str, object]]:
        return [*super()._repr_fields(), ("example_data", self.example_data)]
