"""Running moments of a stream of values: their sum, the sum of their squares, their count.

They are kept in one tensor ``[3, ...]`` in float64, so that a count stays exact and a variance
far from zero loses no digits, and are updated in place, so that several can share them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def no_moments(shape: torch.Size, device: torch.device | None) -> Tensor:
    """The moments of no values at all, ``[3, *shape]``."""
    return torch.zeros(3, *shape, dtype=torch.float64, device=device)


def add_values(moments: Tensor, value: Tensor, decay: float, rows: Tensor | None = None) -> None:
    """Take values in, all at once, after what was there is weighed by ``decay``.

    Args:
        moments: ``[3, ...]``; changed in place.
        value: ``[*B, ...]``.
        decay: 1 weighs old and new the same.
        rows: which values count, bool, broadcasts to ``value``; all by default. If none does,
            nothing changes.
    """
    dims = moments.ndim - 1
    batch_dims = value.ndim - dims
    value = value.detach().to(moments.dtype)
    if rows is None:
        if batch_dims:
            count = value.shape[:batch_dims].numel()
            value = value.reshape(count, *value.shape[batch_dims:])
            news = torch.stack((value.sum(0), value.square().sum(0)))
        else:
            count, news = 1, torch.stack((value, value * value))
        if count:
            moments.mul_(decay)
            moments[:2].add_(news)
            moments[2].add_(count)
        return
    counted = rows.expand(value.shape)
    value = torch.where(counted, value, 0.0)
    parts = (value, value * value, counted.to(value.dtype))
    news = torch.stack([part.reshape(-1, *value.shape[batch_dims:]).sum(0) for part in parts])
    # Looking at whether any counts would make the host wait for an accelerator.
    moments.mul_(torch.where(news[2] > 0, decay, 1.0)).add_(news)


def mean_and_variance(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Both, ``[...]``; zero and one where nothing was counted."""
    total, squares, count = moments.unbind(0)
    none = count <= 0
    count = count.masked_fill(none, 1.0)
    mean = total / count
    return mean, (squares / count - mean * mean).masked_fill(none, 1.0)


def loc_and_scale(moments: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What normalises: the mean, and the deviation of a variance of at least ``eps``."""
    mean, variance = mean_and_variance(moments)
    return mean.to(dtype), variance.clamp_min(eps).sqrt().to(dtype)
