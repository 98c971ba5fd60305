"""Windows of the steps of a stored rollout, which never reach into another episode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms.episodes import episode_starts, steps_since_start
from tdx.keys import NestedKey
from tdx.tensordicts import read

Window = list[Tensor]


def stored_window(
    first: Tensor,
    source: Tensor,
    known: Tensor,
    size: int,
    *,
    ahead: int = 0,
    forward: bool = False,
    pad: Callable[[Tensor], Tensor] | None = None,
) -> Window:
    """Return the window of each step of a stored rollout, oldest entries first.

    Args:
        first: Entry of the step itself, ``[*B, T, ...]``.
        source: Entries of the other steps, ``[*B, T, ...]``.
        known: Steps of the episode before each step, or after it if ``forward``, ``[*B, T]``.
        size: Number of entries in a window.
        ahead: 1 if ``first`` is one step ahead of ``source``, else 0.
        forward: If True, a window contains the following entries instead of the preceding ones.
        pad: Returns what replaces an entry outside the episode. ``None``: the nearest entry.
    """
    time_dim, direction = known.ndim - 1, 1 if forward else -1
    time = torch.arange(known.shape[-1], device=known.device)
    window = [first]
    for distance in range(1 - ahead, size - ahead):
        inside = known >= distance
        step = time + direction * torch.where(inside, distance, known)
        index = step.reshape(*step.shape, *([1] * (source.ndim - time_dim - 1)))
        entry = source.gather(time_dim, index.expand(source.shape))
        if pad is not None:
            entry = entry.where(inside.reshape(index.shape), pad(entry))
        window.append(entry)
    return window if forward else window[::-1]


def padded_entries(known: Tensor, size: int, forward: bool) -> Tensor:
    """Return which entries of the windows are outside the episode, bool ``[*B, T, size]``.

    Args:
        known: See :func:`stored_window`.
        size: See :func:`stored_window`.
        forward: See :func:`stored_window`.
    """
    distances = torch.arange(size, device=known.device)
    padded = distances > known.unsqueeze(-1)
    return padded if forward else padded.flip(-1)


def known_steps(tensordict: TensorDictBase, done_key: NestedKey, forward: bool) -> Tensor:
    """Return the steps of the episode before or after each stored step, int64 ``[*B, T]``.

    Args:
        tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.
        done_key: Flag that the episode ends with this step. If it is missing, data is a single
            episode for windows of following entries.
        forward: If True, count the steps after each step.

    Raises:
        ArgumentError: The data has no time dim.
        KeyNotFoundError: It has neither the flag nor ``is_init``.
    """
    time = tensordict.ndim - 1
    if not forward:
        return steps_since_start(episode_starts(tensordict, done_key), time)
    if tensordict.ndim and read(tensordict, done_key) is None:
        starts = torch.zeros(tensordict.batch_size, dtype=torch.bool, device=tensordict.device)
    else:
        starts = episode_starts(tensordict, done_key)
    # In reversed time an episode starts with its last step.
    ends = starts.roll(-1, time)
    ends[..., -1] = True
    return steps_since_start(ends.flip(time), time).flip(time)
