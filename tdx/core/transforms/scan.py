"""Base class of transforms that carry a running state through an episode, and its recurrences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import all_reset_masks, expand_mask, mask_for_entry
from tdx.core.transforms.kernels import (
    Chunk,
    ChunkKernel,
    DictStep,
    EntryMapping,
    TensorDictEntries,
    TimeBehavior,
    are_flat,
)
from tdx.core.transforms.transform import Transform
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import new_tensordict, write

_SUMMABLE = (torch.float32, torch.float64, torch.int32, torch.int64)


class RunningTransform(Transform):
    """A scan whose state is the entry that it writes, such as a running sum or a counter.

    A subclass defines it by :meth:`_initial`, and by :meth:`_increment` if it adds or
    :meth:`_advance` if it does not; the eager, dict, chunk and offline forms follow. A step reads
    the state from the root of its input or, if a later stage renamed or dropped that key, uses the
    last state of this instance. Rows that are not part of a partial reset keep their state.
    """

    time_behavior = TimeBehavior.SCAN
    episode_memory = ("_last",)
    _last: dict[NestedKey, Tensor]
    _reset_key_of: Mapping[NestedKey, NestedKey] = MappingProxyType({})
    """Reset mask of each state, if it is not the nearest one."""

    @abstractmethod
    def _initial(self, key: NestedKey, tensordict_reset: TensorDictBase) -> Tensor:
        """Return the state under ``key`` after a reset of all rows, ``[*B, ...]``."""

    @abstractmethod
    def _state_pairs(self) -> tuple[tuple[NestedKey | None, NestedKey], ...]:
        """Return the in-key (or ``None``) and the key of each state."""

    def _increment(self, key: NestedKey, values: Tensor | None) -> Tensor | int | None:
        """Return what a step adds to the state, in the dtype of the sum; ``None``: it does not add.

        A transform that only adds is defined by this method alone, and its chunk form sums all
        steps at once. Others implement :meth:`_advance`.

        Args:
            key: Key of the state.
            values: In-key of the step, ``[*B, ...]``, or of several steps, ``[T, *B, ...]``.
        """
        return None

    def _advance(self, key: NestedKey, state: Tensor, value: Tensor | None) -> Tensor:
        """Return the next state under ``key``; by default the sum of state and increment.

        Args:
            key: Key of the state.
            state: State before the step, ``[*B, ...]``.
            value: In-key of the step, ``[*B, ...]``; ``None`` if the state has no in-key.
        """
        added = self._increment(key, value)
        if added is None:
            raise NotImplementedError(f"{type(self).__name__} implements no _advance")
        dtype = torch.int64 if isinstance(added, int) else added.dtype
        return (state if state.dtype is dtype else self._widen(state, dtype)) + added

    def _widen(self, state: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a state, which a later stage may have cast, in at least the dtype of a sum."""
        return state.to(torch.promote_types(state.dtype, dtype))

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        for _, key in self._state_pairs():
            state = self._initial(key, tensordict_reset)
            rows = reset_rows(tensordict, self._reset_key_of.get(key, key), state)
            last = self._last.get(key)
            if rows is not None and last is not None and last.shape == state.shape:
                state = state.where(rows, last)
            self._last[key] = state.clone()
            write(tensordict_reset, key, state)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        root, fields = TensorDictEntries(tensordict), TensorDictEntries(next_tensordict)
        self._step_entries(self._state_pairs(), root, fields, next_tensordict)
        return next_tensordict

    def make_dict_step(self) -> DictStep | None:
        pairs = self._state_pairs()
        if not are_flat(key for pair in pairs for key in pair):
            return None
        return partial(self._step_entries, pairs)

    def _step_entries(
        self,
        pairs: tuple[tuple[NestedKey | None, NestedKey], ...],
        root: EntryMapping,
        fields: EntryMapping,
        output: TensorDictBase | None = None,
    ) -> None:
        """Advance each state by one step, on the entries of TensorDicts or on plain dicts.

        The state is in the input ``root`` unless a later stage removed it. ``output`` is the
        TensorDict behind ``fields``, ``[*B]``, if it is not a dict.
        """
        last = self._last
        for in_key, key in pairs:
            value = None if in_key is None else fields.get(in_key)
            if value is None and in_key is not None:
                raise self._missing_key(in_key, fields)
            state = root.get(key)
            if state is not None:
                fields[key] = last[key] = self._advance(key, state, value)
                continue
            state = last.get(key)
            if state is None:
                if output is None:
                    # The env was never reset; `_initial` reads the batch size of a TensorDict.
                    output = new_tensordict(cast("dict[str, Any]", fields), torch.Size(()), None)
                state = self._initial(key, output)
            state = fields[key] = self._advance(key, state, value)
            # A copy, since the caller may write to the state that it gets.
            last[key] = state.clone()

    def make_chunk_kernel(self) -> ChunkKernel | None:
        pairs = self._state_pairs()
        keys = tuple(key for _, key in pairs)
        reads = tuple(in_key for in_key, _ in pairs if in_key is not None)
        return ChunkKernel(self._run_chunk, reads, keys, root=keys, scan=True)

    def _run_chunk(self, chunk: Chunk) -> None:
        output = new_tensordict({}, chunk.batch_size, None)
        for in_key, key in self._state_pairs():
            values = None if in_key is None else chunk.steps.get(in_key)
            if in_key is not None and values is None:
                raise self._missing_key(in_key, chunk.steps)
            state = chunk.first.get(key, self._last.get(key))
            initial = self._initial(key, output)
            state = initial if state is None else state
            self._last[key] = self._scan(chunk, key, state, initial, values).clone()

    def _scan(
        self, chunk: Chunk, key: NestedKey, state: Tensor, initial: Tensor, values: Tensor | None
    ) -> Tensor:
        keys = key, self._reset_key_of.get(key, key)
        added = self._increment(key, values)
        if added is not None:
            # Filled on the device of the state: a copy of a number would make the host wait.
            summands = (
                torch.full((), added, device=state.device) if isinstance(added, int) else added
            )
            summands = summands.to(state.device).expand(chunk.length, *state.shape)
            dtype = summands.dtype
            state, initial = self._widen(state, dtype), self._widen(initial, dtype)
            return sum_chunk(chunk, state, keys, initial, summands)

        def advance(before: Tensor, value: Tensor | None) -> Tensor:
            return self._advance(key, before, value)

        return scan_chunk(chunk, state, keys, initial, advance, values)

    def _scan_stored(
        self, key: NestedKey, values: Tensor, starts: Tensor, initial: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return the states before and after each step of stored data, ``[*B, T, ...]``.

        ``starts`` is the mask of the first step of each episode, ``[*B, T, *G, 1]``.
        """
        before, after, state = [], [], initial
        for start, value in zip(starts.unbind(time_dim), values.unbind(time_dim), strict=True):
            state = initial.where(expand_mask(start, value, time_dim), state)
            before.append(state)
            state = self._advance(key, state, value)
            after.append(state)
        return torch.stack(before, time_dim), torch.stack(after, time_dim)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._last.update({key: follow_device(state, fn) for key, state in self._last.items()})
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        last = {key: state.detach() for key, state in self._last.items()}
        return {**super().__getstate__(), "_last": last}


def follow_device(tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """Move a tensor of the running episode to where ``fn`` of ``nn.Module._apply`` moves it.

    It keeps its dtype, which is that of the data, even if the module is cast.
    """
    return tensor.to(fn(tensor).device)


def reset_rows(tensordict: TensorDictBase | None, key: NestedKey, like: Tensor) -> Tensor | None:
    """Return the rows of a reset as a mask that broadcasts to ``like``; ``None``: all rows.

    :func:`mask_for_entry` decides, as for the env's entries.
    """
    if tensordict is None or tensordict.is_empty():
        return None
    mask = mask_for_entry(key, all_reset_masks(tensordict), tensordict.ndim)
    return None if mask is None else expand_mask(mask, like, tensordict.ndim)


# Recurrences over a chunk


def init_reset_states(
    chunk: Chunk, keys: tuple[NestedKey, NestedKey], initial: Tensor
) -> Tensor | None:
    """Write the initial state as the state after each reset of a chunk.

    ``keys`` are that of the state, and that whose reset mask applies. Returns the mask of the rows
    of each reset, ``[R, *B, ...]``, if there are resets.
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

    ``keys`` are that of the state, and that whose reset mask applies. ``advance`` maps the state
    before a step and its value, of ``values`` ``[T, *B, ...]``, to the state after it. Returns the
    last state.
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
