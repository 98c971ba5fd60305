"""Spaces whose values are arbitrary Python objects: spec and codec."""

from __future__ import annotations

import copy
from typing import Any

import torch
from gymnasium import spaces
from tensordict import NonTensorData, NonTensorStack

from tdx.core.envs.policies import is_public_class
from tdx.envs.gym.codec import Codec, Layout
from tdx.envs.gym.values import wrong_value
from tdx.specs import NonTensor

_CPU = torch.device("cpu")
_ONE = torch.Size([])


class SpaceValue(NonTensor):
    """A member of a Gymnasium space, as a Python object.

    Args:
        space: Gymnasium space, which is copied.
        shape: Batch shape, with a member for each element.
        **kwargs: More arguments of :class:`~tdx.specs.NonTensor`.

    Example:
        >>> from gymnasium.spaces import Text
        >>> spec = SpaceValue(Text(4, charset="ab"))
        >>> spec.is_in(spec.rand()), spec.is_in("cd")
        (True, False)
    """

    def __init__(self, space: spaces.Space[Any], shape: Any = (), **kwargs: Any) -> None:
        self._members = copy.deepcopy(space)
        kwargs.setdefault("example_data", _example_of(self._members))
        super().__init__(shape, **{**kwargs, "batched": True})

    @property
    def space_kind(self) -> str:
        """Gymnasium's name for the kind of space, such as ``Text``; also of a subclass."""
        kinds = [
            each.__name__
            for each in type(self._members).__mro__
            if is_public_class(each, spaces) and each is not spaces.Space
        ]
        return kinds[0] if kinds else type(self._members).__name__

    def rand(self, shape: Any = ()) -> Any:
        """Sample a member for each element, seeded from torch's global generator."""
        return self._stack_values(self._full_shape(shape), self._sample)

    def zero(self, shape: Any = ()) -> Any:
        """Return the same member for every element."""
        return self._stack_values(self._full_shape(shape), lambda: self.example_data)

    def one(self, shape: Any = ()) -> Any:
        """Return the same member for every element."""
        return self.zero(shape)

    def _sample(self) -> Any:
        self._members.seed(int(torch.randint(2**31 - 1, ())))
        return self._members.sample()

    def _stack_values(self, sizes: torch.Size, value: Any) -> Any:
        if not sizes:
            return NonTensorData(value(), batch_size=_ONE, device=self._device)
        return NonTensorStack(*(self._stack_values(sizes[1:], value) for _ in range(sizes[0])))

    def _contains(self, val: Any) -> bool:
        if isinstance(val, NonTensorStack):
            return all(self._contains(inner) for inner in val.tensordicts)
        return bool(self._members.contains(decode_object(val)))

    def _has_same_space(self, other: Any) -> bool:
        return bool(self._members == other._members)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "space": self._members}


def object_codec(space: spaces.Space[Any], layout: Layout) -> Codec:
    """Create the codec of a space whose values are kept as objects, one for each env."""
    spec = SpaceValue(space, shape=layout.lead)
    expected = f"a member of its {type(space).__name__} space"

    def encode(value: Any) -> NonTensorData:
        if value is None:
            raise wrong_value(value, expected)
        return encode_object(value)

    if layout.rows is None:
        return Codec(spec, encode, decode_object)

    def encode_rows(values: Any) -> Any:
        return NonTensorStack(*[encode(value) for value in values])

    def decode_rows(entry: Any) -> Any:
        return tuple(entry.tolist())

    return Codec(spec, encode_rows, decode_rows)


def encode_object(value: Any) -> NonTensorData:
    """Copy a value to a non-tensor entry."""
    # The env may continue to write to arrays in the value.
    kept = value if isinstance(value, str) else copy.deepcopy(value)
    return NonTensorData(kept, batch_size=_ONE, device=_CPU)


def decode_object(entry: Any) -> Any:
    """Return the Python object of a non-tensor entry."""
    return entry.data if isinstance(entry, NonTensorData) else entry


def _example_of(space: spaces.Space[Any]) -> Any:
    """Return a member, always the same one."""
    space.seed(0)
    return space.sample()
