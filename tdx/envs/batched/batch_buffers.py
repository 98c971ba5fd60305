"""The parent's side of the shared memory: the rows of all workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.envs.batched.layout import EnvKeys, Layout
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.nesting import Nest, stack_rows
from tdx.envs.batched.rows import News, Others, rows_by_value
from tdx.envs.batched.shared_memory import Field, TensorBlock
from tdx.keys import NestedKey


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
        fields = Layout.of(workers).batched(len(workers)) if use_memory else {}
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
