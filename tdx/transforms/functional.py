"""Transforms as functions of tensors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tdx.core.transforms.episodes import stored_window
from tdx.foundation.errors import ArgumentError
from tdx.transforms.observation.cat_frames import CatFrames

__all__ = ["cat_frames"]


def cat_frames(
    tensor: Tensor,
    N: int,
    dim: int,
    *,
    padding: Literal["same", "constant"] = "same",
    padding_value: float = 0.0,
    time_dim: int = -1,
    done_mask: Tensor | None = None,
) -> Tensor:
    """Concatenate the last ``N`` frames of each step of a tensor, oldest first.

    Args:
        tensor: Frames, with time along ``time_dim``.
        N: Number of frames.
        dim: Dim along which to concatenate; negative.
        padding: As in :class:`CatFrames`.
        padding_value: As in :class:`CatFrames`.
        time_dim: Dim of time; negative.
        done_mask: Frames of each window that are outside the episode, bool ``[*B, T, N]``, with
            any dims of size 1 before the last. ``None``: the tensor is one episode.

    Raises:
        ArgumentError: ``N`` is below 1, a dim is not negative, or ``padding`` is unknown.

    Example:
        >>> cat_frames(torch.tensor([[1.0], [2.0], [3.0]]), 2, -1, time_dim=-2)
        tensor([[1., 1.],
                [1., 2.],
                [2., 3.]])
    """
    stack = CatFrames(N, dim, padding=padding, padding_value=padding_value)
    if time_dim >= 0:
        raise ArgumentError(
            f"time_dim must be < 0, got {time_dim}", hint="count from the end, such as -2"
        )
    shape = tensor.shape[: tensor.ndim + time_dim + 1]
    if done_mask is None:
        known = torch.arange(shape[-1], device=tensor.device).expand(shape)
    else:
        known = (~done_mask.reshape(*shape, N)).sum(-1) - 1
    pad = None if padding == "same" else stack._pad
    return stack._combine(stored_window(tensor, tensor, known, N, pad=pad))
