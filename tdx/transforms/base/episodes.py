"""Where episodes begin in stored data."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.errors import ArgumentError, KeyNotFoundError, Where
from tdx.keys import NestedKey, format_key
from tdx.tensordicts import read


def episode_starts(tensordict: TensorDictBase, done_key: NestedKey) -> Tensor:
    """Which steps of a stored rollout are the first of their episode.

    Args:
        tensordict: ``[*B, T]``, in time order along its last dim.
        done_key: the flag that a step's ``next`` is the end of its episode.

    Returns:
        bool, ``[*B, T]``, its first step always set.

    Raises:
        ArgumentError: it has no dim of time, or its last dim is named otherwise.
        KeyNotFoundError: neither the flag nor ``is_init`` is there.
    """
    if tensordict.ndim < 1:
        raise ArgumentError(
            "stored steps need a dim of time to be put in order",
            hint="give a rollout of shape [*B, T]",
        )
    refuse_unordered(tensordict)
    done, is_init = read(tensordict, done_key), read(tensordict, "is_init")
    if done is None and is_init is None:
        raise KeyNotFoundError(
            "the stored data has neither a done flag nor is_init to tell episodes apart",
            hint=f"keep {format_key(done_key)!r} in the data",
            where=Where(key=done_key),
        )
    starts = torch.zeros(tensordict.batch_size, dtype=torch.bool, device=tensordict.device)
    starts[..., 0] = True
    if done is not None:
        ended = done.reshape(*tensordict.batch_size, -1).any(-1)
        starts[..., 1:] |= ended[..., :-1]
    if is_init is not None:
        starts |= is_init.reshape(*tensordict.batch_size, -1).any(-1)
    return starts


def refuse_unordered(tensordict: TensorDictBase) -> None:
    """Check that nothing says of the last dim that it is not time.

    Raises:
        ArgumentError: it has another name.
    """
    name = tensordict.names[-1] if tensordict.ndim else None
    if name not in (None, "time"):
        raise ArgumentError(
            f"stored steps need a dim of time, and the last one is named {name!r}",
            hint="their order is random: draw slices of episodes with a SliceSampler",
        )
