"""Sample slices of episodes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.episodes import EpisodeBoundaries, Episodes
from tdx.data.samplers import Sampler
from tdx.data.storage import Storage
from tdx.data.tensor_storage import TensorStorage
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.foundation.keys import NestedKey, normalize_key, sibling_key
from tdx.foundation.tensordicts import read, write

MASK = ("collector", "mask")
Span = bool | int | Sequence[bool | int]


@dataclass(frozen=True)
class Plan:
    """What all batches of one size have in common until data is written.

    Args:
        first: First row of each episode, not wrapped at the end of the ring.
        length: Length of each episode.
        column: Position of each episode in the row.
        starts: Number of steps of each episode at which a slice can start, float64.
        start: First of these steps, counted from the first step of the episode; negative if a
            slice may begin before it. ``None``: the first step.
        steps: Step offsets in a slice.
        firsts: Mask of the first step of each slice, ``[count, length]``.
        lasts: Mask of the last step of each slice, if all have full length, ``[count, length]``.
        flags: Keys that mark the end of a slice.
        init: Key that marks the first step of a slice, if it is stored.
    """

    first: Tensor
    length: Tensor
    column: Tensor
    starts: Tensor
    start: Tensor | None
    steps: Tensor
    firsts: Tensor
    lasts: Tensor
    flags: tuple[NestedKey, ...]
    init: NestedKey | None


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
        end_keys: Instead of ``end_key``, flags any of which ends an episode.
        traj_key: Entry that identifies the episode, instead of a flag. With an ``end_key``, the
            flag is used if this entry is missing. If neither is given and the data has no done
            flag or no next states, ``("collector", "traj_ids")`` or ``"episode"``.
        ends: Flags of all steps, ``[rows, *B]``, instead of entries; the data must not change.
        trajectories: Identifiers of the episodes of all steps, instead of entries.
        cache_values: No effect: episodes are always cached until data is written.
        truncated_key: Flag that marks the end of each slice, together with its ``done`` flag.
            ``None``: no marks, and transforms do not treat the batch as sequences.
        init_key: Flag that marks the start of each slice, if the data has it. ``None``: no marks.
        strict_length: Skip episodes shorter than a slice. Otherwise they are drawn as a whole,
            and the batch is smaller.
        pad_output: Repeat the last step of shorter slices up to ``slice_len``, and mark the
            other steps in ``("collector", "mask")``; requires ``strict_length=False``.
        compile: No effect.
        span: Let slices cross the start and the end of an episode and cut them there: ``True``
            down to one step, an integer ``n`` by at most ``n`` steps. A pair: at the start, at
            the end.
        use_gpu: No effect: episodes are found on the CPU.
        replacement: ``False`` creates a :class:`SliceSamplerWithoutReplacement`, with its
            arguments.

    Raises:
        ArgumentError: Both or neither of ``num_slices`` and ``slice_len`` are given, or a value
            is not valid.

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

    _without_replacement: type[SliceSampler]
    """Set by the module of the subclass."""

    _counts_slices = False
    """True if the batch size is the number of slices."""

    def __new__(cls, *args: Any, replacement: bool = True, **options: Any) -> Any:
        """Return a sampler without replacement if ``replacement=False``."""
        draws_once = cls is SliceSampler and not replacement
        return super().__new__(cls._without_replacement if draws_once else cls)

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        traj_key: NestedKey | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        cache_values: bool = False,
        truncated_key: NestedKey | None = ("next", "truncated"),
        init_key: NestedKey | None = "is_init",
        strict_length: bool = True,
        pad_output: bool = False,
        compile: bool | dict[str, Any] = False,
        span: Span = False,
        use_gpu: torch.device | bool = False,
        replacement: bool = True,
    ) -> None:
        self._check_sizes(num_slices, slice_len)
        self.boundaries = EpisodeBoundaries(end_key, end_keys, traj_key, ends, trajectories)
        if pad_output and strict_length:
            raise ArgumentError(
                "pad_output=True is incompatible with strict_length=True: no slice is shorter",
                hint="pass strict_length=False",
            )
        self.num_slices, self.slice_len = num_slices, slice_len
        self.cache_values = cache_values
        self.truncated_key = None if truncated_key is None else normalize_key(truncated_key)
        self.init_key = None if init_key is None else normalize_key(init_key)
        self.strict_length = self._skips_short = strict_length
        self.pad_output = pad_output
        pair = span if isinstance(span, (tuple, list)) else (span, span)
        self.span = (pair[0], pair[1])
        self._known: tuple[weakref.ref[Storage], tuple[int, int, int], Plan] | None = None

    @classmethod
    def of_windows(cls, slice_len: int, batch_size: int, **arguments: Any) -> SliceSampler:
        """Return a sampler of slices that a transform maps to one step each.

        Args:
            slice_len: Length of each slice.
            batch_size: Default batch size. It counts slices, as that of
                :meth:`ReplayBuffer.sample` does.
            **arguments: Other arguments of the sampler. By default it marks no steps, since only
                one of each slice remains.
        """
        arguments = {"truncated_key": None, "init_key": None, **arguments}
        sampler: SliceSampler = cls(slice_len=slice_len, **arguments)
        sampler.batch_size, sampler._counts_slices = batch_size, True
        return sampler

    @property
    def end_key(self) -> NestedKey:
        """Flag of the last step of an episode."""
        return self.boundaries.end_keys[0]

    @property
    def traj_key(self) -> NestedKey | None:
        """Entry that identifies the episode."""
        return self.boundaries.traj_key

    @staticmethod
    def _check_sizes(num_slices: int | None, slice_len: int | None) -> None:
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

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments and the state, without cached episodes."""
        return self.__dict__ | {"_known": None}

    @property
    def dim_name(self) -> str:
        """``time`` if the ends of the slices are marked."""
        return "batch" if self.truncated_key is None else "time"

    # Drawing

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        if not isinstance(storage, TensorStorage) or not (storage.layout and storage.layout.groups):
            raise ChainError(
                f"SliceSampler cannot find episodes in this {type(storage).__name__}",
                hint="store TensorDicts in a LazyTensorStorage or a LazyMemmapStorage",
            )
        count, length = self._sizes(batch_size)
        plan = self._cached_plan(storage, count, length)
        chosen, offset, info = self._choose(storage, plan, count)
        notes: dict[str, Any] = {"flags": plan.flags, "info": info}
        first = plan.firsts[: len(chosen)]
        if self.strict_length and not any(self.span):
            last = plan.lasts[: len(chosen)]
            numbers = self._numbers(storage, plan, chosen, offset.unsqueeze(1) + plan.steps)
        else:
            longest = plan.length[chosen].clamp(max=length)
            ends = torch.minimum(offset + longest, plan.length[chosen]).unsqueeze(1)
            times = offset.clamp(min=0).unsqueeze(1) + plan.steps
            inside, last = times < ends, times == ends - 1
            numbers = self._numbers(storage, plan, chosen, torch.minimum(times, ends - 1))
            notes["lengths"] = inside.sum(1)
            if not self.pad_output:
                numbers, last, first = numbers[inside], last[inside], first[inside]
            elif not bool(inside.all()):
                notes["mask"] = inside.flatten()
        notes["last"] = last.reshape(-1, 1)
        if plan.init is not None:
            notes["first"] = (plan.init, first.reshape(-1, 1))
        return numbers.flatten().to(storage.device), notes

    def _choose(
        self, storage: TensorStorage, plan: Plan, count: int
    ) -> tuple[Tensor, Tensor, dict[Any, Tensor]]:
        """Choose episodes, and the step of each at which its slice starts.

        Returns:
            Episodes and steps, int64 ``[count]``, and further entries of the batch.
        """
        chosen = self._integers(len(plan.first), count)
        part = self._fractions(count, chosen.device).cpu()
        chosen = chosen.cpu()
        return chosen, self._starts_of(plan, chosen, part), {}

    @staticmethod
    def _starts_of(plan: Plan, chosen: Tensor, part: Tensor) -> Tensor:
        """Return the step at which the slice of each chosen episode starts.

        Args:
            plan: The plan.
            chosen: Episodes, int64 ``[count]``.
            part: Numbers in [0, 1), float64 ``[count]``, so that the product with the number of
                starts stays below it.
        """
        offset = (part * plan.starts[chosen]).long()
        return offset if plan.start is None else offset + plan.start[chosen]

    @staticmethod
    def _numbers(storage: Storage, plan: Plan, chosen: Tensor, times: Tensor) -> Tensor:
        """Return the step numbers of times ``[count, length]`` in some episodes."""
        rows = plan.first[chosen].unsqueeze(1) + times
        numbers = rows % storage.max_rows if storage.oldest else rows
        if storage.width > 1:
            numbers = numbers * storage.width + plan.column[chosen].unsqueeze(1)
        return numbers

    def _fractions(self, count: int, device: torch.device) -> Tensor:
        return torch.rand(count, generator=self.generator, device=device, dtype=torch.float64)

    def _sizes(self, batch_size: int) -> tuple[int, int]:
        """Return the number of slices and their length."""
        given = self.num_slices or self.slice_len
        assert given is not None
        if self._counts_slices:
            return batch_size, given
        rest = batch_size // given
        if rest * given != batch_size:
            name = "num_slices" if self.num_slices else "slice_len"
            raise ArgumentError(
                f"batch size {batch_size} is not a multiple of {name}={given}",
                hint=f"use {max(rest, 1) * given} or {(rest + 1) * given}",
            )
        return (given, rest) if self.num_slices else (rest, given)

    def _cached_plan(self, storage: TensorStorage, count: int, length: int) -> Plan:
        """Return the plan, cached until data is written or the size changes."""
        size = (storage.version, count, length)
        if self._known is not None and self._known[0]() is storage and self._known[1] == size:
            return self._known[2]
        plan = self._plan(storage, count, length)
        self._known = (weakref.ref(storage), size, plan)
        return plan

    def _plan(self, storage: TensorStorage, count: int, length: int) -> Plan:
        episodes = self.boundaries.find(storage)
        if self._skips_short:
            fits = episodes.length >= length
            if not fits.any():
                raise self._too_short(episodes, length, storage)
            episodes = Episodes(episodes.first[fits], episodes.length[fits], episodes.column[fits])
        steps = torch.arange(length)
        start, stop = self._start_range(episodes.length, length)
        return Plan(
            first=episodes.first + storage.oldest,
            length=episodes.length,
            column=episodes.column,
            starts=(stop - start).double(),
            start=start if any(self.span) else None,
            steps=steps,
            firsts=(steps == 0).expand(count, length).contiguous(),
            lasts=(steps == length - 1).expand(count, length).contiguous(),
            flags=self._end_flags(storage),
            init=self.init_key if storage.leaf(self.init_key or ()) is not None else None,
        )

    def _start_range(self, lengths: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return the first step at which a slice of each episode can start, and one past the last.

        Raises:
            ArgumentError: The span is as long as a slice.
        """
        for span in self.span:
            if span is not True and span >= length:
                raise ArgumentError(
                    f"span {span} is not less than the slice length {length}",
                    hint="pass the number of steps that may be missing",
                )
        longest = lengths.clamp(max=length)
        shortest = (1 if span is True else length - int(span) for span in self.span)
        left, right = ((longest - steps).clamp(min=0) for steps in shortest)
        return -left, lengths - (longest - right) + 1

    def _too_short(self, episodes: Episodes, length: int, storage: TensorStorage) -> ChainError:
        shortest, longest = int(episodes.length.min()), int(episodes.length.max())
        message = f"no stored episode has {length} steps: they have {shortest} to {longest}"
        hint = "use shorter slices, or strict_length=False"
        cut = int(storage.begins[: storage.rows].sum())
        if cut and self.traj_key is None:
            message += f", and {cut} of the {len(storage)} steps do not continue the previous step"
            hint = "write steps in time order, or separate episodes by a traj_key"
        return ChainError(message, hint=hint)

    # The batch

    def mark(self, data: Any, notes: dict[str, Any]) -> dict[Any, Tensor]:
        written: dict[Any, Tensor] = super().mark(data, notes)
        if "mask" in notes:
            written[MASK] = notes["mask"]
        if self.truncated_key is None or not isinstance(data, TensorDictBase):
            return written
        last = notes["last"].to(data.device)
        marks = dict.fromkeys(notes["flags"], last)
        if "first" in notes:
            key, first = notes["first"]
            marks[key] = first.to(data.device)
        for key, marked in marks.items():
            before = read(data, key)
            if before is None:
                flag = marked.clone()
            elif before.ndim == 2:
                flag = before | marked
            else:
                flag = before | marked.reshape(-1, *[1] * (before.ndim - 1))
            write(data, key, flag)
            written[key] = flag
        if MASK in written:
            data.set(MASK, written[MASK].to(data.device))
        return written

    def describe(self, storage: Storage, steps: Tensor, notes: dict[str, Any]) -> dict[Any, Any]:
        batch = storage.gather(steps, self.dim_name)
        info = self.mark(batch, notes)
        if self.truncated_key is not None:
            key = sibling_key(self.truncated_key, "terminated")
            flag = read(batch, key)
            info[key] = torch.zeros_like(info[self.truncated_key]) if flag is None else flag
        return info

    def _end_flags(self, storage: TensorStorage) -> tuple[NestedKey, ...]:
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
