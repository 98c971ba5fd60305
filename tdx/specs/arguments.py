"""Arguments of specs: indices, shapes and views, devices, dtypes, and casts of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.foundation.errors import ArgumentError, SpecError, SpecIndexError, get_first_line
from tdx.foundation.torch_internals import broadcast_shapes

Shape = int | Sequence[int] | torch.Size
View = Callable[[Tensor], Tensor]
ArrayLike = npt.ArrayLike | Tensor
"""What becomes a tensor: a number, nested lists of numbers, an array or a tensor."""
Value = Tensor | TensorDictBase
"""A value of a spec: a tensor, or a TensorDict, which non-tensor data is too."""
Arguments = dict[str, Any]
"""Constructor arguments of a spec, by name."""
IndexPart = int | slice | Tensor | None | EllipsisType

# Torch functions that accept specs, such as ``torch.squeeze(spec)``.
TORCH_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.squeeze: lambda input, dim=None: input.squeeze(dim),
    torch.unsqueeze: lambda input, dim: input.unsqueeze(dim),
    torch.flatten: lambda input, start_dim=0, end_dim=-1: input.flatten(start_dim, end_dim),
    torch.unflatten: lambda input, dim, sizes: input.unflatten(dim, sizes),
    torch.reshape: lambda input, shape: input.reshape(shape),
    torch.unbind: lambda input, dim=0: input.unbind(dim),
    torch.index_select: lambda input, dim, index: input.index_select(dim, index),
}

# Stands for an unknown size (-1) while torch computes the shape of a view.
_UNKNOWN_SIZE = 1_000_003


def as_size(shape: int | Sequence[Any]) -> torch.Size:
    """Convert a shape to a ``torch.Size``; an integer is a single dimension."""
    if type(shape) is torch.Size:
        return shape
    if isinstance(shape, int):
        return torch.Size((shape,))
    try:
        return torch.Size(shape)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"shape must be an integer or a sequence of integers, got {shape!r}",
            hint="write it as (3,) or (84, 84)",
        ) from error


def size_from_args(sizes: Sequence[Shape]) -> torch.Size:
    """Convert the arguments of ``f(2, 3)`` or ``f((2, 3))`` to a ``torch.Size``."""
    return as_size(sizes[0] if len(sizes) == 1 else sizes)


def replace_unknown_sizes(shape: torch.Size) -> torch.Size:
    """Replace every unknown size (-1) by 1."""
    return torch.Size([1 if size < 0 else size for size in shape]) if -1 in shape else shape


def ends_with(shape: torch.Size, suffix: torch.Size) -> bool:
    """Return True if the last dimensions of ``shape`` match ``suffix``, where -1 matches any."""
    if shape == suffix:
        return True
    ndim = len(suffix)
    if len(shape) < ndim:
        return False
    return all(
        expected in (-1, size)
        for expected, size in zip(suffix, shape[len(shape) - ndim :], strict=True)
    )


def check_dimension(dim: int, shape: torch.Size) -> int:
    """Return a dimension, which must be in range for ``shape``, as a non-negative index."""
    ndim = len(shape)
    if not -ndim <= dim < ndim:
        raise SpecError(
            f"dimension {dim} is out of range for the shape {tuple(shape)}",
            hint=f"use a dimension from {-ndim} to {ndim - 1}",
        )
    return dim % ndim


def view_shape(view: View, shape: torch.Size, owner: str) -> torch.Size:
    """Return the shape of a tensor of ``shape`` after a view. Unknown sizes (-1) stay unknown.

    Raises:
        SpecError: A tensor of that shape does not support the view; a ``SpecIndexError`` if the
            view indexes it.
    """
    known = torch.Size([_UNKNOWN_SIZE if size < 0 else size for size in shape])
    try:
        viewed = view(torch.empty(known, device="meta")).shape
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        kind = SpecIndexError if isinstance(error, IndexError) else SpecError
        raise kind(
            f"a {owner} of shape {tuple(shape)} does not support that shape or index: "
            f"{get_first_line(error)}",
            hint="use sizes and indices that fit the shape",
        ) from error
    return torch.Size([-1 if size == _UNKNOWN_SIZE else size for size in viewed])


Device = torch.device | str | int

_CPU = torch.device("cpu")
_NOT_IN_NUMPY = {
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
}


def is_same_device(actual: torch.device | None, expected: torch.device | None) -> bool:
    """Return True if a tensor is on the device of its spec; ``None`` is any device.

    A device without an index is any of its kind, and the index of a CPU has no meaning.
    """
    if actual is None or expected is None or actual == expected:
        return True
    has_any_index = actual.type == "cpu" or None in (actual.index, expected.index)
    return actual.type == expected.type and has_any_index


def as_device(device: Device | None) -> torch.device:
    """Convert to a ``torch.device``. ``None`` is the CPU; ``"cuda"`` gets the current index."""
    if device is None:
        return _CPU
    converted = device if isinstance(device, torch.device) else torch.device(device)
    if converted.type == "cuda" and converted.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return converted


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """Convert a dtype or its name to a ``torch.dtype``. ``None`` is torch's default dtype."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.get_default_dtype()
    converted = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(converted, torch.dtype):
        raise ArgumentError(
            f"unknown torch dtype {dtype!r}",
            hint="use a name such as 'float32', 'int64' or 'bool'",
        )
    return converted


