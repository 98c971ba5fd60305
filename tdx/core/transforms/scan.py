"""Transforms that depend on the earlier steps of the same episode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import all_reset_masks, expand_mask, nearest_mask
from tdx.core.transforms.chunk import Chunk, TimeForm, running
from tdx.core.transforms.key_pairs import flat_pairs
from tdx.core.transforms.time_behaviour import TimeBehaviour
from tdx.core.transforms.transform import Entries, RowStep, Transform
from tdx.keys import NestedKey
from tdx.tensordicts import new_tensordict, read, write


class RunningTransform(Transform):
    """A scan whose state is the very entry it writes: a running sum, a counter.

    It is defined by :meth:`_initial` and :meth:`_advance`. A step takes the state from the root
    of the TensorDict it is given; where a later stage renamed or dropped that key, from the last
    step that this instance made. Rows that a partial reset leaves alone keep their state.
    """

    time_behaviour = TimeBehaviour.SCAN

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._last: dict[NestedKey, Tensor] = {}
        self._reset_key_of: dict[NestedKey, NestedKey] = {}

    @abstractmethod
    def _initial(self, key: NestedKey, tensordict_reset: TensorDictBase) -> Tensor:
        """The state under ``key`` after a reset of every row, ``[*B, ...]``."""

    @abstractmethod
    def _advance(self, key: NestedKey, state: Tensor, value: Tensor | None) -> Tensor:
        """The state under ``key`` one step on; ``value`` is the step's in-key, if there is one."""

    @abstractmethod
    def _state_pairs(self) -> tuple[tuple[NestedKey | None, NestedKey], ...]:
        """The in-key (if there is one) and the key of the state, for each state."""

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
        for in_key, key in self._state_pairs():
            value = None if in_key is None else read(next_tensordict, in_key)
            if value is None and in_key is not None:
                raise self._missing(in_key, next_tensordict)
            state = read(tensordict, key)
            if state is None:
                state = self._from_memory(key, value, next_tensordict)
            else:
                state = self._last[key] = self._advance(key, state, value)
            write(next_tensordict, key, state)
        return next_tensordict

    def _from_memory(
        self, key: NestedKey, value: Tensor | None, next_tensordict: TensorDictBase
    ) -> Tensor:
        """The next state where the step's input has none: one on from the last, or from a start."""
        last = self._last.get(key)
        state = self._initial(key, next_tensordict) if last is None else last
        state = self._advance(key, state, value)
        # What is handed out may be written to.
        self._last[key] = state.clone()
        return state

    def _row_step(self) -> RowStep | None:
        pairs = flat_pairs(self._state_pairs())
        if pairs is None:
            return None
        last, advance = self._last, self._advance

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            for in_key, key in pairs:
                value = None if in_key is None else fields.get(in_key)
                if value is None and in_key is not None:
                    raise self._missing(in_key, fields)
                state = tensordict.get(key)
                if state is None:
                    made = new_tensordict(fields, torch.Size(()), None)
                    fields[key] = self._from_memory(key, value, made)
                else:
                    fields[key] = last[key] = advance(key, state, value)

        return step

    def _time_form(self) -> TimeForm | None:
        pairs = self._state_pairs()
        keys = tuple(key for _, key in pairs)
        reads = tuple(in_key for in_key, _ in pairs if in_key is not None)
        return TimeForm(self._run_chunk, reads, keys, root=keys, scan=True)

    def _run_chunk(self, chunk: Chunk) -> None:
        begun = new_tensordict({}, chunk.batch_size, None)
        for in_key, key in self._state_pairs():
            values = None if in_key is None else chunk.steps.get(in_key)
            if in_key is not None and values is None:
                raise self._missing(in_key, chunk.steps)
            state = chunk.first.get(key, self._last.get(key))
            initial = self._initial(key, begun)
            self._last[key] = self._over_chunk(
                chunk, key, initial if state is None else state, initial, values
            ).clone()

    def _over_chunk(
        self, chunk: Chunk, key: NestedKey, state: Tensor, initial: Tensor, values: Tensor | None
    ) -> Tensor:
        """Write the state after each step of the chunk under ``key``; return the last one.

        Args:
            chunk: the steps.
            key: of the state.
            state: before the first step, ``[*B, ...]``.
            initial: after a reset, ``[*B, ...]``.
            values: the in-key's, ``[T, *B, ...]``, if there is one.
        """
        mask_key = self._reset_key_of.get(key, key)

        def advance(before: Tensor, value: Tensor | None) -> Tensor:
            return self._advance(key, before, value)

        return running(chunk, state, (key, mask_key), initial, advance, values)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._last.update({key: moved_along(state, fn) for key, state in self._last.items()})
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        last = {key: state.detach() for key, state in self._last.items()}
        return {**super().__getstate__(), "_last": last}

    def clone(self) -> Any:
        """A transform of its own, with no episode begun."""
        copied = super().clone()
        copied._last = {}
        return copied


def moved_along(tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """A tensor of the running episode on the device where a module's move puts it.

    Its dtype stays: it is that of the data, whatever the module's parameters are cast to.

    Args:
        tensor: what the transform keeps.
        fn: what ``nn.Module._apply`` is called with.
    """
    return tensor.to(fn(tensor).device)


def reset_rows(tensordict: TensorDictBase | None, key: NestedKey, like: Tensor) -> Tensor | None:
    """Which rows a reset is for, as a mask that broadcasts to ``like``; ``None`` for all.

    Args:
        tensordict: what ``reset`` was called with, ``[*B]``.
        key: the entry that asks; the mask is that of its nearest enclosing group.
        like: a tensor ``[*B, ...]``.
    """
    if tensordict is None:
        return None
    masks = all_reset_masks(tensordict)
    mask = nearest_mask(key, masks)
    return None if mask is None else expand_mask(mask, like, tensordict.ndim)
