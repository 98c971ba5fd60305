"""Samplers of slices of episodes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms.validation import check_integer
from tdx.data.layout import Info, StateDict
from tdx.data.prioritized_sampler import WEIGHT, PrioritizedSampler
from tdx.data.samplers import Sampler, SamplerWithoutReplacement, on_device_of
from tdx.data.storage import Storage, TensorStorage, require_leaf
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.foundation.keys import NestedKey, normalize_key, sibling_key
from tdx.foundation.tensordicts import read, write

TRAJECTORY_KEYS: tuple[NestedKey, ...] = (("collector", "traj_ids"), "episode")


@dataclass(frozen=True)
class Episodes:
    """Stored episodes, in time order within each column.

    ``first`` counts the rows from the oldest row to the first step, ``column`` is the position in
    the row.
    """

    first: Tensor
    length: Tensor
    column: Tensor


class EpisodeBoundaries:
    """Finds episodes by flags or identifiers, in entries or in tensors ``[rows, *B]``.

    Raises:
        ArgumentError: Two of the alternatives are given.
    """

    def __init__(
        self,
        end_key: NestedKey | None,
        end_keys: Sequence[NestedKey] | None,
        traj_key: NestedKey | None,
        ends: Tensor | None,
        trajectories: Tensor | None,
    ) -> None:
        for pair in ((end_key, end_keys), (ends, trajectories)):
            if all(value is not None for value in pair):
                raise ArgumentError(
                    "the ends of episodes are given in two ways", hint="remove one of them"
                )
        given = [end_key] if end_key is not None else list(end_keys or ())
        self.end_keys = [normalize_key(key) for key in given or [("next", "done")]]
        self._end_is_given = bool(given)
        self.traj_key = None if traj_key is None else normalize_key(traj_key)
        self.ends, self.trajectories = ends, trajectories
        self._bounds: tuple[weakref.ref[Storage], int, Tensor, Tensor] | None = None

    def __getstate__(self) -> StateDict:
        """Return the arguments, without cached episodes."""
        return self.__dict__ | {"_bounds": None}

    def bounds_of(
        self, storage: TensorStorage, steps: Tensor, *, whole_ring: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the place of each step in time, and the first place and the end of its episode.

        Places count the steps from the oldest to the newest, one column after the other;
        :meth:`steps_at` returns the steps at some places.

        Args:
            storage: Storage of the steps.
            steps: Step numbers, int64 ``[N]``.
            whole_ring: Take each column as one episode.
        """
        rows = storage.rows
        column = steps % storage.width
        place = column * rows + (steps // storage.width - storage.oldest) % rows
        if whole_ring:
            return place, column * rows, (column + 1) * rows
        known = self._bounds
        if known is None or known[0]() is not storage or known[1] != storage.version:
            episodes = self.find(storage)
            begins = episodes.column * rows + episodes.first
            known = (weakref.ref(storage), storage.version, begins, begins + episodes.length)
            self._bounds = known
        episode = torch.searchsorted(known[2], place, right=True) - 1
        return place, known[2][episode], known[3][episode]

    @staticmethod
    def steps_at(storage: TensorStorage, places: Tensor) -> Tensor:
        """Return the step numbers of places in time, int64 ``[N]``."""
        rows = storage.rows
        return (places % rows + storage.oldest) % rows * storage.width + places // rows

    def find(self, storage: TensorStorage) -> Episodes:
        """Return the stored episodes.

        Raises:
            KeyNotFoundError: The entries that separate episodes are missing.
            ChainError: A stored step is itself a sequence.
            ArgumentError: ``ends`` or ``trajectories`` are shorter than the data.
        """
        rows, width = storage.rows, storage.width
        values, ended = self._boundaries(storage)
        if values is not None:
            begins = torch.ones(rows, width, dtype=torch.bool)
            begins[1:] = self._changes(values)
        else:
            assert ended is not None
            begins = _in_time_order(storage.begins, storage)
            begins[1:] |= ended[:-1]
            identifier = None if self._end_is_given else self._stored_identifier(storage)
            if identifier is not None and rows > 1 and bool(begins[1:].all()):
                # `next` does not hold the next step, as in synthetic data.
                begins[1:] = self._changes(self._flags(storage, identifier))
        begins[0] = True
        first = begins.t().flatten().nonzero().squeeze(-1)
        length = torch.diff(first, append=torch.tensor([rows * width]))
        return Episodes(first % rows, length, first // rows)

    def _boundaries(self, storage: TensorStorage) -> tuple[Tensor | None, Tensor | None]:
        """Return the episode of each step, ``[rows, width, n]``, or its flag ``[rows, width]``."""
        rows, width = storage.rows, storage.width
        for given in (self.trajectories, self.ends):
            if given is not None and given.shape[:1].numel() * width < rows * width:
                raise ArgumentError(
                    f"ends or trajectories have {len(given)} rows, the storage has {rows}",
                    hint="pass one value for each stored step",
                )
        if self.trajectories is not None:
            values = _in_time_order(self.trajectories[:rows].cpu(), storage)
            return values.reshape(rows, width, -1), None
        if self.ends is not None:
            flags = _in_time_order(self.ends[:rows].cpu(), storage)
            return None, flags.reshape(rows, width, -1).bool().any(-1)
        stored = [key for key in self.end_keys if storage.leaf(key) is not None]
        key = self.traj_key
        if key is None and not self._end_is_given and not stored:
            key = self._stored_identifier(storage)
        can_use_flag = self._end_is_given and stored
        if key is not None and not (storage.leaf(key) is None and can_use_flag):
            self.traj_key = key
            return self._flags(storage, key), None
        ended = [self._flags(storage, key).bool().any(-1) for key in stored or self.end_keys]
        return None, torch.stack(ended).any(0)

    @staticmethod
    def _stored_identifier(storage: TensorStorage) -> NestedKey | None:
        return next((key for key in TRAJECTORY_KEYS if storage.leaf(key) is not None), None)

    @staticmethod
    def _changes(values: Tensor) -> Tensor:
        return (values[1:] != values[:-1]).any(-1)

    def _flags(self, storage: TensorStorage, key: NestedKey) -> Tensor:
        """Return an entry in time order, ``[rows, width, n]``."""
        leaf = require_leaf(storage, key, "pass what separates episodes as end_key or traj_key")
        if storage.layout is not None and storage.layout.groups[()]:
            raise ChainError(
                "each stored step is itself a sequence of shape "
                f"{tuple(storage.layout.groups[()])}",
                hint="extend with rollout.reshape(-1), or use a storage with ndim=2",
            )
        ordered = _in_time_order(leaf, storage).cpu()
        return ordered.reshape(storage.rows, storage.width, -1)


def _in_time_order(values: Tensor, storage: Storage) -> Tensor:
    """Return a copy of the filled rows, oldest first."""
    return torch.cat([values[storage.oldest : storage.rows], values[: storage.oldest]])


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

    _counts_slices = False
    """True if the batch size is the number of slices."""

    def __new__(cls, *args: Any, replacement: bool = True, **options: Any) -> Any:
        """Return a sampler without replacement if ``replacement=False``."""
        draws_once = cls is SliceSampler and not replacement
        return super().__new__(SliceSamplerWithoutReplacement if draws_once else cls)

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
        compile: bool | dict[str, object] = False,
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
            if value is not None:
                check_integer(value, name, 1, "pass a number of steps or slices")

    def __getstate__(self) -> StateDict:
        """Return the arguments and the state, without cached episodes."""
        return self.__dict__ | {"_known": None}

    @property
    def dim_name(self) -> str:
        """``time`` if the ends of the slices are marked."""
        return "batch" if self.truncated_key is None else "time"

    # Drawing

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, StateDict]:
        if not isinstance(storage, TensorStorage) or not (storage.layout and storage.layout.groups):
            raise ChainError(
                f"SliceSampler cannot find episodes in this {type(storage).__name__}",
                hint="store TensorDicts in a LazyTensorStorage or a LazyMemmapStorage",
            )
        count, length = self._sizes(batch_size)
        plan = self._plan(storage, count, length)
        chosen, offset, info = self._choose(storage, plan, count)
        notes: StateDict = {"flags": plan.flags, "info": info}
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
        return on_device_of(storage, numbers.flatten()), notes

    def _choose(
        self, storage: TensorStorage, plan: Plan, count: int
    ) -> tuple[Tensor, Tensor, dict[NestedKey, Tensor]]:
        """Choose episodes, and the step of each at which its slice starts, int64 ``[count]``.

        The dict has further entries of the batch.
        """
        chosen = self._integers(len(plan.first), count)
        part = self._fractions(count, chosen.device).cpu()
        chosen = chosen.cpu()
        return chosen, self._starts_of(plan, chosen, part), {}

    @staticmethod
    def _starts_of(plan: Plan, chosen: Tensor, part: Tensor) -> Tensor:
        """Return the step at which the slice of each chosen episode starts.

        ``part`` is float64 in [0, 1), so that the product with the number of starts stays below it.
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

    def _plan(self, storage: TensorStorage, count: int, length: int) -> Plan:
        """Return the plan, cached until data is written or the size changes."""
        size = (storage.version, count, length)
        if self._known is not None and self._known[0]() is storage and self._known[1] == size:
            return self._known[2]
        episodes = self.boundaries.find(storage)
        if self._skips_short:
            fits = episodes.length >= length
            if not fits.any():
                shortest, longest = int(episodes.length.min()), int(episodes.length.max())
                message = f"no stored episode has {length} steps: they have {shortest} to {longest}"
                hint = "use shorter slices, or strict_length=False"
                cut = int(storage.begins[: storage.rows].sum())
                if cut and self.traj_key is None:
                    message += f", and {cut} of the {len(storage)} steps do not continue the "
                    message += "previous step"
                    hint = "write steps in time order, or separate episodes by a traj_key"
                raise ChainError(message, hint=hint)
            episodes = Episodes(episodes.first[fits], episodes.length[fits], episodes.column[fits])
        steps = torch.arange(length)
        start, stop = self._start_range(episodes.length, length)
        flags: dict[NestedKey, None] = {}
        if self.truncated_key is not None and storage.layout is not None:
            flags = dict.fromkeys([self.truncated_key, sibling_key(self.truncated_key, "done")])
            for path in storage.layout.shapes:
                if path[0] == "next" and path[-1] in ("done", "truncated"):
                    flags[normalize_key(path)] = None
        plan = Plan(
            first=episodes.first + storage.oldest,
            length=episodes.length,
            column=episodes.column,
            starts=(stop - start).double(),
            start=start if any(self.span) else None,
            steps=steps,
            firsts=(steps == 0).expand(count, length).contiguous(),
            lasts=(steps == length - 1).expand(count, length).contiguous(),
            flags=tuple(flags),
            init=self.init_key if storage.leaf(self.init_key or ()) is not None else None,
        )
        self._known = (weakref.ref(storage), size, plan)
        return plan

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

    # The batch

    def mark(self, data: object, notes: StateDict) -> dict[NestedKey, Tensor]:
        written: dict[NestedKey, Tensor] = super().mark(data, notes)
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

    def describe(self, storage: Storage, steps: Tensor, notes: StateDict) -> Info:
        batch = storage.gather(steps, self.dim_name)
        info = self.mark(batch, notes)
        if self.truncated_key is not None:
            key = sibling_key(self.truncated_key, "terminated")
            flag = read(batch, key)
            info[key] = torch.zeros_like(info[self.truncated_key]) if flag is None else flag
        return info

    def __repr__(self) -> str:
        size = f"num_slices={self.num_slices}" if self.num_slices else f"slice_len={self.slice_len}"
        return f"SliceSampler({size}, strict_length={self.strict_length})"


class SliceSamplerWithoutReplacement(SliceSampler):
    """Draws one slice of each episode per pass; its start in the episode is random.

    The last batch of a pass has fewer slices. A write that changes the number of episodes starts
    a new pass.

    Args:
        num_slices: Number of slices in a batch; their length follows from the batch size.
        slice_len: Length of each slice; their number follows from the batch size.
        drop_last: Skip a last batch with fewer slices.
        end_key: See :class:`SliceSampler`, as the other arguments.
        end_keys: See :class:`SliceSampler`.
        traj_key: See :class:`SliceSampler`.
        ends: See :class:`SliceSampler`.
        trajectories: See :class:`SliceSampler`.
        truncated_key: See :class:`SliceSampler`.
        init_key: See :class:`SliceSampler`.
        strict_length: See :class:`SliceSampler`.
        shuffle: Shuffle the episodes in each pass.
        compile: No effect.
        use_gpu: No effect.
        replacement: No effect.

    Raises:
        ArgumentError: As in :class:`SliceSampler`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LazyTensorStorage, ReplayBuffer, SliceSamplerWithoutReplacement
        >>> sampler = SliceSamplerWithoutReplacement(slice_len=2, traj_key="episode")
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=4)
        >>> episode = torch.arange(3).repeat_interleave(3)
        >>> _ = buffer.extend(TensorDict(episode=episode, batch_size=[9]))
        >>> [len(batch) for batch in buffer]
        [4, 2]
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        traj_key: NestedKey | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        truncated_key: NestedKey | None = ("next", "truncated"),
        init_key: NestedKey | None = "is_init",
        strict_length: bool = True,
        shuffle: bool = True,
        compile: bool | dict[str, object] = False,
        use_gpu: torch.device | bool = False,
        replacement: bool = False,
    ) -> None:
        super().__init__(
            num_slices=num_slices,
            slice_len=slice_len,
            end_key=end_key,
            end_keys=end_keys,
            traj_key=traj_key,
            ends=ends,
            trajectories=trajectories,
            truncated_key=truncated_key,
            init_key=init_key,
            strict_length=strict_length,
        )
        self.drop_last, self.shuffle = drop_last, shuffle
        self._pass = SamplerWithoutReplacement(drop_last, shuffle)
        self._episodes = 0

    def _choose(
        self, storage: TensorStorage, plan: Plan, count: int
    ) -> tuple[Tensor, Tensor, dict[NestedKey, Tensor]]:
        if self._episodes != len(plan.first):
            self._pass.reset()
        self._episodes = len(plan.first)
        self._pass.generator = self.generator
        chosen = self._pass.take(self._episodes, count).cpu()
        self.ran_out = self._pass.ran_out
        part = self._fractions(len(chosen), torch.device("cpu"))
        return chosen, self._starts_of(plan, chosen, part), {}

    def reset(self) -> None:
        """Start a new pass with the next batch."""
        super().reset()
        self._pass.reset()

    def state(self) -> StateDict:
        """Return the episodes that the pass has left, int64 ``[n]``."""
        return self._pass.state() | {"episodes": self._episodes}

    def restore(self, state: StateDict) -> None:
        super().restore(state)
        self._pass.restore(state)
        self._episodes = int(state.get("episodes", 0))


