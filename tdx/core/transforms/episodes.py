"""Episodes in stored data: where they start and end, and windows that never reach into another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask
from tdx.foundation.errors import KeyNotFoundError, StoredDataError, Where
from tdx.foundation.keys import NestedKey, format_key, join_keys, normalize_key, split_key
from tdx.foundation.tensordicts import read

FLAGS = ("done", "terminated", "truncated")


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """Done flags of a stored rollout that are siblings and are reset together."""

    parents: tuple[str, ...]  # keys of the group that contains them; empty at the root
    flags: tuple[str, ...]  # names under "next"; empty if only is_init is stored

    def sibling(self, name: str) -> NestedKey:
        """Return the key with that name in this group, at the root."""
        return normalize_key((*self.parents, name))

    def ends(self, tensordict: TensorDictBase) -> Tensor | None:
        """Return which steps end an episode, bool ``[*B, T, *G, 1]``; ``None`` without flags."""
        names = ("done",) if "done" in self.flags else self.flags
        ends: Tensor | None = None
        for name in names:
            flag = read(tensordict, join_keys("next", self.sibling(name)))
            ends = flag if ends is None else ends | flag
        return ends

    def starts(self, tensordict: TensorDictBase) -> Tensor:
        """Return which steps start an episode, ``[*B, T, *G, 1]``; the first one always does."""
        time = tensordict.ndim - 1
        ends, is_init = self.ends(tensordict), read(tensordict, self.sibling("is_init"))
        like = ends if ends is not None else is_init
        starts = torch.zeros_like(like, dtype=torch.bool)
        starts.select(time, 0).fill_(True)
        steps = starts.shape[time]
        if ends is not None:
            starts.narrow(time, 1, steps - 1).logical_or_(ends.narrow(time, 0, steps - 1))
        if is_init is None:
            return starts
        return starts | expand_mask(is_init, starts, tensordict.ndim)


def steps_since_start(starts: Tensor, time_dim: int) -> Tensor:
    """Return the number of steps since the start of the episode, int64 like ``starts``.

    The first step must start an episode.

    Example:
        >>> steps_since_start(torch.tensor([True, False, True, False, False]), 0)
        tensor([0, 1, 0, 1, 2])
    """
    steps = torch.arange(starts.shape[time_dim], device=starts.device)
    steps = steps.reshape(-1, *[1] * (starts.ndim - time_dim - 1)).expand(starts.shape)
    return steps - torch.where(starts, steps, 0).cummax(time_dim).values


def stored_groups(tensordict: TensorDictBase) -> tuple[StoredGroup, ...]:
    """Return the groups of done flags in a stored rollout ``[*B, T]``, in time order."""
    _require_time_dim(tensordict)
    flags_of: dict[tuple[str, ...], tuple[str, ...]] = {}
    following = tensordict.get("next", None)
    for key in () if following is None else following.keys(True, True):
        *parents, name = split_key(key)
        if name in FLAGS:
            flags_of[tuple(parents)] = (*flags_of.get(tuple(parents), ()), name)
    if not flags_of and read(tensordict, "is_init") is None:
        raise _no_flags(("next", "done"))
    groups = tuple(StoredGroup(parents, flags) for parents, flags in flags_of.items())
    return groups or (StoredGroup((), ()),)


def stored_starts(tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """Return which steps of a stored rollout start an episode of a root entry, ``[*B, T, *G, 1]``.

    The flags of the nearest group that encloses the entry decide, or else those of all groups, as
    for the reset of an env.
    """
    by_parents = {group.parents: group for group in stored_groups(tensordict)}
    parents = split_key(key)[:-1]
    for depth in range(len(parents), -1, -1):
        if parents[:depth] in by_parents:
            return by_parents[parents[:depth]].starts(tensordict)
    shape = (*tensordict.batch_size, -1)
    starts = [group.starts(tensordict).reshape(shape).any(-1) for group in by_parents.values()]
    return torch.stack(starts).any(0).unsqueeze(-1)


def episode_starts(tensordict: TensorDictBase, done_key: NestedKey) -> Tensor:
    """Return which steps of a stored rollout start an episode, ``[*B, T]``; the first always does.

    ``done_key``: flag that the episode ends with this step.
    """
    _require_time_dim(tensordict)
    done, is_init = read(tensordict, done_key), read(tensordict, "is_init")
    if done is None and is_init is None:
        raise _no_flags(done_key)
    starts = torch.zeros(tensordict.batch_size, dtype=torch.bool, device=tensordict.device)
    starts[..., 0] = True
    if done is not None:
        ended = done.reshape(*tensordict.batch_size, -1).any(-1)
        starts[..., 1:] |= ended[..., :-1]
    if is_init is not None:
        starts |= is_init.reshape(*tensordict.batch_size, -1).any(-1)
    return starts


def require_time_order(tensordict: TensorDictBase) -> None:
    """Check that the last dim is not declared to be something other than time."""
    name = tensordict.names[-1] if tensordict.ndim else None
    if name not in (None, "time"):
        raise StoredDataError(
            f"stored steps need a time dim, but the last dim is named {name!r}",
            hint="their order is random: draw slices of episodes with a SliceSampler",
        )


def _require_time_dim(tensordict: TensorDictBase) -> None:
    if tensordict.ndim < 1:
        raise StoredDataError(
            "stored steps need a time dim", hint="give a rollout of shape [*B, T]"
        )
    require_time_order(tensordict)


def _no_flags(done_key: NestedKey) -> KeyNotFoundError:
    return KeyNotFoundError(
        "the stored data has neither a done flag nor is_init to separate episodes",
        hint=f"keep {format_key(done_key)!r} in the data",
        where=Where(key=done_key),
    )


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
    """Return the window of each step of a stored rollout ``[*B, T]``, oldest entries first.

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
    """Return which entries of the windows are outside the episode, bool ``[*B, T, size]``."""
    distances = torch.arange(size, device=known.device)
    padded = distances > known.unsqueeze(-1)
    return padded if forward else padded.flip(-1)


def known_steps(tensordict: TensorDictBase, done_key: NestedKey, forward: bool) -> Tensor:
    """Return the steps of the episode before or after each stored step, int64 ``[*B, T]``.

    Without the flag ``done_key``, data is a single episode for windows of following entries.
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
