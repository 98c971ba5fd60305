"""Specs of values that come from one of several specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, is_non_tensor

from tdx.errors import SpecError
from tdx.specs.arguments import Device
from tdx.specs.spec import TensorSpec


class Choice(TensorSpec):
    """Values of any of several specs of the same kind, shape, device and dtype.

    Args:
        choices: the specs, or non-tensor values.

    Raises:
        SpecError: there is none, or they differ in kind, shape, device or dtype.

    Example:
        >>> from tdx.specs import Categorical
        >>> Choice([Categorical(2), Categorical(5)]).is_in(torch.tensor(4))
        True
    """

    def __init__(self, choices: Sequence[Any]) -> None:
        self._choices = list(choices)
        if not self._choices:
            raise SpecError(
                "a Choice needs at least one spec to choose from", hint="give it a list of specs"
            )
        first = self._choices[0]
        for what in ("shape", "device", "dtype"):
            found = [getattr(choice, what, None) for choice in self._choices]
            if any(other != found[0] for other in found):
                raise SpecError(
                    f"all choices must have the same {what}, got {found}",
                    hint=f"give every choice the same {what}",
                )
        if any(type(choice) is not type(first) for choice in self._choices):
            kinds = [type(choice).__name__ for choice in self._choices]
            raise SpecError(
                f"all choices must be of the same type, got {kinds}",
                hint="choose among specs of one class",
            )
        self._shape = first.shape
        self._device = first.device
        self._dtype = getattr(first, "dtype", None)

    @property
    def num_choices(self) -> int:
        """How many specs there are to choose from."""
        return len(self._choices)

    @property
    def choices(self) -> list[Any]:
        """The specs to choose from."""
        return list(self._choices)

    def _pick(self) -> Any:
        return self._choices[int(torch.randint(0, len(self._choices), ()))]

    def rand(self, shape: Any = ()) -> Any:
        """A value of one of the specs, drawn with equal chances."""
        return self._value(self._pick(), "rand", shape)

    def zero(self, shape: Any = ()) -> Any:
        """Zeros of the first spec."""
        return self._value(self._choices[0], "zero", shape)

    def one(self, shape: Any = ()) -> Any:
        """Ones of the first spec."""
        return self._value(self._choices[0], "one", shape)

    def _value(self, choice: Any, method: str, shape: Any) -> Any:
        if isinstance(choice, TensorSpec):
            return getattr(choice, method)(shape)
        sizes = self._sizes(shape)
        return choice if sizes == choice.batch_size else choice.expand(sizes)

    def is_in(self, val: Any) -> bool:
        """Whether a value is in any of the specs."""
        return self.why_not_in(val) is None

    def why_not_in(self, val: Any) -> str | None:
        """What keeps a value out of all specs; ``None`` for one that is in one."""
        for choice in self._choices:
            if isinstance(choice, TensorSpec):
                if choice.is_in(val):
                    return None
            elif _plain(choice) == _plain(val):
                return None
        return f"a value is in none of the {self.num_choices} choices"

    def project(self, val: Any) -> Any:
        """The value where it is in a spec, else the nearest one of the first spec."""
        if self.is_in(val):
            return val
        first = self._choices[0]
        return first.project(val) if isinstance(first, TensorSpec) else first

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """The value as the first spec encodes it."""
        first = self._choices[0]
        if isinstance(first, TensorSpec):
            return first.encode(val, ignore_device=ignore_device)
        return val if is_non_tensor(val) else NonTensorData(val, self._shape)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """A value as the first spec converts it."""
        if safe:
            self.assert_is_in(val)
        first = self._choices[0]
        return first.to_numpy(val) if isinstance(first, TensorSpec) else _plain(val)

    def cardinality(self) -> float:
        """The sum over the specs; a plain value counts as one."""
        return sum(
            choice.cardinality() if isinstance(choice, TensorSpec) else 1
            for choice in self._choices
        )

    def enumerate(self, use_mask: bool = False) -> list[Any]:
        """Every value of every spec, in order."""
        found: list[Any] = []
        for choice in self._choices:
            found += (
                list(choice.enumerate(use_mask)) if isinstance(choice, TensorSpec) else [choice]
            )
        return found

    def _each(self, method: str, *args: Any) -> Choice:
        return Choice([getattr(choice, method)(*args) for choice in self._choices])

    def expand(self, *shape: Any) -> Choice:
        """The spec of values expanded to a shape."""
        return self._each("expand", *shape)

    def squeeze(self, dim: int | None = None) -> Choice:
        """The spec without a dimension of size 1, or without all of them."""
        return self._each("squeeze") if dim is None else self._each("squeeze", dim)

    def unsqueeze(self, dim: int) -> Choice:
        """The spec with a new dimension of size 1."""
        return self._each("unsqueeze", dim)

    def reshape(self, *shape: Any) -> Choice:
        """The spec of reshaped values."""
        return self._each("reshape", *shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Choice:
        """The spec with the dimensions from one to another made one."""
        return self._each("flatten", start_dim, end_dim)

    def unflatten(self, dim: int, sizes: Any) -> Choice:
        """The spec with a dimension split into several."""
        return self._each("unflatten", dim, sizes)

    def __getitem__(self, index: Any) -> Choice:
        return self._each("__getitem__", index)

    def to(self, dest: torch.dtype | Device) -> Any:
        """The spec on a device, or in a dtype."""
        return self._each("to", dest)

    def clone(self) -> Choice:
        """A copy with copies of the specs."""
        return self._each("clone")

    def _equals(self, other: Any) -> bool:
        return bool(self._choices == other._choices)


def _plain(value: Any) -> Any:
    if isinstance(value, NonTensorStack):
        return value.tolist()
    return value.data if isinstance(value, NonTensorData) else value
