"""Sample slices of episodes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.samplers import Sampler
from tdx.data.storage import Storage
from tdx.data.tensor_storage import LazyTensorStorage
from tdx.errors import ArgumentError, ChainError, KeyNotFoundError, Where
from tdx.keys import NestedKey, format_key, normalize_key, sibling_key
from tdx.tensordicts import read, write


@dataclass(frozen=True)
class Episodes:
    """Stored episodes, in time order within each column.

    Args:
        first: Number of rows from the oldest row to the first step.
        length: Number of steps.
        column: Position in the row.
    """

    first: Tensor
    length: Tensor
    column: Tensor


@dataclass(frozen=True)
class Plan:
    """What all batches of one size have in common until data is written.

    Args:
        first: First row of each episode, not wrapped at the end of the ring.
        length: Length of a slice of each episode.
        column: Position of each episode in the row.
        starts: Number of steps of each episode at which a slice can start, float64.
        steps: Step offsets in a slice.
        last: Mask of the last step of each slice, if all have full length, ``[count, length]``.
        flags: Keys that mark the end of a slice.
    """

    first: Tensor
    length: Tensor
    column: Tensor
    starts: Tensor
    steps: Tensor
    last: Tensor
    flags: tuple[NestedKey, ...]


class SliceSampler(Sampler):
    """Draws slices of consecutive steps that do not cross the end of an episode.

    The slices are concatenated in a flat batch ``[num_slices * slice_len]``. Episodes are drawn
    uniformly, regardless of their length, and so is the start in an episode. The last step of
    each slice is marked as truncated, so that transforms treat each slice as a sequence.
    ``batch.reshape(-1, slice_len)`` has one slice per row.

    An episode ends as defined by ``end_key`` or ``traj_key``, at the end of the stored data, and
    before a step that does not equal the ``next`` of the previous step. Thus rollouts that were
    cut short, or written one after another, are not joined.

    Args:
        num_slices: Number of slices in a batch; their length follows from the batch size.
        slice_len: Length of each slice; their number follows from the batch size.
        end_key: Flag of the last step of an episode; ``("next", "done")`` by default.
        traj_key: Entry that identifies the episode, instead of a flag.
        cache_values: No effect: episodes are always cached until data is written.
        truncated_key: Flag that marks the end of each slice, together with its ``done`` flag.
            ``None``: no marks, and transforms do not treat the batch as sequences.
        strict_length: Skip episodes shorter than a slice. Otherwise they are drawn as a whole,
            and the batch is smaller.

    Raises:
        ArgumentError: Both or neither of ``num_slices`` and ``slice_len`` are given, the value is
            not an integer of at least 1, or both ``end_key`` and ``traj_key`` are given.

    Example:
        >>> from tdx import GymEnv, LazyTensorStorage, ReplayBuffer, SliceSampler
        >>> rollout = GymEnv("CartPole-v1").rollout(100, break_when_any_done=False)
        >>> buffer = ReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=5), batch_size=20
        ... )
        >>> _ = buffer.extend(rollout)
        >>> buffer.sample().reshape(-1, 5)["next", "truncated"].squeeze(-1)[0]
        tensor([False, False, False, False,  True])
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: NestedKey | None = None,
        traj_key: NestedKey | None = None,
        cache_values: bool = False,
        truncated_key: NestedKey | None = ("next", "truncated"),
        strict_length: bool = True,
    ) -> None:
        if (num_slices is None) == (slice_len is None):
            raise ArgumentError(
                f"got num_slices={num_slices} and slice_len={slice_len}",
                hint="pass one of the two; the other follows from the batch size",
            )
        for name, value in (("num_slices", num_slices), ("slice_len", slice_len)):
            odd = isinstance(value, bool) or not isinstance(value, int) or value < 1
            if value is not None and odd:
                raise ArgumentError(
                    f"{name} must be an integer of at least 1, got {value!r}",
                    hint="pass a number of steps or slices",
                )
        if end_key is not None and traj_key is not None:
            raise ArgumentError("end_key and traj_key are both given", hint="remove one of them")
        self.num_slices, self.slice_len = num_slices, slice_len
        self.end_key = normalize_key(("next", "done") if end_key is None else end_key)
        self.traj_key = None if traj_key is None else normalize_key(traj_key)
        self.cache_values = cache_values
        self.truncated_key = None if truncated_key is None else normalize_key(truncated_key)
        self.strict_length = strict_length
        self._known: tuple[weakref.ref[Storage], tuple[int, int, int], Plan] | None = None

    @property
    def dim_name(self) -> str:
        """``time`` if the ends of the slices are marked."""
        return "batch" if self.truncated_key is None else "time"

    # Drawing

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        if not isinstance(storage, LazyTensorStorage) or not (
            storage.layout and storage.layout.groups
        ):
            raise ChainError(
                f"SliceSampler cannot find episodes in this {type(storage).__name__}",
                hint="store TensorDicts in a LazyTensorStorage or a LazyMemmapStorage",
            )
        count, length = self._sizes(batch_size)
        plan = self._cached_plan(storage, count, length)
        chosen = self._integers(len(plan.first), count)
        part = self._fractions(count, chosen.device).cpu()
        chosen = chosen.cpu()
        # Below 1 in float64, so that the product stays below its integer factor.
        offset = (part * plan.starts[chosen]).long()
        rows = (plan.first[chosen] + offset).unsqueeze(1) + plan.steps
        numbers = rows % storage.max_rows if storage.oldest else rows
        if storage.width > 1:
            numbers = numbers * storage.width + plan.column[chosen].unsqueeze(1)
        last = plan.last
        if not self.strict_length:
            lengths = plan.length[chosen].unsqueeze(1)
            inside, last = plan.steps < lengths, plan.steps == lengths - 1
            numbers, last = numbers[inside], last[inside]
        notes = {"last": last.reshape(-1, 1), "flags": plan.flags}
        return numbers.flatten().to(storage.device), notes

    def _fractions(self, count: int, device: torch.device) -> Tensor:
        return torch.rand(count, generator=self.generator, device=device, dtype=torch.float64)

    def _sizes(self, batch_size: int) -> tuple[int, int]:
        """Return the number of slices and their length."""
        given = self.num_slices or self.slice_len
        assert given is not None
        rest = batch_size // given
        if rest * given != batch_size:
            name = "num_slices" if self.num_slices else "slice_len"
            raise ArgumentError(
                f"batch size {batch_size} is not a multiple of {name}={given}",
                hint=f"use {max(rest, 1) * given} or {(rest + 1) * given}",
            )
        return (given, rest) if self.num_slices else (rest, given)

    def _cached_plan(self, storage: LazyTensorStorage, count: int, length: int) -> Plan:
        """Return the plan, cached until data is written or the size changes."""
        size = (storage.version, count, length)
        if self._known is not None and self._known[0]() is storage and self._known[1] == size:
            return self._known[2]
        plan = self._plan(storage, count, length)
        self._known = (weakref.ref(storage), size, plan)
        return plan

    def _plan(self, storage: LazyTensorStorage, count: int, length: int) -> Plan:
        episodes = self._episodes(storage)
        if self.strict_length:
            fits = episodes.length >= length
            if not fits.any():
                raise self._too_short(episodes, length, storage)
            episodes = Episodes(episodes.first[fits], episodes.length[fits], episodes.column[fits])
        lengths = episodes.length.clamp(max=length)
        steps = torch.arange(length)
        return Plan(
            first=episodes.first + storage.oldest,
            length=lengths,
            column=episodes.column,
            starts=(episodes.length - lengths + 1).double(),
            steps=steps,
            last=(steps == length - 1).repeat(count, 1),
            flags=self._end_flags(storage),
        )

    def _too_short(self, episodes: Episodes, length: int, storage: LazyTensorStorage) -> ChainError:
        shortest, longest = int(episodes.length.min()), int(episodes.length.max())
        message = f"no stored episode has {length} steps: they have {shortest} to {longest}"
        hint = "use shorter slices, or strict_length=False"
        cut = int(storage.begins[: storage.rows].sum())
        if cut and self.traj_key is None:
            message += f", and {cut} of the {len(storage)} steps do not continue the previous step"
            hint = "write steps in time order, or separate episodes by a traj_key"
        return ChainError(message, hint=hint)

    # Episodes

    def _episodes(self, storage: LazyTensorStorage) -> Episodes:
        rows, width = storage.rows, storage.width
        if self.traj_key is not None:
            values = self._flags(storage, self.traj_key)
            begins = torch.ones(rows, width, dtype=torch.bool)
            begins[1:] = (values[1:] != values[:-1]).any(-1)
        else:
            ended = self._flags(storage, self.end_key).bool().any(-1)
            begins = _in_time_order(storage.begins, storage)
            begins[1:] |= ended[:-1]
        begins[0] = True
        first = begins.t().flatten().nonzero().squeeze(-1)
        length = torch.diff(first, append=torch.tensor([rows * width]))
        return Episodes(first % rows, length, first // rows)

    def _flags(self, storage: LazyTensorStorage, key: NestedKey) -> Tensor:
        """Return an entry in time order, ``[rows, width, n]``."""
        leaf = storage.leaf(key)
        if leaf is None:
            known = [] if storage.layout is None else storage.layout.shapes
            names = sorted(format_key(path) for path in known)
            raise KeyNotFoundError(
                f"the buffer has no {format_key(key)!r} to separate episodes",
                hint=f"pass end_key or traj_key; existing keys: {', '.join(names)}",
                where=Where(key=key),
            )
        if storage.layout is not None and storage.layout.groups[()]:
            raise ChainError(
                "each stored step is itself a sequence of shape "
                f"{tuple(storage.layout.groups[()])}",
                hint="extend with rollout.reshape(-1), or use a storage with ndim=2",
            )
        ordered = _in_time_order(leaf, storage).cpu()
        return ordered.reshape(storage.rows, storage.width, -1)

    # The batch

    def mark(self, data: Any, notes: dict[str, Any]) -> dict[Any, Tensor]:
        if self.truncated_key is None or not isinstance(data, TensorDictBase):
            return super().mark(data, notes)
        last, written = notes["last"].to(data.device), {}
        for key in notes["flags"]:
            before = read(data, key)
            if before is None:
                flag = last.clone()
            elif before.ndim == 2:
                flag = before | last
            else:
                flag = before | last.reshape(-1, *[1] * (before.ndim - 1))
            write(data, key, flag)
            written[key] = flag
        return written

    def _end_flags(self, storage: LazyTensorStorage) -> tuple[NestedKey, ...]:
        """Return the flags that end an episode: the given ones and those of every group."""
        if self.truncated_key is None or storage.layout is None:
            return ()
        keys = [self.truncated_key, sibling_key(self.truncated_key, "done")]
        keys += [
            normalize_key(path)
            for path in storage.layout.shapes
            if path[0] == "next" and path[-1] in ("done", "truncated")
        ]
        return tuple(dict.fromkeys(keys))

    def __repr__(self) -> str:
        size = f"num_slices={self.num_slices}" if self.num_slices else f"slice_len={self.slice_len}"
        return f"SliceSampler({size}, strict_length={self.strict_length})"


def _in_time_order(values: Tensor, storage: Storage) -> Tensor:
    """Return a copy of the filled rows, oldest first."""
    return torch.cat([values[storage.oldest : storage.rows], values[: storage.oldest]])
