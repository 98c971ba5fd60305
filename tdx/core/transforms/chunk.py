"""Many steps of an env at once: what a chain works on when it need not run step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask, nearest_mask
from tdx.keys import NestedKey

Columns = dict[NestedKey, Tensor]

_LARGE = 2**22


def new_column(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A tensor of some shape with nothing in it yet, of the dtype and device of another.

    NumPy asks the system for large pages, which saves most of what new memory costs.
    """
    size = like.itemsize * math.prod(shape)
    if like.device.type != "cpu" or size < _LARGE or like.dtype not in _IN_NUMPY:
        return like.new_empty(shape)
    return torch.from_numpy(np.empty(shape, _IN_NUMPY[like.dtype]))


_IN_NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.uint8: np.uint8,
    torch.int64: np.int64,
}


@dataclass(slots=True)
class Chunk:
    """The entries of ``T`` steps in a row, and of the resets among them, by key.

    A reset concerns the rows of its mask; what its entries hold in the other rows is any valid
    value and goes nowhere.

    Args:
        length: the number of steps, ``T``.
        batch_size: the env's, ``[*B]``.
        first: the root's entries before the first step, ``[*B, ...]``.
        steps: what the steps returned, ``[T, *B, ...]``.
        resets: what the resets returned, ``[R, *B, ...]``.
        times: before which step each reset was, in order, from 1; ``R`` of them.
        masks: which rows each reset was for, by the key of the mask, ``[R, *B, ..., 1]``.
    """

    length: int
    batch_size: torch.Size
    first: Mapping[NestedKey, Tensor]
    steps: Columns = field(default_factory=dict)
    resets: Columns = field(default_factory=dict)
    times: tuple[int, ...] = ()
    masks: Columns = field(default_factory=dict)

    def map(
        self, in_key: NestedKey, out_key: NestedKey, function: Callable[[Tensor], Tensor]
    ) -> None:
        """Write ``function`` of one entry under another key, for the steps and the resets.

        Args:
            in_key: the entry read; a step has it, a reset may not.
            out_key: the entry written.
            function: takes any leading dims.
        """
        self.steps[out_key] = function(self.steps[in_key])
        value = self.resets.get(in_key)
        if value is not None:
            self.resets[out_key] = function(value)

    def cut(self, length: int) -> None:
        """Keep the first steps only, and the resets among them."""
        self.length = length
        self.times = tuple(time for time in self.times if time < length)
        self.steps = {key: value[:length] for key, value in self.steps.items()}
        self.resets = {key: value[: len(self.times)] for key, value in self.resets.items()}
        self.masks = {key: value[: len(self.times)] for key, value in self.masks.items()}

    def reset_rows(self, key: NestedKey, like: Tensor) -> Tensor:
        """Which rows each reset is for, as a mask that broadcasts to ``like``, ``[R, *B, ...]``.

        Args:
            key: the entry that asks; the mask is that of its nearest enclosing group, and
                without one each reset is for all rows.
            like: an entry of the resets, ``[R, *B, ...]``.
        """
        lead = 1 + len(self.batch_size)
        mask = nearest_mask(key, self.masks)
        if mask is None:
            mask = torch.ones(like.shape[:lead], dtype=torch.bool, device=like.device)
        return expand_mask(mask, like, lead)

    def segments(self) -> Iterator[tuple[int, int, int | None]]:
        """The stretches of steps without a reset: start, stop, and the reset before it, if any."""
        starts = (0, *self.times)
        stops = (*self.times, self.length)
        for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            yield start, stop, index - 1 if index else None


ChunkStep = Callable[[Chunk], None]


@dataclass(frozen=True, slots=True)
class TimeForm:
    """What the engine must know of a stage to run it later, over many steps at once.

    Args:
        run: does to a chunk what the hooks do step by step, in place, and leaves the transform
            as they would leave it.
        reads: the entries of a step that it reads.
        writes: the entries that it writes.
        drops: the entries that it takes away.
        root: the entries of the step's input that it reads: its own of the step before.
        scan: whether it depends on earlier steps.
    """

    run: ChunkStep
    reads: tuple[NestedKey, ...] = ()
    writes: tuple[NestedKey, ...] = ()
    drops: tuple[NestedKey, ...] = ()
    root: tuple[NestedKey, ...] = ()
    scan: bool = False


