"""Shapes of specs: parsing shape arguments, and applying views and indices to a shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tdx.errors import ArgumentError, SpecError, get_first_line

Shape = int | Sequence[int] | torch.Size
View = Callable[[Tensor], Tensor]

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


def as_size(shape: Any) -> torch.Size:
    """Convert a shape to a ``torch.Size``; an integer is a single dimension.

    Raises:
        ArgumentError: ``shape`` is neither an integer nor a sequence of integers.
    """
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


def size_from_args(sizes: tuple[Any, ...]) -> torch.Size:
    """Convert the arguments of ``f(2, 3)`` or ``f((2, 3))`` to a ``torch.Size``."""
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        return as_size(sizes[0])
    return as_size(sizes)


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
    """Return a dimension as a non-negative index.

    Raises:
        SpecError: ``dim`` is out of range for ``shape``.
    """
    ndim = len(shape)
    if not -ndim <= dim < ndim:
        raise SpecError(
            f"dimension {dim} is out of range for the shape {tuple(shape)}",
            hint=f"use a dimension from {-ndim} to {ndim - 1}",
        )
    return dim % ndim


def view_shape(view: View, shape: torch.Size, owner: str) -> torch.Size:
    """Return the shape of a tensor of ``shape`` after a view. Unknown sizes (-1) stay unknown.

    Args:
        view: Function that reshapes or indexes a tensor.
        shape: Shape before the view.
        owner: Class name of the spec, for the error message.

    Raises:
        SpecError: A tensor of that shape does not support the view.
    """
    known = torch.Size([_UNKNOWN_SIZE if size < 0 else size for size in shape])
    try:
        viewed = view(torch.empty(known, device="meta")).shape
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise SpecError(
            f"a {owner} of shape {tuple(shape)} does not support that shape or index: "
            f"{get_first_line(error)}",
            hint="use sizes and indices that fit the shape",
        ) from error
    return torch.Size([-1 if size == _UNKNOWN_SIZE else size for size in viewed])


def expand_ellipsis(index: Any, ndim: int) -> tuple[Any, ...]:
    """Return an index as a tuple, with its ellipsis replaced by slices up to ``ndim``."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(part is Ellipsis for part in parts):
        return parts
    used = sum(
        part.ndim if isinstance(part, Tensor) and part.dtype is torch.bool else 1
        for part in parts
        if part is not None and part is not Ellipsis
    )
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return (*parts[:at], *(slice(None),) * (ndim - used), *parts[at + 1 :])
