"""Convert tensors to arrays that every library reads, and back, bit for bit.

Tensors without such an array are stored in another form: bfloat16 is widened to float32, float8
is viewed as bytes, and complex numbers, if the library does not know them, become pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.untrusted import validate_shape

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a file.

    Args:
        dtype: NumPy's dtype.
        shape: Shape of the whole column, time first.
    """

    dtype: Any
    shape: tuple[int, ...]


def array_bytes(shape: Iterable[object], dtype: Any, what: str) -> int:
    """Return the size of an array that a header declares.

    Raises:
        StorageError: The shape is impossible.
    """
    return math.prod(validate_shape(shape, what)) * int(np.dtype(dtype).itemsize)


def is_numeric(dtype: Any) -> bool:
    """Return True for booleans and numbers, False for objects, text, records and subarrays."""
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError):
        return False
    return known.kind in "biufc" and known.subdtype is None


def to_array(tensor: Tensor, *, splits_complex: bool = False) -> Array:
    """Convert a tensor to an array.

    Args:
        tensor: A tensor on the CPU.
        splits_complex: Whether complex numbers become pairs, in an additional last dimension.

    Example:
        >>> to_array(torch.tensor([1.5], dtype=torch.bfloat16))
        array([1.5], dtype=float32)
    """
    dtype = tensor.dtype
    if dtype is torch.bfloat16:
        # Shift the bits: a conversion would not keep those of a NaN.
        bits = tensor.contiguous().view(torch.int16).to(torch.int32)
        tensor = (bits << 16).view(torch.float32)
    elif _is_float8(dtype):
        tensor = tensor.contiguous().view(torch.uint8)
    elif dtype is torch.complex32 or (dtype.is_complex and splits_complex):
        tensor = torch.view_as_real(tensor)
    array: Array = tensor.numpy()
    return array


def array_format(
    dtype: torch.dtype, *, splits_complex: bool = False
) -> tuple[Any, tuple[int, ...]]:
    """Return the dtype of the result of :func:`to_array`, and the dimensions that it adds."""
    array = to_array(torch.empty((0,), dtype=dtype), splits_complex=splits_complex)
    return array.dtype, array.shape[1:]


def from_array(array: Array, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Convert the result of :func:`to_array` back to a tensor.

    Args:
        array: The numbers, in any shape.
        dtype: Dtype of the tensor.
        shape: Shape of the tensor.

    Raises:
        ValueError: The array has another number of elements.
    """
    native = np.ascontiguousarray(array)
    if not native.dtype.isnative:
        native = native.astype(native.dtype.newbyteorder("="))
    tensor = torch.from_numpy(native if native.flags.writeable else native.copy())
    if dtype is torch.bfloat16:
        bits = tensor.to(torch.float32).view(torch.int32) >> 16
        tensor = bits.to(torch.int16).view(torch.bfloat16)
    elif _is_float8(dtype):
        tensor = tensor.to(torch.uint8).view(dtype)
    elif dtype.is_complex and not tensor.dtype.is_complex:
        tensor = torch.view_as_complex(tensor.reshape(*shape, 2))
    if torch.Size(shape).numel() != tensor.numel():
        raise ValueError(f"{tensor.numel()} numbers, not {torch.Size(shape).numel()}")
    return tensor.to(dtype).reshape(tuple(shape))


def _is_float8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1
