"""From what people and envs hand over (numbers, lists, arrays) to tensors, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import SpecError


def to_tensor(value: Any) -> Tensor:
    """A tensor of a number, an array or nested lists of them, which shares no memory with it.

    Raises:
        SpecError: it holds something other than numbers.
    """
    if isinstance(value, Tensor):
        return value
    try:
        if isinstance(value, (np.ndarray, np.generic)):
            return torch.from_numpy(np.array(value))
        if isinstance(value, (list, tuple)) and not _is_plain(value):
            return torch.stack([to_tensor(item) for item in value])
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(
            f"a {type(value).__name__} cannot be made a tensor: {error}",
            hint="give numbers, nested lists of them, an array or a tensor",
        ) from error


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return isinstance(value, (bool, int, float, complex))


def to_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in a dtype.

    Raises:
        SpecError: an integer does not fit.
    """
    if value.dtype == dtype:
        return value
    converted = value.to(dtype)
    narrowed = not (value.is_floating_point() or value.is_complex() or dtype.is_floating_point)
    if narrowed and value.dtype is not torch.bool and not dtype.is_complex:
        back = converted.to(value.dtype)
        if not torch.equal(back, value):
            raise SpecError(
                f"a value does not fit {dtype}", hint="give a value within the range of the dtype"
            )
    return converted


def to_array(value: Tensor) -> np.ndarray[Any, Any]:
    """The tensor as an array on the host; dtypes that NumPy lacks become float32."""
    value = value.detach().cpu()
    if value.dtype.is_floating_point and value.dtype in _NOT_IN_NUMPY:
        value = value.float()
    array: np.ndarray[Any, Any] = value.numpy()
    return array


_NOT_IN_NUMPY = {
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
}
