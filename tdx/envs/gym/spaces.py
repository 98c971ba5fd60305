"""Codecs of all spaces: Dict, Tuple, spaces of Python objects, and the spaces of numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, Self

import torch
from gymnasium import spaces
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from tdx.core.envs.policies import is_public_class
from tdx.envs.gym.interface import AnySpace
from tdx.envs.gym.numeric_spaces import (
    Codec,
    CodecOptions,
    Encode,
    box_codec,
    discrete_codec,
    multi_binary_codec,
    multi_discrete_codec,
)
from tdx.envs.gym.values import (
    WrongValueError,
    missing_value_error,
    require_elements,
    require_mapping,
    wrong_value_error,
)
from tdx.foundation.tensordicts import new_tensordict, read
from tdx.specs import Composite, NonTensor
from tdx.specs.arguments import Arguments, Shape, Value
from tdx.specs.spec import stack

_CPU = torch.device("cpu")
_ONE = torch.Size([])


@singledispatch
def codec_of(space: AnySpace, options: CodecOptions) -> Codec:
    """Create the codec of the space of a single env, even if ``options`` is that of a vector env.

    Values of a space that is not an array of numbers of fixed shape (Text, Sequence, Graph, OneOf
    and custom spaces) are kept as Python objects.
    """
    return object_codec(space, options)


codec_of.register(spaces.Box, box_codec)
codec_of.register(spaces.Discrete, discrete_codec)
codec_of.register(spaces.MultiBinary, multi_binary_codec)
codec_of.register(spaces.MultiDiscrete, multi_discrete_codec)


@codec_of.register
def _dict_codec(space: spaces.Dict, options: CodecOptions) -> Codec:
    names = list(space.spaces)
    keys = [entry_key(name, names, options) for name in names]
    return _mapping_codec(
        names, keys, [codec_of(space.spaces[name], options) for name in names], options
    )


def entry_key(name: object, names: Sequence[object], options: CodecOptions) -> str:
    """Return the key of an entry of a dict space: its name, or ``observation`` for ``state``."""
    if options.remap_state and name == "state" and "observation" not in names:
        return "observation"
    return str(name)


def _mapping_codec(
    names: Sequence[object], keys: list[str], codecs: list[Codec], options: CodecOptions
) -> Codec:
    size = torch.Size(options.lead)
    encoders = [
        (name, key, codec.encode) for name, key, codec in zip(names, keys, codecs, strict=True)
    ]
    decoders = [
        (name, key, codec.decode) for name, key, codec in zip(names, keys, codecs, strict=True)
    ]

    fields_of = dict_encoder(encoders)

    def encode(value: object) -> TensorDict:
        return new_tensordict(fields_of(value), size, _CPU)

    def decode(tensordict: TensorDictBase) -> dict[object, object]:
        return {name: inner(read(tensordict, key)) for name, key, inner in decoders}

    specs = {key: codec.spec for key, codec in zip(keys, codecs, strict=True)}
    return Codec(Composite(specs, shape=options.lead), encode, decode)


def dict_encoder(
    parts: Sequence[tuple[object, str, Encode]],
) -> Callable[[object], dict[str, Value]]:
    """Create the encoder of a dict from its parts: name in the dict, key, encoder of the entry.

    It raises ``WrongValueError`` with the key for an entry that is missing or invalid.
    """

    def encode(value: Any) -> dict[str, Value]:
        fields: dict[str, Value] = {}
        key = ""
        try:
            for name, key, inner in parts:
                fields[key] = inner(value[name])
        except WrongValueError as wrong:
            raise wrong.below(key) from None
        except (KeyError, TypeError, IndexError):
            mapping = require_mapping(value, [name for name, _, _ in parts])
            for name, key, _ in parts:
                if name not in mapping:
                    raise missing_value_error(name).below(key) from None
            raise
        return fields

    return encode


@codec_of.register(spaces.Tuple)
def _tuple_codec(space: spaces.Tuple[Any], options: CodecOptions) -> Codec:
    codecs = [codec_of(inner, options) for inner in space.spaces]
    if _are_stackable(codecs):
        return _stack_codecs(codecs, options)
    names = list(range(len(codecs)))
    by_index = _mapping_codec(names, [str(name) for name in names], codecs, options)

    def encode(value: object) -> Value:
        return by_index.encode(dict(enumerate(require_elements(value, len(names)))))

    def decode(tensordict: TensorDictBase) -> tuple[object, ...]:
        return tuple(codec.decode(read(tensordict, str(i))) for i, codec in enumerate(codecs))

    return Codec(by_index.spec, encode, decode)


def _are_stackable(codecs: list[Codec]) -> bool:
    """Return True if the values of all codecs can be stacked."""
    if not codecs or any(isinstance(codec.spec, NonTensor) for codec in codecs):
        return False
    first = codecs[0].spec
    if isinstance(first, Composite):
        dense = all(not isinstance(leaf, NonTensor) for leaf in first.values(True, True))
        return dense and all(codec.spec == first for codec in codecs)
    return all(
        type(codec.spec) is type(first)
        and codec.spec.shape == first.shape
        and codec.spec.dtype == first.dtype
        for codec in codecs
    )


def _stack_codecs(codecs: list[Codec], options: CodecOptions) -> Codec:
    """Create the codec of elements stacked along a dim after the batch dims."""
    dim = len(options.lead)
    encoders = [codec.encode for codec in codecs]
    decoders = [codec.decode for codec in codecs]

    def encode(value: object) -> Value:
        elements = require_elements(value, len(encoders))
        parts = [inner(part) for inner, part in zip(encoders, elements, strict=True)]
        return torch.stack(parts, dim)

    size = torch.Size((*options.lead, len(codecs)))

    def decode(block: Value) -> tuple[object, ...]:
        if isinstance(block, TensorDictBase) and block.batch_size != size:
            # Written leaf by leaf it has the batch size of the TensorDict around it.
            block = block.copy()
            block.batch_size = size
        return tuple(inner(part) for inner, part in zip(decoders, block.unbind(dim), strict=True))

    return Codec(stack([codec.spec for codec in codecs], dim), encode, decode)


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

    def __init__(self, space: AnySpace, shape: Shape = (), **kwargs: Any) -> None:
        self._members = copy.deepcopy(space)
        self._members.seed(0)  # The example is always the same.
        kwargs.setdefault("example_data", self._members.sample())
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

    def rand(self, shape: Shape | None = ()) -> Value:
        """Sample a member for each element, seeded from torch's global generator."""
        return self._stack_values(self._full_shape(shape), self._sample)

    def zero(self, shape: Shape | None = ()) -> Value:
        """Return the same member for every element."""
        return self._stack_values(self._full_shape(shape), lambda: self.example_data)

    def one(self, shape: Shape | None = ()) -> Value:
        """Return the same member for every element."""
        return self.zero(shape)

    def _sample(self) -> object:
        self._members.seed(int(torch.randint(2**31 - 1, ())))
        return self._members.sample()

    def _stack_values(self, sizes: torch.Size, value: Callable[[], object]) -> Value:
        if not sizes:
            return NonTensorData(value(), batch_size=_ONE, device=self._device)
        return NonTensorStack(*(self._stack_values(sizes[1:], value) for _ in range(sizes[0])))

    def _contains(self, val: object) -> bool:
        if isinstance(val, NonTensorStack):
            return all(self._contains(inner) for inner in val.tensordicts)
        return bool(self._members.contains(decode_object(val)))

    def _has_same_space(self, other: Self) -> bool:
        return bool(self._members == other._members)

    def _arguments(self) -> Arguments:
        return {**super()._arguments(), "space": self._members}


def object_codec(space: AnySpace, options: CodecOptions) -> Codec:
    """Create the codec of a space whose values are kept as objects, one for each env."""
    spec = SpaceValue(space, shape=options.lead)
    expected = f"a member of its {type(space).__name__} space"

    def encode(value: object) -> NonTensorData:
        if value is None:
            raise wrong_value_error(value, expected)
        return encode_object(value)

    if options.rows is None:
        return Codec(spec, encode, decode_object)

    def encode_rows(values: Any) -> NonTensorStack:
        return NonTensorStack(*[encode(value) for value in values])

    def decode_rows(entry: NonTensorStack) -> tuple[object, ...]:
        return tuple(entry.tolist())

    return Codec(spec, encode_rows, decode_rows)


def encode_object(value: object) -> NonTensorData:
    """Copy a value to a non-tensor entry."""
    # The env may continue to write to arrays in the value.
    copied = value if isinstance(value, str) else copy.deepcopy(value)
    return NonTensorData(copied, batch_size=_ONE, device=_CPU)


def decode_object(entry: object) -> object:
    """Return the Python object of a non-tensor entry."""
    return entry.data if isinstance(entry, NonTensorData) else entry
