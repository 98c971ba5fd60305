"""Running moments of a stream of values: their sum, the sum of their squares, their count.

They are kept in one tensor ``[3, ...]`` in float64, so that a count stays exact and a variance
far from zero loses no digits, and are updated in place, so that several can share them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
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
    moments.mul_(_weights(news[2] > 0, moments, decay)).add_(news)


def _weights(counted: Tensor, moments: Tensor, decay: float) -> Tensor:
    """What earlier moments weigh from now on; all where nothing was counted."""
    return torch.where(counted, moments.new_tensor(decay), moments.new_tensor(1.0))


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


def moments_over_time(
    moments: Tensor,
    steps: Tensor,
    resets: Tensor | None,
    rows: Tensor | None,
    times: tuple[int, ...],
    decay: float,
) -> tuple[Tensor, Tensor | None]:
    """:func:`add_values` for the values of many steps and the resets among them, in time order.

    Args:
        moments: before the first step, ``[3, ...]``; changed in place to those after the last.
        steps: ``[T, *B, ...]``.
        resets: ``[R, *B, ...]``, if resets have a value.
        rows: which rows each reset was for; broadcasts to ``resets``.
        times: before which step each reset was.
        decay: 1 weighs old and new the same.

    Returns:
        the moments right after each step ``[T, 3, ...]``, and after each reset ``[R, 3, ...]``.
    """
    dims = moments.ndim - 1
    news = _news_of_steps(steps.detach().to(moments.dtype), dims)
    if resets is None or rows is None or not times:
        after = _decayed_sums(moments, news, decay, None)
        moments.copy_(after[-1])
        return after, None
    of_resets = _news_of_rows(resets.detach().to(moments.dtype), rows, dims)
    order = [index + place for place, index in enumerate(times)]
    is_reset = torch.zeros(len(news) + len(order), dtype=torch.bool, device=news.device)
    is_reset[order] = True
    both = news.new_empty((len(is_reset), *news.shape[1:]))
    both[is_reset], both[~is_reset] = of_resets, news
    after = _decayed_sums(moments, both, decay, is_reset)
    moments.copy_(after[-1])
    return after[~is_reset], after[is_reset]


def _news_of_steps(values: Tensor, dims: int) -> Tensor:
    """Sum, squares and count of each step ``[T, *B, ...]``, as ``[T, 3, ...]``."""
    batch = values.shape[1 : values.ndim - dims]
    if batch:
        values = values.reshape(len(values), batch.numel(), *values.shape[values.ndim - dims :])
        total, squares = values.sum(1), values.square().sum(1)
    else:
        total, squares = values, values * values
    return torch.stack((total, squares, torch.full_like(total, batch.numel())), 1)


def _news_of_rows(values: Tensor, rows: Tensor, dims: int) -> Tensor:
    """The same of some rows of each reset ``[R, *B, ...]``."""
    counted = rows.expand(values.shape)
    values = torch.where(counted, values, 0.0)
    parts = (values, values * values, counted.to(values.dtype))
    flat = [part.reshape(len(values), -1, *values.shape[values.ndim - dims :]) for part in parts]
    return torch.stack([part.sum(1) for part in flat], 1)


def _decayed_sums(
    moments: Tensor, news: Tensor, decay: float, may_be_empty: Tensor | None
) -> Tensor:
    """``state = state * decay + new``, one after another; ``[E, 3, ...]``."""
    if news.device.type != "cpu":
        return _decayed_on_device(moments, news, decay)
    column, state = news.numpy(), moments.numpy()
    after = np.empty_like(column)
    if decay == 1:
        after[:] = column
        after[0] += state
        np.add.accumulate(after, axis=0, out=after)
        return torch.from_numpy(after)
    multiply, add = np.multiply, np.add
    empty = () if may_be_empty is None else _empty_places(column, may_be_empty.numpy())
    state = state.copy()
    for index in range(len(column)):
        weight = 1.0 if index in empty else decay
        row = after[index]
        multiply(state, weight, out=row)
        add(row, column[index], out=row)
        state = row
    return torch.from_numpy(after)


def _empty_places(column: Any, is_reset: Any) -> frozenset[int]:
    """The resets that counted nothing, and so let nothing fade."""
    counts = column[:, 2].reshape(len(column), -1).max(1)
    return frozenset(np.flatnonzero(is_reset & (counts <= 0)).tolist())


def _decayed_on_device(moments: Tensor, news: Tensor, decay: float) -> Tensor:
    state, after = moments, []
    weights = _weights(news[:, 2:] > 0, moments, decay)
    for weight, new in zip(weights.unbind(0), news.unbind(0), strict=True):
        state = state * weight + new
        after.append(state)
    return torch.stack(after)
