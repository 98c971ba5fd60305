"""Shared-memory buffers of a ``ParallelEnv``: one row in each worker, all rows in the parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.envs.batched.metadata import EnvKeys, EnvMetaData, TensorLayout
from tdx.envs.batched.nesting import Nest, flat_items, stack_rows
from tdx.envs.batched.shared_memory import Field, TensorBlock
from tdx.keys import NestedKey
from tdx.tensordicts import read

Others = dict[NestedKey, Any]
News = tuple[list[NestedKey], Others]
"""Which keys lie in shared memory, and the entries that do not; none for what is expected."""


class RowBuffers:
    """Reads what the env takes from shared memory, writes what it returns into it.

    Args:
        env: the worker's env.
        block: the memory of all workers.
        index: this worker's row in it.
    """

    def __init__(self, env: EnvBase, block: TensorBlock, index: int) -> None:
        metadata = EnvMetaData.of(env)
        keys = EnvKeys.of(metadata)
        rows = {name: tensor[index] for name, tensor in block.tensors().items()}
        self._inputs = {key: row for (side, key), row in rows.items() if side == "in"}
        self._outputs = {key: row for (side, key), row in rows.items() if side == "out"}
        self._step_inputs = [key for key in keys.inputs if key in self._inputs]
        self._step_outputs = [key for key in keys.step_outputs if key in self._outputs]
        self._reset_outputs = [key for key in keys.reset_outputs if key in self._outputs]
        self._device = env.device
        self._nest = Nest(metadata.parts, env.batch_size, env.device)

    def step_input(self, news: News | None) -> TensorDictBase:
        """What the next step gets."""
        return self._input(*(news or (self._step_inputs, {})))

    def reset_input(self, present: Sequence[NestedKey], others: Others) -> TensorDictBase:
        """What the next reset gets."""
        return self._input(present, others)

    def _input(self, present: Sequence[NestedKey], others: Others) -> TensorDictBase:
        # Copies: the env may keep what it is given, and the parent overwrites the memory.
        fields: dict[NestedKey, Any] = {key: self._inputs[key].clone() for key in present}
        fields.update(others)
        if self._device.type != "cpu":
            fields = {key: value.to(self._device) for key, value in fields.items()}
        return self._nest.build(fields)

    def put_step(self, tensordict: TensorDictBase) -> News | None:
        """Write a step's result; returns what the parent cannot know of it."""
        return self._put(tensordict, self._step_outputs)

    def put_reset(self, tensordict: TensorDictBase) -> News | None:
        """Write a reset's result; returns what the parent cannot know of it."""
        return self._put(tensordict, self._reset_outputs)

    def _put(self, tensordict: TensorDictBase, expected: list[NestedKey]) -> News | None:
        written = [key for key in expected if _copied(read(tensordict, key), self._outputs[key])]
        if len(written) == len(expected) == sum(1 for _ in flat_items(tensordict)):
            return None
        return written, _by_value(tensordict, set(written))


def _copied(value: Any, row: Tensor) -> bool:
    if not isinstance(value, Tensor) or value.shape != row.shape or value.dtype != row.dtype:
        return False
    row.copy_(value.detach())
    return True


def _by_value(tensordict: TensorDictBase, without: set[NestedKey]) -> Others:
    return {
        key: value.detach().cpu().clone() if isinstance(value, Tensor) else value
        for key, value in flat_items(tensordict)
        if key not in without
    }


def rows_by_value(values: Mapping[NestedKey, Any], num_workers: int) -> list[Others]:
    """Batched entries as one dict of entries for each worker."""
    rows: list[Others] = [{} for _ in range(num_workers)]
    for key, value in values.items():
        on_cpu = value.detach().cpu() if isinstance(value, Tensor) else value
        for row, part in zip(rows, on_cpu.unbind(0), strict=True):
            row[key] = part.clone()
    return rows


