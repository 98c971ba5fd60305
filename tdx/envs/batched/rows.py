"""A worker's side of the shared memory: one row of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.envs.batched.layout import EnvKeys
from tdx.envs.batched.metadata import EnvMetaData
from tdx.envs.batched.nesting import Nest, flat_items
from tdx.envs.batched.shared_memory import TensorBlock
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