def is_dtype(value: object) -> bool:
    """Return True if ``value`` is a dtype or the name of one."""
    return isinstance(value, torch.dtype) or (
        isinstance(value, str)
        and isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)
    )


def to_tensor(value: object) -> Tensor:
    """Convert a number, an array or nested lists to a tensor that shares no memory with them."""
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


def _has_only_numbers(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_has_only_numbers(item) for item in value)
    return isinstance(value, (bool, int, float, complex))


def to_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast a tensor. An integer that does not fit raises a ``SpecError``: it never wraps around."""
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


def match_shape(value: Tensor, shape: torch.Size) -> Tensor:
    """Add or remove dimensions of size 1 to match the shape of a spec, or raise a ``SpecError``."""
    if value.ndim == len(shape) and ends_with(value.shape, shape):
        return value
    expected = replace_unknown_sizes(shape)
    if [size for size in value.shape if size != 1] == [size for size in expected if size != 1]:
        return value.reshape(expected)
    raise SpecError(
        f"Shape mismatch: expected a value of shape {shape}, got {value.shape}",
        hint="reshape the value; only dims of size 1 are added or removed",
    )


def to_array(value: Tensor) -> npt.NDArray[np.generic]:
    """Convert a tensor to an array on the host; dtypes that NumPy lacks become float32."""
    value = value.detach().cpu()
    if value.dtype.is_floating_point and value.dtype in _NOT_IN_NUMPY:
        value = value.float()
    array: npt.NDArray[np.generic] = value.numpy()
    return array


WIDE_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_INT64 = torch.iinfo(torch.int64)


def is_continuous(dtype: torch.dtype) -> bool:
    """Return True for floating-point and complex dtypes."""
    return dtype.is_floating_point or dtype.is_complex


def extremes(dtype: torch.dtype) -> tuple[float, float]:
    """Return the smallest and the largest finite number of a real dtype."""
    if dtype is torch.bool:
        return False, True
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def ordered(value: Tensor) -> Tensor:
    """Convert values to a dtype that torch can compare, preserving their order."""
    dtype = value.dtype
    if dtype is torch.uint64:
        return value.view(torch.int64) ^ _INT64.min
    if dtype in WIDE_UNSIGNED:
        return value.to(torch.int64)
    if dtype.is_floating_point and dtype.itemsize == 1:
        return value.to(torch.float32)
    return value


def cast(
    value: Tensor, dtype: torch.dtype, rounding: Callable[[Tensor], Tensor] = torch.round
) -> Tensor:
    """Cast values, rounding and saturating those out of range. NaN becomes 0 in integers.

    ``rounding`` rounds fractions when the target is an integer dtype.
    """
    if value.dtype == dtype or dtype.is_complex:
        return value.to(dtype)
    if value.is_complex():
        value = value.real
    if dtype.is_floating_point:
        return value.to(dtype)
    low, high = (int(bound) for bound in extremes(dtype))
    if not value.is_floating_point():
        if value.dtype is torch.uint64:
            signed = value.view(torch.int64)
            value = torch.where(signed < 0, _INT64.max, signed)
        return value.to(torch.int64).clamp(low, min(high, _INT64.max)).to(dtype)
    value = rounding(torch.nan_to_num(value.double(), 0.0, math.inf, -math.inf))
    below, above = value <= low, value >= high
    inside = value.masked_fill(below | above, 0.0).to(dtype)
    bounds = [torch.tensor(bound, dtype=dtype, device=value.device) for bound in (low, high)]
    return where(above, bounds[1], where(below, bounds[0], inside))


def where(mask: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """Like ``torch.where``, including the wide unsigned dtypes that older torch rejects."""
    signed = _SIGNED.get(value.dtype)
    if signed is None:
        return torch.where(mask, value, other)
    return torch.where(mask, value.view(signed), other.view(signed)).view(value.dtype)


Names = list[str | None]
"""Names of dimensions; ``None`` for a dimension without a name."""


def parse_index(index: object, shape: torch.Size, owner: str) -> tuple[IndexPart, ...]:
    """Return an index as a tuple of what torch supports, with lists and arrays as tensors.

    A tuple inside a tuple is a list of positions; a slice with a negative step becomes positions.

    Raises:
        SpecIndexError: The index is not one, or a position is out of range.
    """
    parts = index if isinstance(index, tuple) else (index,)
    try:
        parsed = tuple(_as_part(part) for part in parts)
        parsed = _reverse_slices(parsed, shape)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecIndexError(
            f"{index!r} is not an index", hint="use integers, slices, lists or tensors"
        ) from error
    dim = 0
    for part in expand_ellipsis(parsed, len(shape)):
        if isinstance(part, Tensor) and part.dtype is not torch.bool and dim < len(shape):
            _check_positions(part, shape[dim], owner)
        dim += _consumed_dims(part)
    return parsed


def _as_part(part: IndexPart | Sequence[int] | npt.NDArray[np.generic]) -> IndexPart:
    if isinstance(part, Sequence):
        positions = torch.tensor(list(part))
        return positions if positions.numel() else positions.long()
    return torch.as_tensor(part) if isinstance(part, np.ndarray) else part


def _reverse_slices(parts: tuple[IndexPart, ...], shape: torch.Size) -> tuple[IndexPart, ...]:
    """Replace slices with a negative step, which torch does not support, by positions."""
    if not any(isinstance(part, slice) and (part.step or 1) < 0 for part in parts):
        return parts
    replaced: list[IndexPart] = []
    dim = 0
    for part in expand_ellipsis(parts, len(shape)):
        if isinstance(part, slice) and (part.step or 1) < 0:
            positions = list(range(*part.indices(shape[dim])))
            replaced.append(torch.tensor(positions).long())
        else:
            replaced.append(part)
        dim += _consumed_dims(part)
    return tuple(replaced)


def _check_positions(positions: Tensor, size: int, owner: str) -> None:
    if size < 0 or not positions.numel():
        return
    low, high = int(positions.min()), int(positions.max())
    if low < -size or high >= size:
        raise SpecIndexError(
            f"index {high if high >= size else low} is out of range for a dimension of size "
            f"{size} of a {owner}",
            hint=f"use indices from {-size} to {size - 1}",
        )


def _consumed_dims(part: IndexPart) -> int:
    """Return the number of dimensions that a part of an index applies to."""
    if part is None:
        return 0
    return part.ndim if isinstance(part, Tensor) and part.dtype is torch.bool else 1


def expand_ellipsis(index: tuple[IndexPart, ...], ndim: int) -> tuple[IndexPart, ...]:
    """Return an index as a tuple, with its ellipsis replaced by slices up to ``ndim``.

    Raises:
        SpecIndexError: The index has several ellipses.
    """
    parts = index if isinstance(index, tuple) else (index,)
    positions = [i for i, part in enumerate(parts) if part is Ellipsis]
    if not positions:
        return parts
    if len(positions) > 1:
        raise SpecIndexError("an index has several ellipses", hint="use one ellipsis")
    used = sum(_consumed_dims(part) for part in parts if part is not Ellipsis)
    at = positions[0]
    return (*parts[:at], *(slice(None),) * (ndim - used), *parts[at + 1 :])


def index_names(names: Names, index: tuple[IndexPart, ...]) -> Names:
    """Return the names of the dimensions after indexing.

    Args:
        names: Names of the dimensions, one for each.
        index: Index as from :func:`parse_index`.

    Example:
        >>> index_names(["env", "time"], (0, slice(None), None))
        ['time', None]
    """
    parts = list(expand_ellipsis(index, len(names)))
    arrays = [part for part in parts if isinstance(part, Tensor)]
    if len(arrays) > 1 or any(array.ndim != 1 for array in arrays):
        left = sum(1 for part in parts if part is None or isinstance(part, slice))
        rest = len(names) - sum(_consumed_dims(part) for part in parts)
        new = broadcast_shapes(*(a.shape if a.dtype is not torch.bool else (1,) for a in arrays))
        return [None] * (left + rest + len(new))
    indexed: Names = []
    dim = 0
    for part in parts:
        if part is None:
            indexed.append(None)
            continue
        if isinstance(part, (slice, Tensor)):
            indexed.append(names[dim])
        dim += 1
    return [*indexed, *names[dim:]]
