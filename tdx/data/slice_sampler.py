"""Draw pieces of episodes."""

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
    """Where the stored episodes are, in order of time within each column.

    Args:
        first: rows after the oldest at which each begins.
        length: the number of its steps.
        column: its place in the row.
    """

    first: Tensor
    length: Tensor
    column: Tensor


@dataclass(frozen=True)
class Plan:
    """What all batches of one size share, until data is written.

    Args:
        first: the row at which each episode begins, counted on over the end of the ring.
        length: the steps of a piece of each.
        column: its place in the row.
        starts: how many steps of each a piece may begin at, float64.
        steps: the numbers of the steps in a piece.
        last: which steps of a batch end a piece, if all are of full length: ``[count, length]``.
        flags: the keys that mark the end of a piece.
    """

    first: Tensor
    length: Tensor
    column: Tensor
    starts: Tensor
    steps: Tensor
    last: Tensor
    flags: tuple[NestedKey, ...]


class SliceSampler(Sampler):
    """Draws pieces of consecutive steps, none of which reaches over the end of an episode.

    The pieces come one behind the other in a flat batch ``[num_slices * slice_len]``; an episode
    is drawn with the same probability whatever its length, and so is each start in it. In the
    batch the last step of each piece is marked as truncated, so that transforms that go along
    time see each piece by itself. ``batch.reshape(-1, slice_len)`` makes a row of each.

    An episode ends where ``end_key`` or ``traj_key`` says so, where the ring of the storage
    begins, and where a step does not go on from what the ``next`` of the step before it holds:
    rollouts that were cut short, or were put one behind the other, don't flow into each other.

    Args:
        num_slices: the number of pieces in a batch; their length follows from its size.
        slice_len: the length of each piece; their number follows from the batch size.
        end_key: the flag of an episode's last step; ``("next", "done")`` by default.
        traj_key: an entry that has a value of its own for each episode, in the place of the flag.
        cache_values: has no effect: where the episodes are is always kept until data is written.
        truncated_key: the flag that marks the end of each piece, with the ``done`` beside it;
            ``None`` for no mark, and then no transform takes the batch for a sequence.
        strict_length: whether all episodes shorter than a piece are passed over; else they are
            drawn whole, and the batch is smaller.

    Raises:
        ArgumentError: not exactly one of ``num_slices`` and ``slice_len`` is given, it is no
            integer of at least 1, or both ``end_key`` and ``traj_key`` are given.

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
                hint="give one of the two; the other follows from the batch size",
            )
        for name, value in (("num_slices", num_slices), ("slice_len", slice_len)):
            odd = isinstance(value, bool) or not isinstance(value, int) or value < 1
            if value is not None and odd:
                raise ArgumentError(
                    f"{name} must be an integer of at least 1, got {value!r}",
                    hint="pass a number of steps or slices",
                )
        if end_key is not None and traj_key is not None:
            raise ArgumentError("end_key and traj_key are both given", hint="leave one of them out")
        self.num_slices, self.slice_len = num_slices, slice_len
        self.end_key = normalize_key(("next", "done") if end_key is None else end_key)
        self.traj_key = None if traj_key is None else normalize_key(traj_key)
        self.cache_values = cache_values
        self.truncated_key = None if truncated_key is None else normalize_key(truncated_key)
        self.strict_length = strict_length
        self._known: tuple[weakref.ref[Storage], tuple[int, int, int], Plan] | None = None

    @property
    def dim_name(self) -> str:
        """``time``, as long as the ends of the pieces are marked."""
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
        plan = self._planned(storage, count, length)
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
        """The number of pieces, and the length of each."""
        given = self.num_slices or self.slice_len
        assert given is not None
        rest = batch_size // given
        if rest * given != batch_size:
            name = "num_slices" if self.num_slices else "slice_len"
            raise ArgumentError(
                f"a batch of {batch_size} cannot be made of whole slices with {name}={given}",
                hint=f"use a multiple: {max(rest, 1) * given} or {(rest + 1) * given}",
            )
        return (given, rest) if self.num_slices else (rest, given)

    def _planned(self, storage: LazyTensorStorage, count: int, length: int) -> Plan:
        """The plan, kept until data is written or another size is asked for."""
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
        hint = "take shorter slices, or strict_length=False for shorter ones where need be"
        cut = int(storage.begins[: storage.rows].sum())
        if cut and self.traj_key is None:
            message += f", and {cut} of the {len(storage)} steps do not go on from the next of"
            message += " the step before them"
            hint = "write steps in order of time, or tell episodes apart by a traj_key"
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
            begins = _in_time(storage.begins, storage)
            begins[1:] |= ended[:-1]
        begins[0] = True
        first = begins.t().flatten().nonzero().squeeze(-1)
        length = torch.diff(first, append=torch.tensor([rows * width]))
        return Episodes(first % rows, length, first // rows)

    def _flags(self, storage: LazyTensorStorage, key: NestedKey) -> Tensor:
        """An entry in order of time, ``[rows, width, n]``."""
        leaf = storage.leaf(key)
        if leaf is None:
            known = [] if storage.layout is None else storage.layout.shapes
            names = sorted(format_key(path) for path in known)
            raise KeyNotFoundError(
                f"the buffer has no {format_key(key)!r} to tell episodes apart",
                hint=f"give end_key or traj_key; it has {', '.join(names)}",
                where=Where(key=key),
            )
        if storage.layout is not None and storage.layout.groups[()]:
            raise ChainError(
                "each stored step is a sequence itself, of shape "
                f"{tuple(storage.layout.groups[()])}",
                hint="extend with rollout.reshape(-1), or use a storage with ndim=2",
            )
        ordered = _in_time(leaf, storage).cpu()
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
        """The flags that end an episode: those asked for, and those of every group."""
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


def _in_time(values: Tensor, storage: Storage) -> Tensor:
    """The filled rows, the oldest first; a copy."""
    return torch.cat([values[storage.oldest : storage.rows], values[: storage.oldest]])
