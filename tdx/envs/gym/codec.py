"""Codecs: conversion of values between a Gymnasium space and a spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.specs import TensorSpec

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """Conversion of the values of one space to and from entries of a TensorDict.

    Args:
        spec: Spec of the encoded values, on the CPU, ``[*B, ...]``.
        encode: Converts a value of the env to a tensor, a nested TensorDict or a non-tensor entry
            that shares no memory with it.
        decode: Converts an action back; the result may share memory with its input.
        held: Dtype to which ``encode`` copies arrays, if ``encode`` and
            ``decode`` only copy. Steps of such an env do not call them. ``None``: they do more.
        decode_rows: Decodes several values, ``[T, ...]``, to a sequence. ``None``: decoding them
            one by one is as fast.
        decode_value: Decodes the entry ``action``, in an action codec with this single key.
    """

    spec: TensorSpec
    encode: Encode
    decode: Decode
    held: np.dtype[Any] | None = None
    decode_rows: Decode | None = None
    decode_value: Decode | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Properties that the codecs of one env share.

    Args:
        rows: Number of envs in a vector env. ``None``: a single env. Values of a vector env are
            batched as Gymnasium batches them.
        categorical: True to encode discrete values as indices, False as one-hot vectors.
        remap_state: True to rename the entry ``state`` of a dict to ``observation``.
    """

    rows: int | None
    categorical: bool
    remap_state: bool

    @property
    def lead(self) -> tuple[int, ...]:
        """Batch shape."""
        return () if self.rows is None else (self.rows,)


_WIDER: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
    np.dtype(np.uint64): np.dtype(np.int64),
    np.dtype(np.longdouble): np.dtype(np.float64),
}


def tensor_dtype(dtype: Any) -> tuple[np.dtype[Any], torch.dtype]:
    """Return the dtype in which a tensor holds values of a NumPy dtype, as NumPy and torch dtype.

    Unsigned integers of more than 8 bits get a wider dtype, since torch supports them poorly.

    Example:
        >>> tensor_dtype(np.uint16)[1]
        torch.int32
    """
    given: np.dtype[Any] = np.dtype(dtype)
    held = _WIDER.get(given, given)
    return held, torch.from_numpy(np.empty(0, held)).dtype


def array_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor's memory as an array, without its gradient."""
    return (tensor.detach() if tensor.requires_grad else tensor).numpy()
