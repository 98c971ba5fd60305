"""Masks over categories: which of them may be drawn and are in the space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tdx.errors import SpecError


def as_mask(mask: Any, lead: torch.Size, n: int, device: torch.device | None) -> Tensor | None:
    """The mask as a bool tensor of shape ``[*lead, n]``.

    Raises:
        SpecError: it does not broadcast to that, or forbids everything somewhere.
    """
    if mask is None:
        return None
    found = torch.as_tensor(mask, dtype=torch.bool, device=device)
    try:
        found = found.expand(*lead, n)
    except RuntimeError as error:
        raise SpecError(
            f"a mask of shape {tuple(found.shape)} does not broadcast to {(*lead, n)}",
            hint="give the mask the shape of the spec, with n as its last dim",
        ) from error
    return found


def view_mask(mask: Tensor, lead: torch.Size, view: Callable[[Tensor], Tensor]) -> Tensor:
    """The mask after a view of its leading dimensions."""
    rows = view(torch.arange(lead.numel(), device=mask.device).reshape(lead))
    return mask.reshape(lead.numel(), mask.shape[-1])[rows]


def draw_masked(mask: Tensor, shape: torch.Size) -> Tensor:
    """Numbers of allowed categories, drawn with equal chances.

    Args:
        mask: allowed categories, ``[*B, n]``.
        shape: shape of the numbers, ``[*A, *B]``.

    Raises:
        SpecError: a row of the mask allows nothing.
    """
    weights = mask.expand(*shape, mask.shape[-1]).reshape(-1, mask.shape[-1])
    if not bool(weights.any(-1).all()):
        raise SpecError("the mask allows no category", hint="allow at least one in every row")
    if not weights.shape[0]:
        return torch.zeros(shape, dtype=torch.int64, device=mask.device)
    return torch.multinomial(weights.float(), 1).reshape(shape)


def nearest_allowed(mask: Tensor, index: Tensor) -> Tensor:
    """The allowed category nearest to each index, the smaller of two as near.

    Args:
        mask: allowed categories, ``[*B, n]``.
        index: categories, ``[*A, *B]``.
    """
    categories = torch.arange(mask.shape[-1], device=index.device)
    distance = (categories - index.unsqueeze(-1)).abs()
    return distance.masked_fill(~mask, mask.shape[-1]).argmin(-1)


def same_mask(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two masks allow the same; ``None`` is only the same as ``None``."""
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
