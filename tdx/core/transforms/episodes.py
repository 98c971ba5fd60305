"""Where episodes begin in stored data, for all of it or for each group of done flags."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask
from tdx.errors import ArgumentError, KeyNotFoundError, Where
from tdx.keys import NestedKey, format_key, join_keys, normalize_key, split_key
from tdx.tensordicts import read

FLAGS = ("done", "terminated", "truncated")


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """Done flags of a stored rollout that sit side by side and are reset together.

    Args:
        parents: Keys of the group that they are in; empty at the root.
        flags: Names of the flags under ``next``; empty where only ``is_init`` is stored.
    """

    parents: tuple[str, ...]
    flags: tuple[str, ...]

    def beside(self, name: str) -> NestedKey:
        """Return the key of that name in this group, at the root."""
        return normalize_key((*self.parents, name))

    def ends(self, tensordict: TensorDictBase) -> Tensor | None:
        """Return which steps end an episode, bool ``[*B, T, *G, 1]``; ``None`` without flags."""
        names = ("done",) if "done" in self.flags else self.flags
        ends: Tensor | None = None
        for name in names:
            flag = read(tensordict, join_keys("next", self.beside(name)))
            ends = flag if ends is None else ends | flag
        return ends

    def starts(self, tensordict: TensorDictBase) -> Tensor:
        """Return which steps are the first of their episode, bool ``[*B, T, *G, 1]``.

        Args:
            tensordict: Stored rollout ``[*B, T]``; its first step is always the first of one.
        """
        time = tensordict.ndim - 1
        ends, is_init = self.ends(tensordict), read(tensordict, self.beside("is_init"))
        like = ends if ends is not None else is_init
        starts = torch.zeros_like(like, dtype=torch.bool)
        starts.select(time, 0).fill_(True)
        steps = starts.shape[time]
        if ends is not None:
            starts.narrow(time, 1, steps - 1).logical_or_(ends.narrow(time, 0, steps - 1))
        if is_init is None:
            return starts
        return starts | expand_mask(is_init, starts, tensordict.ndim)


def stored_groups(tensordict: TensorDictBase) -> tuple[StoredGroup, ...]:
    """Return the groups of done flags in a stored rollout.

    Args:
        tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

    Raises:
        ArgumentError: It has no dim of time, or its last dim has another name.
        KeyNotFoundError: It has neither a done flag nor ``is_init``.
    """
    _require_time(tensordict)
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    following = tensordict.get("next", None)
    for key in () if following is None else following.keys(True, True):
        *parents, name = split_key(key)
        if name in FLAGS:
            found[tuple(parents)] = (*found.get(tuple(parents), ()), name)
    if not found and read(tensordict, "is_init") is None:
        raise _no_flags(("next", "done"))
    groups = tuple(StoredGroup(parents, flags) for parents, flags in found.items())
    return groups or (StoredGroup((), ()),)


def stored_group_of(tensordict: TensorDictBase, key: NestedKey) -> StoredGroup:
    """Return the group of done flags that governs an entry: the nearest enclosing one.

    Args:
        tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.
        key: Key of the entry, at the root.

    Raises:
        ArgumentError: The rollout has no dim of time, or its last dim has another name.
        KeyNotFoundError: It has neither a done flag that governs the entry nor ``is_init``.
    """
    by_parents = {group.parents: group for group in stored_groups(tensordict)}
    parents = split_key(key)[:-1]
    for depth in range(len(parents), -1, -1):
        if parents[:depth] in by_parents:
            return by_parents[parents[:depth]]
    raise _no_flags(join_keys("next", normalize_key((*parents, "done"))))


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
    _require_time(tensordict)
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


def _require_time(tensordict: TensorDictBase) -> None:
    if tensordict.ndim < 1:
        raise ArgumentError(
            "stored steps need a dim of time to be put in order",
            hint="give a rollout of shape [*B, T]",
        )
    refuse_unordered(tensordict)


def _no_flags(done_key: NestedKey) -> KeyNotFoundError:
    return KeyNotFoundError(
        "the stored data has neither a done flag nor is_init to tell episodes apart",
        hint=f"keep {format_key(done_key)!r} in the data",
        where=Where(key=done_key),
    )


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
