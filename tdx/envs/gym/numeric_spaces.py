"""Codecs of the spaces of numbers: Box, Discrete, MultiDiscrete and MultiBinary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from tdx.envs.gym.interface import Batch, DType
from tdx.envs.gym.values import to_array, to_index, wrong_value_error
from tdx.foundation.array_files import Array
from tdx.specs import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

Encode = Callable[[object], Any]
Decode = Callable[[Any], object]
DecodeRows = Callable[[Any], Batch]
_from_numpy = torch.from_numpy


@dataclass(frozen=True, slots=True)
class Codec:
    """Conversion of the values of one space to and from entries of a TensorDict.

    Args:
        spec: Spec of the encoded values, on the CPU, ``[*B, ...]``.
        encode: Converts a value of the env to a tensor, a nested TensorDict or a non-tensor entry
            that shares no memory with it.
        decode: Converts an action back; the result may share memory with its input.
        array_dtype: Dtype of the arrays, if ``encode`` and ``decode`` only copy arrays. ``None``:
            they do more.
        decode_rows: Decodes several values, ``[T, ...]``, to a sequence. ``None``: decoding them
            one by one is as fast.
            Equal spaces have the same function.
        value: Codec of the entry ``action``, in an action codec with this single key.
    """

    spec: TensorSpec
    encode: Encode
    decode: Decode
    array_dtype: DType | None = None
    decode_rows: DecodeRows | None = None
    value: Codec | None = None


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """Properties that the codecs of one env share."""

    # Number of envs in a vector env, whose values are batched as Gymnasium batches them.
    rows: int | None
    categorical: bool  # encode discrete values as indices, not as one-hot vectors
    remap_state: bool  # rename the entry "state" of a dict to "observation"

    @property
    def lead(self) -> tuple[int, ...]:
        """Batch shape."""
        return () if self.rows is None else (self.rows,)


_WIDER: dict[DType, DType] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
    np.dtype(np.uint64): np.dtype(np.int64),
    np.dtype(np.longdouble): np.dtype(np.float64),
}


@cache
def tensor_dtype(dtype: npt.DTypeLike) -> tuple[DType, torch.dtype]:
    """Return the dtype in which a tensor holds values of a NumPy dtype, as NumPy and torch dtype.

    Unsigned integers of more than 8 bits get a wider dtype, since torch supports them poorly.

    Example:
        >>> tensor_dtype(np.uint16)[1]
        torch.int32
    """
    source: DType = np.dtype(dtype)
    wider = _WIDER.get(source, source)
    return wider, torch.from_numpy(np.empty(0, wider)).dtype


def box_codec(space: spaces.Box, options: CodecOptions) -> Codec:
    """Create the codec of a Box; an array of shape ``()`` becomes a tensor of shape ``[1]``."""
    array_dtype, dtype = tensor_dtype(space.dtype)
    shape = (*options.lead, *(space.shape or (1,)))
    inner = (*options.lead, *space.shape)

    if space.shape:
        encode = _array_encoder(array_dtype, shape)
    else:

        def encode(value: object) -> torch.Tensor:
            return _from_numpy(to_array(value, array_dtype, inner).reshape(shape))

    def decode(tensor: torch.Tensor) -> object:
        return tensor.numpy(force=True).astype(space.dtype, copy=False).reshape(inner)

    spec: TensorSpec = Unbounded(shape=shape, dtype=dtype)
    kind: DType = np.dtype(space.dtype)
    least: float
    most: float
    least, most = False, True
    if kind.kind != "b":
        limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        least, most = limits.min, limits.max
    if not (bool(np.all(space.low <= least)) and bool(np.all(space.high >= most))):
        low, high = (
            torch.from_numpy(np.array(np.broadcast_to(bound.astype(array_dtype), shape)))
            for bound in (space.low, space.high)
        )
        spec = Bounded(low, high, shape=shape, dtype=dtype)
    if space.shape and array_dtype == space.dtype:
        return Codec(spec, encode, _as_array, array_dtype, _as_array)
    return Codec(spec, encode, decode)


def _as_array(tensor: torch.Tensor) -> Array:
    return tensor.numpy(force=True)


def _array_encoder(array_dtype: DType, shape: tuple[int, ...]) -> Callable[[object], torch.Tensor]:
    """Create the encoder of arrays of one dtype and shape; others raise ``WrongValueError``."""
    array = np.ndarray

    def encode(value: object) -> torch.Tensor:
        if type(value) is array and value.dtype is array_dtype and value.shape == shape:
            return _from_numpy(value.copy())
        return _from_numpy(to_array(value, array_dtype, shape))

    return encode


def multi_binary_codec(space: spaces.MultiBinary, options: CodecOptions) -> Codec:
    """Create the codec of a MultiBinary space."""
    shape = (*options.lead, *space.shape)
    encode = _array_encoder(np.dtype(np.int8), shape)

    def decode(tensor: torch.Tensor) -> object:
        return tensor.numpy(force=True).astype(np.int8, copy=False)

    return Codec(Binary(shape=shape, dtype=torch.int8), encode, decode)


def discrete_codec(space: spaces.Discrete, options: CodecOptions) -> Codec:
    """Create the codec of a Discrete space, whose encoded values count from 0."""
    if options.rows is not None:
        return _batched_discrete(space, options)
    count, start = int(space.n), int(space.start)
    if options.categorical:

        def encode(value: object) -> torch.Tensor:
            return _from_numpy(np.array(to_index(value, start, count), np.int64))

        spec: TensorSpec = Categorical(count, dtype=torch.int64)
        one, many = _index_decoders(start)
        return Codec(spec, encode, one, decode_rows=many)

    def encode_one_hot(value: object) -> torch.Tensor:
        row = np.zeros(count, np.int64)
        row[to_index(value, start, count)] = 1
        return _from_numpy(row)

    one, many = _one_hot_decoders(count, start)
    return Codec(OneHot(count, dtype=torch.int64), encode_one_hot, one, decode_rows=many)


@cache
def _index_decoders(start: int) -> tuple[Decode, DecodeRows]:
    """Return the decoders of one index and of several, which count from 0."""

    def decode(tensor: torch.Tensor) -> object:
        return int(tensor) + start

    def decode_rows(rows: torch.Tensor) -> Batch:
        return (rows.numpy(force=True) + start).tolist()

    return decode, decode_rows


@cache
def _one_hot_decoders(count: int, start: int) -> tuple[Decode, DecodeRows]:
    """Return the decoders of one one-hot vector and of several."""

    def decode_few(tensor: torch.Tensor) -> object:
        # A search of a short list takes a third of the time of an argmax.
        try:
            return tensor.tolist().index(1) + start
        except ValueError:
            return int(tensor.argmax()) + start

    def decode_many(tensor: torch.Tensor) -> object:
        return int(tensor.numpy(force=True).argmax()) + start

    def decode_rows(rows: torch.Tensor) -> Batch:
        return (rows.numpy(force=True).argmax(-1) + start).tolist()

    return (decode_few if count <= 32 else decode_many), decode_rows


def _batched_discrete(space: spaces.Discrete, options: CodecOptions) -> Codec:
    count, start = int(space.n), space.start
    if options.categorical:
        spec: TensorSpec = Categorical(count, shape=options.lead, dtype=torch.int64)
    else:
        spec = OneHot(count, shape=(*options.lead, count), dtype=torch.int64)
    return _index_codec(
        spec, np.array([count]), start, np.dtype(space.dtype), options.lead, options
    )


def multi_discrete_codec(space: spaces.MultiDiscrete, options: CodecOptions) -> Codec:
    """Create the codec of a MultiDiscrete space, whose encoded values count from 0."""
    sizes, shape = space.nvec, (*options.lead, *space.nvec.shape)
    largest, total = int(sizes.max()), int(sizes.sum())
    same = bool((sizes == largest).all())
    spec: TensorSpec
    if same and options.categorical:
        spec = Categorical(largest, shape=shape, dtype=torch.int64)
    elif same:
        spec = OneHot(largest, shape=(*shape, largest), dtype=torch.int64)
    elif options.categorical:
        spec = MultiCategorical(torch.from_numpy(sizes.copy()), shape=shape, dtype=torch.int64)
    else:
        spec = MultiOneHot(
            sizes.flatten().tolist(), shape=(*options.lead, total), dtype=torch.int64
        )
    return _index_codec(spec, sizes.flatten(), space.start, space.dtype, shape, options)


def _index_codec(
    spec: TensorSpec,
    sizes: Array,
    start: Array | np.integer | int,
    dtype: DType,
    shape: tuple[int, ...],
    options: CodecOptions,
) -> Codec:
    """Create the codec of indices ``[*B, ...]`` from ``start``, each below its own size."""
    if options.categorical:

        def encode(value: object) -> torch.Tensor:
            return _from_numpy(_checked_indices(value, shape) - start)

        def decode(tensor: torch.Tensor) -> object:
            return (tensor.numpy(force=True).reshape(shape) + start).astype(dtype, copy=False)

        return Codec(spec, encode, decode)
    return _one_hot_codec(spec, sizes, start, dtype, shape, options)


def _checked_indices(value: object, shape: tuple[int, ...]) -> Array:
    """Convert a value to integers of a shape. Those of a vector env may have dims of size 1."""
    source = np.asarray(value)
    if source.size == math.prod(shape) and source.dtype.kind in "biu":
        return source.astype(np.int64).reshape(shape)
    return to_array(value, np.dtype(np.int64), shape)


def _one_hot_codec(
    spec: TensorSpec,
    sizes: Array,
    start: Array | np.integer | int,
    dtype: DType,
    shape: tuple[int, ...],
    options: CodecOptions,
) -> Codec:
    lead, total = options.lead, int(sizes.sum())
    offsets = np.cumsum(sizes) - sizes
    spec_shape = tuple(spec.shape)
    borders = offsets[1:].tolist()

    def encode(value: object) -> torch.Tensor:
        indices = (_checked_indices(value, shape) - start).reshape(*lead, -1)
        if bool(((indices < 0) | (indices >= sizes)).any()):
            raise wrong_value_error(value, "indices within the sizes of its space")
        rows = np.zeros((*lead, total), np.int64)
        np.put_along_axis(rows, indices + offsets, 1, -1)
        return _from_numpy(rows.reshape(spec_shape))

    def decode(tensor: torch.Tensor) -> object:
        flat = tensor.numpy(force=True).reshape(*lead, total)
        parts = [part.argmax(-1) for part in np.split(flat, borders, axis=-1)]
        return (np.stack(parts, -1).reshape(shape) + start).astype(dtype, copy=False)

    return Codec(spec, encode, decode)
