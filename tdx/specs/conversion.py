"""Conversion of constructor arguments and values: devices, dtypes, tensors and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import ArgumentError, SpecError

Device = torch.device | str | int

_CPU = torch.device("cpu")
_NOT_IN_NUMPY = {
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
}


def as_device(device: Device | None) -> torch.device:
    """Convert to a ``torch.device``. ``None`` is the CPU; ``"cuda"`` gets the current index."""
    if device is None:
        return _CPU
    found = device if isinstance(device, torch.device) else torch.device(device)
    if found.type == "cuda" and found.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return found


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """Convert a dtype or its name to a ``torch.dtype``. ``None`` is torch's default dtype.

    Raises:
        ArgumentError: No dtype has that name.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.get_default_dtype()
    found = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ArgumentError(
            f"unknown torch dtype {dtype!r}",
            hint="use a name such as 'float32', 'int64' or 'bool'",
        )
    return found


def is_dtype(value: object) -> bool:
    """Return True if ``value`` is a dtype or the name of one."""
    return isinstance(value, torch.dtype) or (
        isinstance(value, str)
        and isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)
    )


def to_tensor(value: Any) -> Tensor:
    """Convert a number, an array or nested lists to a tensor that shares no memory with them.

    Raises:
        SpecError: ``value`` contains something other than numbers.
    """
    if isinstance(value, Tensor):
        return value
    try:
        if isinstance(value, (np.ndarray, np.generic)):
            return torch.from_numpy(np.array(value))
        if isinstance(value, (list, tuple)) and not _has_only_numbers(value):
            return torch.stack([to_tensor(item) for item in value])
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(
            f"cannot convert a {type(value).__name__} to a tensor: {error}",
            hint="give numbers, nested lists of them, an array or a tensor",
        ) from error


def _has_only_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_has_only_numbers(item) for item in value)
    return isinstance(value, (bool, int, float, complex))


def to_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast a tensor, without wrapping integers around.

    Raises:
        SpecError: An integer does not fit the dtype.
    """
    if value.dtype == dtype:
        return value
    converted = value.to(dtype)
    is_between_integers = not (
        value.is_floating_point() or value.is_complex() or dtype.is_floating_point
    )
    if is_between_integers and value.dtype is not torch.bool and not dtype.is_complex:
        back = converted.to(value.dtype)
        if not torch.equal(back, value):
            raise SpecError(
                f"a value does not fit {dtype}", hint="give a value within the range of the dtype"
            )
    return converted


def to_array(value: Tensor) -> np.ndarray[Any, Any]:
    """Convert a tensor to an array on the host; dtypes that NumPy lacks become float32."""
    value = value.detach().cpu()
    if value.dtype.is_floating_point and value.dtype in _NOT_IN_NUMPY:
        value = value.float()
    array: np.ndarray[Any, Any] = value.numpy()
    return array
