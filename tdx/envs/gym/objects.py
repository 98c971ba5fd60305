"""Spaces whose values stay Python objects: their spec and their codec."""

from __future__ import annotations

import copy
from typing import Any

import torch
from gymnasium import spaces
from tensordict import NonTensorData, NonTensorStack

from tdx.core.capabilities import is_public_class
from tdx.envs.gym.codec import Codec, Layout
from tdx.envs.gym.values import wrong_value
from tdx.specs import NonTensor

_CPU = torch.device("cpu")
_ONE = torch.Size([])


class SpaceValue(NonTensor):
    """A member of a Gymnasium space, as the Python object that it is.

    Args:
        space: the space; a copy is kept.
        shape: the batch shape, a member each.
        **kwargs: what :class:`~tdx.specs.NonTensor` takes.

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
        """A random member an element, drawn from torch's global generator."""
        return self._filled(self._sizes(shape), self._drawn)

    def zero(self, shape: Any = ()) -> Any:
        """The same member for every element."""
        return self._filled(self._sizes(shape), lambda: self.example_data)

    def one(self, shape: Any = ()) -> Any:
        """The same member for every element."""
        return self.zero(shape)

    def _drawn(self) -> Any:
        self._members.seed(int(torch.randint(2**31 - 1, ())))
        return self._members.sample()

    def _filled(self, sizes: torch.Size, value: Any) -> Any:
        if not sizes:
            return NonTensorData(value(), batch_size=_ONE, device=self._device)
        return NonTensorStack(*(self._filled(sizes[1:], value) for _ in range(sizes[0])))

    def _contains(self, val: Any) -> bool:
        if isinstance(val, NonTensorStack):
            return all(self._contains(inner) for inner in val.tensordicts)
        return bool(self._members.contains(decode_object(val)))

    def _equals(self, other: Any) -> bool:
        return bool(self._members == other._members)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "space": self._members}


def object_codec(space: spaces.Space[Any], layout: Layout) -> Codec:
    """The codec of a space whose values are kept as they are, one object an env."""
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
    """A non-tensor entry that holds a copy of the value."""
    # An env may go on writing to the arrays inside.
    kept = value if isinstance(value, str) else copy.deepcopy(value)
    return NonTensorData(kept, batch_size=_ONE, device=_CPU)


def decode_object(entry: Any) -> Any:
    """The Python object of a non-tensor entry."""
    return entry.data if isinstance(entry, NonTensorData) else entry


def _example_of(space: spaces.Space[Any]) -> Any:
    """A member, always the same one."""
    space.seed(0)
    return space.sample()