class BatchBuffers:
    """Writes what the workers' envs take, reads what they return.

    Args:
        workers: what each env is; all alike.
        keys: the keys of their leaves.
        use_memory: whether tensors go through shared memory; otherwise all are sent by value.
        non_blocking: whether copies to a device may be asynchronous.
    """

    def __init__(
        self,
        workers: Sequence[EnvMetaData],
        keys: EnvKeys,
        *,
        use_memory: bool,
        non_blocking: bool,
    ) -> None:
        self._num_workers = len(workers)
        fields = TensorLayout.of(workers).batched(len(workers)) if use_memory else {}
        self.block = TensorBlock(fields)
        tensors = self.block.tensors()
        self._inputs: dict[NestedKey, Tensor] = _side(tensors, "in")
        self._outputs: dict[NestedKey, Tensor] = _side(tensors, "out")
        self._expected_inputs = {key for key in keys.inputs if key in self._inputs}
        self._expected = {
            "step": [key for key in keys.step_outputs if key in self._outputs],
            "reset": [key for key in keys.reset_outputs if key in self._outputs],
        }
        self._non_blocking = non_blocking
        first = workers[0]
        self._row_nest = Nest(first.parts, first.batch_size, torch.device("cpu"))
        self._nest = self._row_nest.of_batches(len(workers))

    def put(self, inputs: Mapping[NestedKey, Any]) -> tuple[list[NestedKey], list[Others]]:
        """Write entries of shape ``[num_workers, *B, ...]``.

        Returns:
            the keys that lie in shared memory now, and what did not fit there by worker.
        """
        present, others = [], {}
        for key, value in inputs.items():
            place = self._inputs.get(key)
            if place is not None and Field.of(place) == _field_of(value):
                place.copy_(value.detach())
                present.append(key)
            else:
                others[key] = value
        return present, rows_by_value(others, self._num_workers)

    def is_expected(self, present: Sequence[NestedKey], others: Sequence[Others]) -> bool:
        """Whether a step's inputs are all in shared memory, so that nothing need be said."""
        return len(present) == len(self._expected_inputs) and not any(others)

    def take(
        self,
        command: str,
        news: Mapping[int, News | None],
        device: torch.device,
        given: Sequence[Others] = (),
    ) -> TensorDictBase:
        """What the workers have written, as new tensors of shape ``[num_workers, *B, ...]``.

        Args:
            command: ``step`` or ``reset``.
            news: what the workers that were asked have to say of it.
            device: where they are to live.
            given: what each worker was given; the rows of those that were not asked keep it.
        """
        keys = self._expected[command]
        if any(one is not None for one in news.values()):
            batch = self._stacked_rows(keys, news, given)
        else:
            # The rows of workers that were not asked still hold what they returned last.
            batch = self._nest.build({key: self._outputs[key].clone() for key in keys})
        if device.type != "cpu":
            batch = batch.to(device, non_blocking=self._non_blocking)
        return batch

    def given(self, present: Sequence[NestedKey], others: Sequence[Others]) -> list[Others]:
        """What :meth:`put` has written, as one dict of entries for each worker."""
        return [
            {**{key: self._inputs[key][index] for key in present}, **row}
            for index, row in enumerate(others)
        ]

    def _stacked_rows(
        self,
        keys: list[NestedKey],
        news: Mapping[int, News | None],
        given: Sequence[Others],
    ) -> TensorDictBase:
        rows = {index: self._row(index, one or (keys, {})) for index, one in news.items()}
        like = next(iter(rows.values()))
        for index in range(self._num_workers):
            if index not in rows:
                before = self._row(index, (keys, {}))
                rows[index] = self._row_nest.kept(
                    [self._row_nest.build(given[index]), before], like
                )
        return stack_rows(
            [rows[index] for index in range(self._num_workers)], like, torch.device("cpu")
        )

    def _row(self, index: int, news: News) -> TensorDictBase:
        written, others = news
        fields: dict[NestedKey, Any] = {key: self._outputs[key][index].clone() for key in written}
        return self._row_nest.build({**fields, **others})


def _side(tensors: Mapping[tuple[str, NestedKey], Tensor], side: str) -> dict[NestedKey, Tensor]:
    return {key: tensor for (mine, key), tensor in tensors.items() if mine == side}


def _field_of(value: Any) -> Field | None:
    return Field.of(value) if isinstance(value, Tensor) else None