@dataclass(frozen=True, slots=True)
class StepLimit:
    """That a stage ends every episode after so many steps, by flags that it sets.

    Args:
        most: the number of steps.
        count_key: where it counts them.
        done_key: the flag that it sets.
        remembered: the count so far, where the step's input does not hold it.
    """

    most: int
    count_key: NestedKey
    done_key: NestedKey
    remembered: Callable[[], Tensor | None]

    def counted(self, root: Mapping[NestedKey, Tensor]) -> Tensor | None:
        """The steps so far, ``[*B, ..., 1]``; ``None`` before any reset."""
        found = root.get(self.count_key)
        return self.remembered() if found is None else found


def begun_at_resets(
    chunk: Chunk, keys: tuple[NestedKey, NestedKey], initial: Tensor
) -> Tensor | None:
    """Make room for a state after each reset; return which rows each is for, ``[R, *B, ...]``.

    Args:
        chunk: gets the state's resets, which hold ``initial`` so far.
        keys: of the state, and the key whose mask it follows.
        initial: the state after a reset, ``[*B, ...]``.
    """
    key, mask_key = keys
    if not chunk.times:
        return None
    begun = initial.expand(len(chunk.times), *initial.shape).clone()
    chunk.resets[key] = begun
    return chunk.reset_rows(mask_key, begun)


def running(
    chunk: Chunk,
    state: Tensor,
    keys: tuple[NestedKey, NestedKey],
    initial: Tensor,
    advance: Callable[[Tensor, Tensor | None], Tensor],
    values: Tensor | None,
) -> Tensor:
    """A state that each step moves on from the one before, over a chunk, one step at a time.

    Args:
        chunk: what is run over; gets the state.
        state: before the first step, ``[*B, ...]``.
        keys: of the state, and the key whose reset mask it follows.
        initial: the state after a reset, ``[*B, ...]``.
        advance: from the state before a step, and the step's value, to the state after it.
        values: the steps' values, ``[T, *B, ...]``, if they have one.

    Returns:
        the state after the last step, ``[*B, ...]``.
    """
    after = []
    rows = begun_at_resets(chunk, keys, initial)
    for start, stop, reset in chunk.segments():
        if reset is not None and rows is not None:
            state = chunk.resets[keys[0]][reset] = initial.where(rows[reset], state)
        for index in range(start, stop):
            state = advance(state, None if values is None else values[index])
            after.append(state)
    chunk.steps[keys[0]] = torch.stack(after)
    return state


def running_sum(
    chunk: Chunk,
    state: Tensor,
    keys: tuple[NestedKey, NestedKey],
    initial: Tensor,
    values: Tensor,
) -> Tensor:
    """:func:`running` for ``state + value``, added up in the same order, so to the same bits.

    Sums on an accelerator, of rare dtypes and in a graph are added up step by step.
    """
    parts = (state, initial, values)
    if (
        any(part.device.type != "cpu" or part.requires_grad for part in parts)
        or {part.dtype for part in parts} - {values.dtype}
        or values.dtype not in _ADDABLE
        or values.shape[1:] != state.shape
    ):
        return running(chunk, state, keys, initial, _added, values)
    rows = begun_at_resets(chunk, keys, initial)
    column = values.numpy()
    after = np.empty_like(column)
    last, begun = state.numpy(), initial.numpy()
    for start, stop, reset in chunk.segments():
        if reset is not None and rows is not None:
            last = np.where(rows[reset].numpy(), begun, last)
            chunk.resets[keys[0]][reset] = torch.from_numpy(last)
        part = after[start:stop]
        part[:] = column[start:stop]
        part[0] += last
        np.add.accumulate(part, axis=0, out=part)
        last = part[-1]
    chunk.steps[keys[0]] = torch.from_numpy(after)
    return torch.from_numpy(last.copy())


_ADDABLE = (torch.float32, torch.float64, torch.int32, torch.int64)


def _added(state: Tensor, value: Tensor | None) -> Tensor:
    assert value is not None
    return state + value
