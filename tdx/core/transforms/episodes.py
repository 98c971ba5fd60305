"""Groups of done flags in an env, and episodes in stored data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask
from tdx.errors import ArgumentError, ChainError, KeyNotFoundError, Where
from tdx.keys import NestedKey, format_key, join_keys, normalize_key, sibling_key, split_key
from tdx.specs import Categorical, Composite
from tdx.tensordicts import read

FLAGS = ("done", "terminated", "truncated")

# In an env


def batched_shape(tensordict: TensorDictBase, shape: torch.Size, batch_dims: int) -> torch.Size:
    """Return the shape of an entry ``[*B, ...]`` in a TensorDict ``[*A, *B]``.

    Args:
        tensordict: TensorDict with the env's batch size, or with leading dims before it.
        shape: Shape in the spec, ``[*B, ...]``.
        batch_dims: Number of dims in ``B``.
    """
    return torch.Size((*tensordict.batch_size[: tensordict.ndim - batch_dims], *shape))


@dataclass(frozen=True, slots=True)
class DoneGroup:
    """Done flags that are siblings and are reset together.

    Args:
        reset_key: Key of their reset mask.
        keys: Keys of the flags.
        shape: Shape of the flags, ``[*B, *G, 1]``.
        device: Device of the flags.
        batch_dims: Number of dims in ``B``.
    """

    reset_key: NestedKey
    keys: tuple[NestedKey, ...]
    shape: torch.Size
    device: torch.device
    batch_dims: int

    def sibling(self, name: str) -> NestedKey:
        """Return the key with that name in this group."""
        return sibling_key(self.reset_key, name)

    def has(self, name: str) -> bool:
        """Return True if the group has a flag with that name."""
        return any(split_key(key)[-1] == name for key in self.keys)

    def new_entry(self, value: float, dtype: torch.dtype, like: TensorDictBase) -> Tensor:
        """Return an entry of the shape of the flags for a TensorDict ``[*A, *B]``."""
        shape = batched_shape(like, self.shape, self.batch_dims)
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def flag_spec(self) -> Categorical:
        """Return the spec of a flag of the group."""
        return Categorical(2, shape=self.shape, dtype=torch.bool, device=self.device)


def done_groups(full_done_spec: Composite) -> tuple[DoneGroup, ...]:
    """Return the groups of done flags in a done spec, in order."""
    groups: dict[NestedKey, DoneGroup] = {}
    for raw_key, spec in full_done_spec.items(True, True):
        key = normalize_key(raw_key)
        reset_key = sibling_key(key, "_reset")
        earlier = groups[reset_key].keys if reset_key in groups else ()
        device = torch.device("cpu") if spec.device is None else spec.device
        dims = full_done_spec.ndim
        groups[reset_key] = DoneGroup(reset_key, (*earlier, key), spec.shape, device, dims)
    return tuple(groups.values())


def require_done_flags(before: Composite, after: Composite) -> None:
    """Check that every group of done flags keeps at least one flag.

    Args:
        before: Done spec upstream of a transform.
        after: Done spec downstream of it.

    Raises:
        ChainError: A group has no flag left.
    """
    left = {group.reset_key for group in done_groups(after)}
    for group in done_groups(before):
        if group.reset_key not in left:
            flags = ", ".join(repr(format_key(key)) for key in group.keys)
            raise ChainError(
                f"this stage drops all done flags ({flags}), so episodes would never end",
                hint="keep at least one of them",
                where=Where(key=group.keys[0]),
            )


# In stored data


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """Done flags of a stored rollout that are siblings and are reset together.

    Args:
        parents: Keys of the group that contains them; empty at the root.
        flags: Names of the flags under ``next``; empty if only ``is_init`` is stored.
    """

    parents: tuple[str, ...]
    flags: tuple[str, ...]

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
        """Return which steps start an episode, bool ``[*B, T, *G, 1]``.

        Args:
            tensordict: Stored rollout ``[*B, T]``; its first step always starts one.
        """
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

    Args:
        starts: Mask of the first step of each episode; its first step must be set.
        time_dim: Dim of time.

    Example:
        >>> steps_since_start(torch.tensor([True, False, True, False, False]), 0)
        tensor([0, 1, 0, 1, 2])
    """
    steps = torch.arange(starts.shape[time_dim], device=starts.device)
    steps = steps.reshape(-1, *[1] * (starts.ndim - time_dim - 1)).expand(starts.shape)
    return steps - torch.where(starts, steps, 0).cummax(time_dim).values


def stored_groups(tensordict: TensorDictBase) -> tuple[StoredGroup, ...]:
    """Return the groups of done flags in a stored rollout.

    Args:
        tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

    Raises:
        ArgumentError: It has no time dim, or its last dim has another name.
        KeyNotFoundError: It has neither a done flag nor ``is_init``.
    """
    _require_time_dim(tensordict)
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
        ArgumentError: The rollout has no time dim, or its last dim has another name.
        KeyNotFoundError: It has neither a done flag that governs the entry nor ``is_init``.
    """
    by_parents = {group.parents: group for group in stored_groups(tensordict)}
    parents = split_key(key)[:-1]
    for depth in range(len(parents), -1, -1):
        if parents[:depth] in by_parents:
            return by_parents[parents[:depth]]
    raise _no_flags(join_keys("next", normalize_key((*parents, "done"))))


def episode_starts(tensordict: TensorDictBase, done_key: NestedKey) -> Tensor:
    """Return which steps of a stored rollout start an episode.

    Args:
        tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.
        done_key: Flag that the episode ends with this step.

    Returns:
        Bool, ``[*B, T]``. The first step always starts an episode.

    Raises:
        ArgumentError: It has no time dim, or its last dim has another name.
        KeyNotFoundError: It has neither the flag nor ``is_init``.
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
    """Check that the last dim is not declared to be something other than time.

    Raises:
        ArgumentError: It has another name.
    """
    name = tensordict.names[-1] if tensordict.ndim else None
    if name not in (None, "time"):
        raise ArgumentError(
            f"stored steps need a time dim, but the last dim is named {name!r}",
            hint="their order is random: draw slices of episodes with a SliceSampler",
        )


def _require_time_dim(tensordict: TensorDictBase) -> None:
    if tensordict.ndim < 1:
        raise ArgumentError("stored steps need a time dim", hint="give a rollout of shape [*B, T]")
    require_time_order(tensordict)


def _no_flags(done_key: NestedKey) -> KeyNotFoundError:
    return KeyNotFoundError(
        "the stored data has neither a done flag nor is_init to separate episodes",
        hint=f"keep {format_key(done_key)!r} in the data",
        where=Where(key=done_key),
    )
