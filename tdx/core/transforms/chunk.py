"""A block of time steps, and the functions that run a chain over it at once."""

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
_NUMPY_DTYPES = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.uint8: np.uint8,
    torch.int64: np.int64,
}
_SUMMABLE = (torch.float32, torch.float64, torch.int32, torch.int64)


def new_column(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialized tensor with the dtype and device of another.

    Large ones are allocated by NumPy, which requests huge pages. That saves most of the cost of
    new memory.
    """
    size = like.itemsize * math.prod(shape)
    if like.device.type != "cpu" or size < _LARGE or like.dtype not in _NUMPY_DTYPES:
        return like.new_empty(shape)
    return torch.from_numpy(np.empty(shape, _NUMPY_DTYPES[like.dtype]))


@dataclass(slots=True)
class Chunk:
    """Entries of ``T`` consecutive steps, and of the resets between them, by key.

    A reset applies to the rows of its mask. In the other rows its entries contain any valid
    value, which is never used.

    Args:
        length: Number of steps, ``T``.
        batch_size: Batch size of the env, ``[*B]``.
        first: Entries of the root before the first step, ``[*B, ...]``.
        steps: Outputs of the steps, ``[T, *B, ...]``.
        resets: Outputs of the resets, ``[R, *B, ...]``.
        times: Step that follows each reset, ascending, from 1. Length ``R``.
        masks: Reset masks by key, ``[R, *B, ..., 1]``.
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
        """Write a function of one entry under another key, for steps and resets.

        Args:
            in_key: Entry to read. The steps have it; the resets may not.
            out_key: Entry to write.
            function: Function of a tensor with any leading dims.
        """
        self.steps[out_key] = function(self.steps[in_key])
        value = self.resets.get(in_key)
        if value is not None:
            self.resets[out_key] = function(value)

    def cut(self, length: int) -> None:
        """Keep the first ``length`` steps and the resets between them."""
        self.length = length
        self.times = tuple(time for time in self.times if time < length)
        self.steps = {key: value[:length] for key, value in self.steps.items()}
        self.resets = {key: value[: len(self.times)] for key, value in self.resets.items()}
        self.masks = {key: value[: len(self.times)] for key, value in self.masks.items()}

    def reset_rows(self, key: NestedKey, like: Tensor) -> Tensor:
        """Return the rows of each reset as a mask that broadcasts to ``like``, ``[R, *B, ...]``.

        Args:
            key: Entry; the mask of its nearest enclosing group applies. Without a mask, each
                reset applies to all rows.
            like: Entry of the resets, ``[R, *B, ...]``.
        """
        lead = 1 + len(self.batch_size)
        mask = nearest_mask(key, self.masks)
        if mask is None:
            mask = torch.ones(like.shape[:lead], dtype=torch.bool, device=like.device)
        return expand_mask(mask, like, lead)

    def segments(self) -> Iterator[tuple[int, int, int | None]]:
        """Yield each run of steps without a reset: start, stop, index of the reset before it."""
        starts = (0, *self.times)
        stops = (*self.times, self.length)
        for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            yield start, stop, index - 1 if index else None


ChunkFunction = Callable[[Chunk], None]


@dataclass(frozen=True, slots=True)
class ChunkKernel:
    """A stage as a function of a chunk, and the entries that it accesses.

    Args:
        run: Does to a chunk, in place, what the data hooks do step by step, and leaves the
            transform in the same state.
        reads: Entries of a step's output that it reads.
        writes: Entries that it writes.
        drops: Entries that it removes.
        root: Entries of a step's input that it reads: its own outputs of the step before.
        scan: True if it depends on earlier steps.
    """

    run: ChunkFunction
    reads: tuple[NestedKey, ...] = ()
    writes: tuple[NestedKey, ...] = ()
    drops: tuple[NestedKey, ...] = ()
    root: tuple[NestedKey, ...] = ()
    scan: bool = False


@dataclass(frozen=True, slots=True)
class StepLimit:
    """Declares that a stage ends each episode after a number of steps.

    Args:
        most: Number of steps.
        count_key: Entry that counts the steps.
        done_key: Flag that the stage sets.
        remembered: Returns the last count, for inputs of a step that do not contain it.
    """

    most: int
    count_key: NestedKey
    done_key: NestedKey
    remembered: Callable[[], Tensor | None]

    def counted(self, root: Mapping[NestedKey, Tensor]) -> Tensor | None:
        """Return the number of steps so far, ``[*B, ..., 1]``; ``None`` before any reset."""
        found = root.get(self.count_key)
        return self.remembered() if found is None else found


def init_reset_states(
    chunk: Chunk, keys: tuple[NestedKey, NestedKey], initial: Tensor
) -> Tensor | None:
    """Write the initial state as the state after each reset of a chunk.

    Args:
        chunk: Chunk to write to.
        keys: Key of the state, and the key whose reset mask applies.
        initial: State after a reset, ``[*B, ...]``.

    Returns:
        Mask of the rows of each reset, ``[R, *B, ...]``; ``None`` without resets.
    """
    key, mask_key = keys
    if not chunk.times:
        return None
    states = initial.expand(len(chunk.times), *initial.shape).clone()
    chunk.resets[key] = states
    return chunk.reset_rows(mask_key, states)


def scan_chunk(
    chunk: Chunk,
    state: Tensor,
    keys: tuple[NestedKey, NestedKey],
    initial: Tensor,
    advance: Callable[[Tensor, Tensor | None], Tensor],
    values: Tensor | None,
) -> Tensor:
    """Run a recurrence over a chunk, step by step, and write the state after each step.

    Args:
        chunk: Chunk to write to.
        state: State before the first step, ``[*B, ...]``.
        keys: Key of the state, and the key whose reset mask applies.
        initial: State after a reset, ``[*B, ...]``.
        advance: Maps the state before a step and the value of the step to the state after it.
        values: Values of the steps, ``[T, *B, ...]``, if there are any.

    Returns:
        State after the last step, ``[*B, ...]``.
    """
    after = []
    rows = init_reset_states(chunk, keys, initial)
    for start, stop, reset in chunk.segments():
        if reset is not None and rows is not None:
            state = chunk.resets[keys[0]][reset] = initial.where(rows[reset], state)
        for index in range(start, stop):
            state = advance(state, None if values is None else values[index])
            after.append(state)
    chunk.steps[keys[0]] = torch.stack(after)
    return state


def sum_chunk(
    chunk: Chunk,
    state: Tensor,
    keys: tuple[NestedKey, NestedKey],
    initial: Tensor,
    values: Tensor,
) -> Tensor:
    """Run :func:`scan_chunk` for ``state + value``, in the same order and to the same bits.

    Sums on an accelerator, of other dtypes or with a gradient are computed step by step.
    """
    parts = (state, initial, values)
    if (
        any(part.device.type != "cpu" or part.requires_grad for part in parts)
        or {part.dtype for part in parts} - {values.dtype}
        or values.dtype not in _SUMMABLE
        or values.shape[1:] != state.shape
    ):
        return scan_chunk(chunk, state, keys, initial, _add, values)
    rows = init_reset_states(chunk, keys, initial)
    column = values.numpy()
    after = np.empty_like(column)
    last, fresh = state.numpy(), initial.numpy()
    for start, stop, reset in chunk.segments():
        if reset is not None and rows is not None:
            last = np.where(rows[reset].numpy(), fresh, last)
            chunk.resets[keys[0]][reset] = torch.from_numpy(last)
        part = after[start:stop]
        part[:] = column[start:stop]
        part[0] += last
        np.add.accumulate(part, axis=0, out=part)
        last = part[-1]
    chunk.steps[keys[0]] = torch.from_numpy(after)
    return torch.from_numpy(last.copy())


def _add(state: Tensor, value: Tensor | None) -> Tensor:
    assert value is not None
    return state + value
