"""The pair of functions that carry values between a Gymnasium space and a spec."""

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
    """How the values of one space are held in a TensorDict.

    Args:
        spec: what the encoded values are like, on the CPU, ``[*B, ...]``.
        encode: a value that the env handed out to a tensor (or a nested TensorDict, or a
            non-tensor entry) that shares no memory with it.
        decode: the reverse, for actions; may share memory with its input.
        held: the dtype in which ``encode`` copies arrays, where that is all that it and
            ``decode`` do; the step of such an env is put together without calling them.
        decode_rows: ``decode`` of many values at once, ``[T, ...]``, as a sequence of what the
            env takes, where there is a way that costs less than one by one.
        decode_value: of an action codec with the one key ``action``: ``decode`` of its entry.
    """

    spec: TensorSpec
    encode: Encode
    decode: Decode
    held: np.dtype[Any] | None = None
    decode_rows: Decode | None = None
    decode_value: Decode | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What the codecs of one env have in common.

    Args:
        rows: the number of envs in a vector env, none for a single env. Values of a vector env
            are batched the way Gymnasium batches them.
        categorical: whether discrete values are indices; one-hot vectors otherwise.
        remap_state: whether the entry ``state`` of a dict becomes ``observation``.
    """

    rows: int | None
    categorical: bool
    remap_state: bool

    @property
    def lead(self) -> tuple[int, ...]:
        """The batch dims."""
        return () if self.rows is None else (self.rows,)


_WIDER: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
    np.dtype(np.uint64): np.dtype(np.int64),
    np.dtype(np.longdouble): np.dtype(np.float64),
}


def tensor_dtype(dtype: Any) -> tuple[np.dtype[Any], torch.dtype]:
    """The dtype that holds a NumPy dtype's values in a tensor, in both spellings.

    Torch computes little with unsigned integers of more than 8 bits, so these get a wider one.

    Example:
        >>> tensor_dtype(np.uint16)[1]
        torch.int32
    """
    given: np.dtype[Any] = np.dtype(dtype)
    held = _WIDER.get(given, given)
    return held, torch.from_numpy(np.empty(0, held)).dtype


def array_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor's memory as an array; a gradient is let go."""
    return (tensor.detach() if tensor.requires_grad else tensor).numpy()