class PrioritizedSliceSampler(SliceSampler, PrioritizedSampler):
    """Draws slices whose first steps are drawn in proportion to their priorities.

    Only steps at which a slice can start are drawn. Each step of a slice has the importance
    weight of its first step.

    Args:
        max_capacity: See :class:`PrioritizedSampler`, as the next arguments.
        alpha: See :class:`PrioritizedSampler`.
        beta: See :class:`PrioritizedSampler`.
        eps: See :class:`PrioritizedSampler`.
        dtype: See :class:`PrioritizedSampler`.
        reduction: See :class:`PrioritizedSampler`.
        num_slices: See :class:`SliceSampler`, as the next arguments.
        slice_len: See :class:`SliceSampler`.
        end_key: See :class:`SliceSampler`.
        end_keys: See :class:`SliceSampler`.
        traj_key: See :class:`SliceSampler`.
        ends: See :class:`SliceSampler`.
        trajectories: See :class:`SliceSampler`.
        cache_values: No effect.
        truncated_key: See :class:`SliceSampler`.
        init_key: See :class:`SliceSampler`.
        strict_length: See :class:`SliceSampler`.
        compile: No effect.
        span: See :class:`SliceSampler`; slices cannot cross the start of an episode. Episodes
            shorter than a slice are drawn too.
        max_priority_within_buffer: See :class:`PrioritizedSampler`.

    Raises:
        ArgumentError: As in both classes.
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
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
        compile: bool | dict[str, object] = False,
        span: Span = False,
        max_priority_within_buffer: bool = False,
    ) -> None:
        SliceSampler.__init__(
            self,
            num_slices=num_slices,
            slice_len=slice_len,
            end_key=end_key,
            end_keys=end_keys,
            traj_key=traj_key,
            ends=ends,
            trajectories=trajectories,
            cache_values=cache_values,
            truncated_key=truncated_key,
            init_key=init_key,
            strict_length=strict_length,
            span=(False, span[1] if isinstance(span, (tuple, list)) else span),  # type: ignore[arg-type]
        )
        self._skips_short = strict_length and not self.span[1]
        PrioritizedSampler.__init__(
            self, max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer
        )

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, StateDict]:
        steps, notes = SliceSampler.draw(self, storage, batch_size)
        weights = notes["info"][WEIGHT]
        lengths = notes.get("lengths", len(steps) // len(weights))
        if isinstance(lengths, Tensor):
            lengths = lengths.to(weights.device)
        notes["info"] = {WEIGHT: torch.repeat_interleave(weights, lengths)}
        return steps, notes

    def _choose(
        self, storage: TensorStorage, plan: Plan, count: int
    ) -> tuple[Tensor, Tensor, dict[NestedKey, Tensor]]:
        if not any(listener is self for listener in storage.listeners):
            self.fill_missing(storage)
        counts = plan.starts.long()
        episodes = torch.repeat_interleave(torch.arange(len(counts)), counts)
        before = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        offsets = torch.arange(len(episodes)) - before
        numbers = self._numbers(storage, plan, episodes, offsets.unsqueeze(1)).squeeze(1)
        sums = torch.from_numpy(self._sum_tree[numbers.numpy()]).cumsum(0)
        mass = self._fractions(count, torch.device("cpu")) * sums[-1]
        chosen = torch.searchsorted(sums, mass, right=True).clamp(max=len(sums) - 1)
        weights = self.weights(numbers[chosen].numpy(), storage)
        return episodes[chosen], offsets[chosen], {WEIGHT: weights}

    def __repr__(self) -> str:
        return f"{SliceSampler.__repr__(self)[:-1]}, alpha={self.alpha}, beta={self.beta})"
