"""Indices of specs: everything that a tensor accepts, checked against the shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import SpecIndexError

Names = list[str | None]
"""Names of dimensions; ``None`` for a dimension without a name."""


def parse_index(index: Any, shape: torch.Size, owner: str) -> tuple[Any, ...]:
    """Return an index as a tuple of what torch supports, with lists and arrays as tensors.

    Args:
        index: Index as written; a tuple inside a tuple is a list of positions.
        shape: Shape of the spec, -1 for unknown sizes.
        owner: Class name of the spec, for the error message.

    Raises:
        SpecIndexError: The index is not one, or a position is out of range.

    Example:
        >>> parse_index(([0, 2], ...), torch.Size([3, 4]), "Unbounded")
        (tensor([0, 2]), Ellipsis)
        >>> parse_index(slice(None, None, -1), torch.Size([3]), "Unbounded")
        (tensor([2, 1, 0]),)
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


def _as_part(part: Any) -> Any:
    if isinstance(part, (list, tuple, range)):
        positions = torch.tensor(list(part))
        return positions if positions.numel() else positions.long()
    return torch.as_tensor(part) if isinstance(part, np.ndarray) else part


def _reverse_slices(parts: tuple[Any, ...], shape: torch.Size) -> tuple[Any, ...]:
    """Replace slices with a negative step, which torch does not support, by positions."""
    if not any(isinstance(part, slice) and (part.step or 1) < 0 for part in parts):
        return parts
    found: list[Any] = []
    dim = 0
    for part in expand_ellipsis(parts, len(shape)):
        is_reversed = isinstance(part, slice) and (part.step or 1) < 0
        positions = range(*part.indices(shape[dim])) if is_reversed else None
        found.append(part if positions is None else torch.tensor(list(positions)).long())
        dim += _consumed_dims(part)
    return tuple(found)


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


def _consumed_dims(part: Any) -> int:
    """Return the number of dimensions that a part of an index applies to."""
    if part is None:
        return 0
    return part.ndim if isinstance(part, Tensor) and part.dtype is torch.bool else 1


def expand_ellipsis(index: Any, ndim: int) -> tuple[Any, ...]:
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


def index_names(names: Names, index: tuple[Any, ...]) -> Names:
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
        new = torch.broadcast_shapes(
            *(a.shape if a.dtype is not torch.bool else (1,) for a in arrays)
        )
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
