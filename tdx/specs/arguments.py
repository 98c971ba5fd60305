"""Constructor arguments of specs in their one form: sizes, devices, dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tdx.errors import ArgumentError

Shape = int | Sequence[int] | torch.Size
Device = torch.device | str | int

_CPU = torch.device("cpu")


def as_size(shape: Any) -> torch.Size:
    """The shape as a ``torch.Size``; an integer is one dimension.

    Raises:
        ArgumentError: it is neither an integer nor a sequence of integers.
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


def size_from(sizes: tuple[Any, ...]) -> torch.Size:
    """The shape given as ``f(2, 3)`` or as ``f((2, 3))``."""
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        return as_size(sizes[0])
    return as_size(sizes)


def as_device(device: Device | None) -> torch.device:
    """The device, the CPU where none is given; ``"cuda"`` gets the index of the current one."""
    if device is None:
        return _CPU
    found = device if isinstance(device, torch.device) else torch.device(device)
    if found.type == "cuda" and found.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return found


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """The dtype, also by its name; torch's default one where none is given.

    Raises:
        ArgumentError: no dtype has that name.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.get_default_dtype()
    found = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ArgumentError(
            f"no torch dtype is called {dtype!r}",
            hint="use a name such as 'float32', 'int64' or 'bool'",
        )
    return found


def is_dtype(value: object) -> bool:
    """Whether ``value`` is a dtype, also by its name."""
    return isinstance(value, torch.dtype) or (
        isinstance(value, str)
        and isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)
    )


def safe_size(shape: torch.Size) -> torch.Size:
    """The shape with every unknown size (-1) taken as 1."""
    return torch.Size([1 if size < 0 else size for size in shape]) if -1 in shape else shape
