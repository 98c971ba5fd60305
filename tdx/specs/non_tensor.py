"""Specs whose values need not be tensors: ``NonTensor``, and ``Choice`` among specs or values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, is_non_tensor

from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey
from tdx.specs.arguments import Arguments, Device, Shape, Value, as_device, as_size, ends_with
from tdx.specs.spec import Stacked, TensorSpec


class NonTensor(TensorSpec):
    """Any Python value, such as a string, a list or an object.

    Args:
        shape: Batch shape of the values.
        device: Device of the container of the values; ``None`` by default.
        dtype: Has no effect; part of the API.
        example_data: Value that ``rand``, ``zero`` and ``one`` return.
        batched: True to return a ``NonTensorStack`` with one value for each element.
        feature_dims: Number of trailing dimensions whose elements share one value; 0 if
            ``batched``, else all.

    Raises:
        SpecError: ``batched`` and ``feature_dims`` are both given.

    Example:
        >>> NonTensor((), example_data="north").rand().data
        'north'
    """

    def __init__(
        self,
        shape: Shape = 1,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        example_data: object = None,
        batched: bool | None = None,
        feature_dims: int | None = None,
    ) -> None:
        self._shape = as_size(shape)
        self._device = None if device is None else as_device(device)
        self._dtype = dtype
        self.example_data = example_data
        if batched is not None and feature_dims is not None:
            raise SpecError(
                "batched and feature_dims exclude each other", hint="pass feature_dims=0 or batched"
            )
        self.batched = bool(batched)
        if feature_dims == len(self._shape):
            feature_dims = None
        self._feature_dims = 0 if batched else feature_dims

    @property
    def feature_dims(self) -> int:
        """Number of trailing dimensions whose elements share one value."""
        return self.ndim if self._feature_dims is None else self._feature_dims

    def rand(self, shape: Shape | None = ()) -> Value:
        """Return the example, in the batch shape."""
        full = self._full_shape(shape)
        shared = len(full) if self._feature_dims is None else self._feature_dims
        return self._stack_examples(full, shared)

    def _stack_examples(self, shape: torch.Size, shared: int) -> TensorDictBase:
        if len(shape) <= shared:
            return NonTensorData(self.example_data, batch_size=shape, device=self._device)
        return NonTensorStack(*(self._stack_examples(shape[1:], shared) for _ in range(shape[0])))

    def zero(self, shape: Shape | None = ()) -> Value:
        """Return the example, in the batch shape."""
        return self.rand(shape)

    def one(self, shape: Shape | None = ()) -> Value:
        """Return the example, in the batch shape."""
        return self.rand(shape)

    def _explain_mismatch(self, val: Any) -> str | None:
        if is_non_tensor(val) and not ends_with(val.batch_size, self._shape):
            return f"expected shape {self._shape}, got {val.batch_size}"
        return None

    def _contains(self, val: object) -> bool:
        return True

    def project(self, val: Value) -> Value:
        """Return the value unchanged."""
        return val

    def type_check(self, value: object, key: NestedKey | None = None) -> None:
        """Do nothing: any type is valid."""

    def encode(self, val: object, *, ignore_device: bool = False) -> Value:
        """Wrap a value in a ``NonTensorData`` of the batch shape."""
        if is_non_tensor(val):
            return val
        return NonTensorData(val, batch_size=self._full_shape(()), device=self._device)

    def to_numpy(self, val: object, safe: bool | None = None) -> Any:
        """Convert a value to plain Python data."""
        if isinstance(val, NonTensorStack):
            return val.tolist()
        return val.data if isinstance(val, NonTensorData) else val

    def to(self, dest: torch.dtype | Device) -> Self:
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

    def _arguments(self) -> Arguments:
        return {
            **super()._arguments(),
            "example_data": self.example_data,
            "batched": True if self.batched else None,
            "feature_dims": None if self.batched else self._feature_dims,
        }

    def _has_same_space(self, other: Self) -> bool:
        same_layout = self._feature_dims == other._feature_dims
        return bool(same_layout and self.example_data == other.example_data)

    def _repr_fields(self) -> list[tuple[str, object]]:
        return [*super()._repr_fields(), ("example_data", self.example_data)]


def holds_objects(spec: TensorSpec) -> bool:
    """Return True if values need not be tensors: for a ``NonTensor`` and for stacks of them."""
    if isinstance(spec, Stacked):
        return all(map(holds_objects, spec.unbind(spec.stack_dim)))
    return isinstance(spec, NonTensor)


class Choice(TensorSpec):
    """Values of any of several specs of the same class, shape, device and dtype.

    Args:
        choices: Specs, or non-tensor values.

    Raises:
        SpecError: The list is empty, or its specs differ in class, shape, device or dtype.

    Example:
        >>> from tdx.specs import Categorical
        >>> Choice([Categorical(2), Categorical(5)]).is_in(torch.tensor(4))
        True
    """

    def __init__(self, choices: Sequence[TensorSpec | NonTensorData]) -> None:
        self._choices = list(choices)
        if not self._choices:
            raise SpecError("a Choice needs at least one spec", hint="pass a list of specs")
        first = self._choices[0]
        for choice in self._choices:
            if not isinstance(choice, TensorSpec) and not is_non_tensor(choice):
                raise SpecError(
                    f"a choice must be a spec or a non-tensor value, got {choice!r}",
                    hint="wrap other values: NonTensorData(value)",
                )
        for name in ("shape", "device", "dtype"):
            values = [getattr(choice, name, None) for choice in self._choices]
            if any(value != values[0] for value in values):
                raise SpecError(
                    f"all choices must have the same {name}, got {values}",
                    hint=f"give every choice the same {name}",
                )
        if any(type(choice) is not type(first) for choice in self._choices):
            classes = [type(choice).__name__ for choice in self._choices]
            raise SpecError(
                f"all choices must be of the same type, got {classes}",
                hint="choose among specs of one class",
            )
        self._shape = first.shape
        self._device = first.device
        self._dtype = getattr(first, "dtype", None)

    @property
    def num_choices(self) -> int:
        """Number of specs."""
        return len(self._choices)

    @property
    def choices(self) -> list[TensorSpec | NonTensorData]:
        """Specs to choose from."""
        return list(self._choices)

    def rand(self, shape: Shape | None = ()) -> Value:
        """Sample a value of one of the specs, which are equally likely."""
        choice = self._choices[int(torch.randint(0, len(self._choices), ()))]
        return self._create(choice, "rand", shape)

    def zero(self, shape: Shape | None = ()) -> Value:
        """Return zeros of the first spec."""
        return self._create(self._choices[0], "zero", shape)

    def one(self, shape: Shape | None = ()) -> Value:
        """Return ones of the first spec."""
        return self._create(self._choices[0], "one", shape)

    def _create(
        self, choice: TensorSpec | NonTensorData, method: str, shape: Shape | None
    ) -> Value:
        """Create a value of a choice by one of its methods."""
        if isinstance(choice, TensorSpec):
            return getattr(choice, method)(shape)
        full = self._full_shape(shape)
        return choice if full == choice.batch_size else choice.expand(full)

    def is_in(self, val: object) -> bool:
        """Return True if a value is in any of the specs."""
        return self.why_not_in(val) is None

    def why_not_in(self, val: object) -> str | None:
        """Explain why a value is in none of the specs; ``None`` if it is in one."""
        for choice in self._choices:
            if isinstance(choice, TensorSpec):
                if choice.is_in(val):
                    return None
            elif _plain(choice) == _plain(val):
                return None
        return f"a value is in none of the {self.num_choices} choices"

    def project(self, val: Value) -> Value:
        """Return a value in any of the specs unchanged, else project it to the first spec."""
        if self.is_in(val):
            return val
        first = self._choices[0]
        return first.project(val) if isinstance(first, TensorSpec) else first

    def encode(self, val: object, *, ignore_device: bool = False) -> Value:
        """Encode a value by the first spec."""
        first = self._choices[0]
        if isinstance(first, TensorSpec):
            return first.encode(val, ignore_device=ignore_device)
        return val if is_non_tensor(val) else NonTensorData(val, self._shape)

    def to_numpy(self, val: object, safe: bool | None = None) -> Any:
        """Convert a value by the first spec."""
        if safe:
            self.assert_is_in(val)
        first = self._choices[0]
        return first.to_numpy(val) if isinstance(first, TensorSpec) else _plain(val)

    def cardinality(self) -> float:
        """Return the sum over the specs; a non-tensor value counts as one."""
        return sum(
            choice.cardinality() if isinstance(choice, TensorSpec) else 1
            for choice in self._choices
        )

    def enumerate(self, use_mask: bool = False) -> list[Value]:
        """Return every value of every spec, in order."""
        values: list[Value] = []
        for choice in self._choices:
            values += choice.enumerate(use_mask) if isinstance(choice, TensorSpec) else [choice]
        return values

    def _call_each(self, method: str, *args: object) -> Choice:
        return Choice([getattr(choice, method)(*args) for choice in self._choices])

    def expand(self, *shape: Shape) -> Choice:
        return self._call_each("expand", *shape)

    def squeeze(self, dim: int | None = None) -> Choice:
        return self._call_each("squeeze") if dim is None else self._call_each("squeeze", dim)

    def unsqueeze(self, dim: int) -> Choice:
        return self._call_each("unsqueeze", dim)

    def reshape(self, *shape: Shape) -> Choice:
        return self._call_each("reshape", *shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Choice:
        return self._call_each("flatten", start_dim, end_dim)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Choice:
        return self._call_each("unflatten", dim, sizes)

    def __getitem__(self, index: object) -> Choice:
        return self._call_each("__getitem__", index)

    def to(self, dest: torch.dtype | Device) -> Choice:
        return self._call_each("to", dest)

    def clone(self) -> Choice:
        return self._call_each("clone")

    def _has_same_space(self, other: Self) -> bool:
        pairs = zip(self._choices, other._choices, strict=False)
        same = all(bool(_plain(one) == _plain(other)) for one, other in pairs)
        return same and self.num_choices == other.num_choices


def _plain(value: object) -> object:
    """Unwrap a non-tensor value."""
    if isinstance(value, NonTensorStack):
        return value.tolist()
    return value.data if isinstance(value, NonTensorData) else value
