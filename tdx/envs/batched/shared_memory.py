"""Shared memory of a ``ParallelEnv``: one row in each worker, all rows in the parent."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.envs.batched.metadata import (
    EnvKeys,
    EnvMetaData,
    TensorDictBuilder,
    flat_items,
    stack_rows,
)
from tdx.foundation.errors import WorkerError, get_first_line
from tdx.foundation.keys import NestedKey, sibling_key
from tdx.foundation.tensordicts import read
from tdx.specs import Choice, Composite, NonTensor, TensorSpec
from tdx.specs.arguments import Value

ValueEntries = dict[NestedKey, Value]
WriteReport = tuple[list[NestedKey], ValueEntries]
"""Keys in shared memory, and the entries sent by value. ``None`` stands for the expected keys."""

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Field:
    """Shape and dtype of a tensor."""

    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Field:
        """Return the shape and dtype of ``tensor``."""
        return cls(tensor.shape, tensor.dtype)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.shape.numel() * self.dtype.itemsize


class TensorBlock:
    """Tensors laid out consecutively in a single block of CPU memory.

    A shared block that is sent to another process refers to the same memory there. It needs one
    file descriptor regardless of the number of tensors, and its file has no name, so nothing is
    left behind however the processes end.
    """

    def __init__(self, fields: Mapping[Any, Field], *, shared: bool = True) -> None:
        self._fields = dict(fields)
        self._offsets: dict[Hashable, int] = {}
        end = 0
        for name, field in self._fields.items():
            self._offsets[name] = end
            end += -(-field.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._memory = torch.zeros(max(end, _ALIGNMENT), dtype=torch.uint8)
        if shared:
            try:
                self._memory.share_memory_()
            except RuntimeError as error:
                _remove_failed_allocation(error)
                raise WorkerError(
                    f"{self._memory.nbytes:,} bytes of shared memory cannot be allocated: "
                    f"{get_first_line(error)}",
                    hint="free space in /dev/shm, pass a smaller chunk_steps to iter_rollout, or "
                    "use SerialEnv",
                ) from error

    def __reduce__(self) -> tuple[object, ...]:
        state = (self._fields, self._offsets)
        if not self._memory.is_shared():
            return _rebuild_block, (state, b"", self._memory)
        # A plain pickler would copy a shared tensor.
        return _rebuild_block, (state, bytes(ForkingPickler.dumps(self._memory)), None)

    def tensors(self) -> dict[Any, Tensor]:
        """Return a view of each tensor, by name."""
        return {name: self._view(name, field) for name, field in self._fields.items()}

    def _view(self, name: Hashable, field: Field) -> Tensor:
        start = self._offsets[name]
        return self._memory[start : start + field.nbytes].view(field.dtype).view(field.shape)


def _remove_failed_allocation(error: RuntimeError) -> None:
    """Remove the file that torch leaves in /dev/shm if it cannot be allocated."""
    match = re.search(r"</(torch_[\d_]+)>", str(error))
    if match is not None:
        with suppress(OSError):
            os.unlink(f"/dev/shm/{match[1]}")


def _rebuild_block(
    state: tuple[dict[Hashable, Field], dict[Hashable, int]], handle: bytes, copy: Tensor | None
) -> TensorBlock:
    block = TensorBlock.__new__(TensorBlock)
    block._fields, block._offsets = state
    block._memory = pickle.loads(handle) if copy is None else copy
    return block


@dataclass(frozen=True)
class TensorLayout:
    """Shapes and dtypes of the tensors of one worker in shared memory."""

    inputs: dict[NestedKey, Field]  # from the parent to the worker, including masks
    outputs: dict[NestedKey, Field]

    @classmethod
    def of(cls, workers: Sequence[EnvMetaData]) -> TensorLayout:
        """Find the tensors that are the same in every worker; others are sent by value."""
        layouts = [cls._of_worker(metadata) for metadata in workers]
        first, others = layouts[0], layouts[1:]
        return cls(
            inputs=_common_fields(first.inputs, [other.inputs for other in others]),
            outputs=_common_fields(first.outputs, [other.outputs for other in others]),
        )

    @classmethod
    def _of_worker(cls, metadata: EnvMetaData) -> TensorLayout:
        observation, reward, done = _select_composites(
            metadata.output_spec, ("full_observation_spec", "full_reward_spec", "full_done_spec")
        )
        state, action = _select_composites(
            metadata.input_spec, ("full_state_spec", "full_action_spec")
        )
        flags = _collect_fields([done])
        masks = {sibling_key(key, "_reset"): flag for key, flag in flags.items()}
        return cls(
            inputs={**_collect_fields([action, state, observation]), **flags, **masks},
            outputs={**_collect_fields([observation, reward]), **flags},
        )


def _select_composites(spec: Composite, names: Iterable[str]) -> list[Composite]:
    parts = [spec[name] for name in names]
    return [part for part in parts if isinstance(part, Composite)]


def _collect_fields(specs: Iterable[Composite]) -> dict[NestedKey, Field]:
    return {
        key: Field(leaf.shape, leaf.dtype)
        for spec in specs
        for key, leaf in spec.items(True, True)
        if not isinstance(leaf, (NonTensor, Choice))
        and leaf.dtype is not None
        and has_fixed_shape(leaf)
    }


def has_fixed_shape(leaf: TensorSpec) -> bool:
    """Return True if no dim of a leaf has an unknown size."""
    return all(size >= 0 for size in leaf.shape)


def _common_fields(
    first: dict[NestedKey, Field], others: list[dict[NestedKey, Field]]
) -> dict[NestedKey, Field]:
    return {
        key: field
        for key, field in first.items()
        if all(other.get(key) == field for other in others)
    }


class RowBuffers:
    """Shared memory from a worker's side: reads the env's inputs, writes its outputs."""

    def __init__(self, env: EnvBase, block: TensorBlock, index: int) -> None:
        metadata = EnvMetaData.of(env)
        keys = EnvKeys.of(metadata)
        rows = {name: tensor[index] for name, tensor in block.tensors().items()}
        self._inputs = {key: row for (side, key), row in rows.items() if side == "in"}
        self._outputs = {key: row for (side, key), row in rows.items() if side == "out"}
        self._step_inputs = [key for key in keys.inputs if key in self._inputs]
        self._step_outputs = [key for key in keys.step_outputs if key in self._outputs]
        self._reset_outputs = [key for key in keys.reset_outputs if key in self._outputs]
        self._device = env.main_device
        self._builder = TensorDictBuilder(metadata.parts, env.batch_size, self._device)

    def step_input(self, report: WriteReport | None) -> TensorDictBase:
        """Build the input of the next step."""
        return self.input(*(report or (self._step_inputs, {})))

    def input(self, present: Sequence[NestedKey], others: ValueEntries) -> TensorDictBase:
        """Build an input of the keys in shared memory, and of entries sent by value."""
        # Copy, since the env may keep its input and the parent overwrites the memory.
        fields: dict[NestedKey, Value] = {key: self._inputs[key].clone() for key in present}
        fields.update(others)
        if self._device.type != "cpu":
            fields = {key: value.to(self._device) for key, value in fields.items()}
        return self._builder.build(fields)

    def put_step(self, tensordict: TensorDictBase) -> WriteReport | None:
        """Write the result of a step; return what the parent cannot infer, or ``None``."""
        return self._put(tensordict, self._step_outputs)

    def put_reset(self, tensordict: TensorDictBase) -> WriteReport | None:
        """Write the result of a reset; return what the parent cannot infer, or ``None``."""
        return self._put(tensordict, self._reset_outputs)

    def _put(self, tensordict: TensorDictBase, expected: list[NestedKey]) -> WriteReport | None:
        written = [
            key for key in expected if _copy_if_fits(read(tensordict, key), self._outputs[key])
        ]
        if len(written) == len(expected) == sum(1 for _ in flat_items(tensordict)):
            return None
        others = {
            key: value.detach().cpu().clone() if isinstance(value, Tensor) else value
            for key, value in flat_items(tensordict)
            if key not in written
        }
        return written, others


def _copy_if_fits(value: object, row: Tensor) -> bool:
    if not isinstance(value, Tensor) or value.shape != row.shape or value.dtype != row.dtype:
        return False
    row.copy_(value.detach())
    return True


def split_by_worker(values: Mapping[NestedKey, Value], num_workers: int) -> list[ValueEntries]:
    """Split batched entries into one dict for each worker."""
    rows: list[ValueEntries] = [{} for _ in range(num_workers)]
    for key, value in values.items():
        on_cpu = value.detach().cpu() if isinstance(value, Tensor) else value
        for row, part in zip(rows, on_cpu.unbind(0), strict=True):
            row[key] = part.clone()
    return rows


class BatchBuffers:
    """Shared memory from the parent's side: writes inputs of the envs, reads their outputs.

    The envs must be alike. Without ``use_memory``, all entries are sent by value.
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
        layout = TensorLayout.of(workers) if use_memory else TensorLayout({}, {})
        fields = {
            (side, key): Field(torch.Size((len(workers), *field.shape)), field.dtype)
            for side, entries in (("in", layout.inputs), ("out", layout.outputs))
            for key, field in entries.items()
        }
        self.block = TensorBlock(fields)
        tensors = self.block.tensors()
        self._inputs: dict[NestedKey, Tensor] = {key: tensors["in", key] for key in layout.inputs}
        self._outputs: dict[NestedKey, Tensor] = {
            key: tensors["out", key] for key in layout.outputs
        }
        self._expected_inputs = {key for key in keys.inputs if key in self._inputs}
        self._expected = {
            "step": [key for key in keys.step_outputs if key in self._outputs],
            "reset": [key for key in keys.reset_outputs if key in self._outputs],
        }
        self._non_blocking = non_blocking
        first = workers[0]
        self._row_builder = TensorDictBuilder(first.parts, first.batch_size, torch.device("cpu"))
        self._builder = self._row_builder.for_batch(len(workers))

    def put(self, inputs: Mapping[NestedKey, Value]) -> tuple[list[NestedKey], list[ValueEntries]]:
        """Write entries ``[num_workers, *B, ...]``.

        Returns the keys of the entries in shared memory, and for each worker the entries that do
        not fit there.
        """
        present, others = [], {}
        for key, value in inputs.items():
            buffer = self._inputs.get(key)
            if buffer is not None and _copy_if_fits(value, buffer):
                present.append(key)
            else:
                others[key] = value
        return present, split_by_worker(others, self._num_workers)

    def is_expected(self, present: Sequence[NestedKey], others: Sequence[ValueEntries]) -> bool:
        """Return True if all inputs of a step are in shared memory, so that none need be sent."""
        return len(present) == len(self._expected_inputs) and not any(others)

    def take(
        self,
        command: str,
        reports: Mapping[int, WriteReport | None],
        device: torch.device,
        inputs: Sequence[ValueEntries] = (),
    ) -> TensorDictBase:
        """Copy the outputs of a ``step`` or ``reset`` to new tensors ``[num_workers, *B, ...]``.

        Workers that did not receive the command, and therefore have no report, keep their inputs.
        """
        keys = self._expected[command]
        if any(one is not None for one in reports.values()):
            batch = self._stack_rows(keys, reports, inputs)
        else:
            # Workers that did not receive the command still have their last outputs in memory.
            batch = self._builder.build({key: self._outputs[key].clone() for key in keys})
        if device.type != "cpu":
            batch = batch.to(device, non_blocking=self._non_blocking)
        return batch

    def inputs_by_worker(
        self, present: Sequence[NestedKey], others: Sequence[ValueEntries]
    ) -> list[ValueEntries]:
        """Return what :meth:`put` has written, as one dict for each worker."""
        return [
            {**{key: self._inputs[key][index] for key in present}, **row}
            for index, row in enumerate(others)
        ]

    def _stack_rows(
        self,
        keys: list[NestedKey],
        reports: Mapping[int, WriteReport | None],
        inputs: Sequence[ValueEntries],
    ) -> TensorDictBase:
        rows = {index: self._row(index, one or (keys, {})) for index, one in reports.items()}
        like = next(iter(rows.values()))
        for index in range(self._num_workers):
            if index not in rows:
                last = self._row(index, (keys, {}))
                rows[index] = self._row_builder.keep_row(
                    [self._row_builder.build(inputs[index]), last], like
                )
        return stack_rows(
            [rows[index] for index in range(self._num_workers)], like, torch.device("cpu")
        )

    def _row(self, index: int, report: WriteReport) -> TensorDictBase:
        written, others = report
        fields: dict[NestedKey, Value] = {key: self._outputs[key][index].clone() for key in written}
        return self._row_builder.build({**fields, **others})
