"""Chunks of rollouts that the worker processes of a ``ParallelEnv`` run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tdx.core.planned.workers import ChunkPart, ChunkTask, Copies
from tdx.envs.batched import protocol
from tdx.envs.batched.chunk_runner import Report, entry_views
from tdx.envs.batched.shared_memory import Field, TensorBlock
from tdx.envs.batched.worker_pool import WorkerPool
from tdx.foundation.errors import TdxError
from tdx.foundation.keys import NestedKey


class ChunkPool:
    """Runs chunks in a pool of workers; a :class:`~tdx.core.planned.workers.ChunkWorkers`.

    ``reason``: why they cannot run chunks; empty if they can.
    """

    def __init__(self, pool: WorkerPool, close: Callable[[], None], reason: str) -> None:
        self._pool, self._close = pool, close
        self.reason = reason
        self.seconds_per_step = float("inf")
        self._pickles: Copies | None = None
        self._weights: list[Tensor] = []
        self._memory: list[Tensor] = []

    @property
    def groups(self) -> Sequence[range]:
        return self._pool.groups

    @property
    def threads(self) -> int:
        return self._pool.options.threads

    def run(self, copies: Copies, tasks: Sequence[ChunkTask]) -> Sequence[ChunkPart] | None:
        """See :class:`~tdx.core.planned.workers.ChunkWorkers`."""
        try:
            return self._run(copies, tasks)
        except BaseException:
            # The processes have ended, or their envs are ahead of the rollout.
            self._close()
            raise

    def _run(self, copies: Copies, tasks: Sequence[ChunkTask]) -> Sequence[ChunkPart] | None:
        self._send_copies(copies)
        messages = {
            index: protocol.pack(protocol.CHUNK, (task, rows))
            for index, (task, rows) in enumerate(zip(tasks, self.groups, strict=True))
        }
        replies = self._pool.request(messages)
        reports: list[Report | None] = [protocol.unpack(replies[index]) for index in messages]
        if any(report is None for report in reports):
            self.reason = "the plan of the chain does not fit the rows of a process"
            return None
        complete = [report for report in reports if report is not None]
        self._fetch(complete)
        if any(report.failure is not None and report.failure.is_env_error() for report in complete):
            # The rows are at different steps. As after an error in a single step, all end.
            self._close()
        return [self._part(index, report) for index, report in enumerate(complete)]

    def _send_copies(self, copies: Copies) -> None:
        """Update the weights in shared memory, and send what else has changed."""
        pickles = replace(copies, tensors=())
        fields = [Field.of(tensor) for tensor in copies.tensors]
        if pickles != self._pickles or fields != list(map(Field.of, self._weights)):
            block = TensorBlock(dict(enumerate(fields)))
            self._weights = list(block.tensors().values())
            self._copy_weights(copies)
            everyone = range(len(self.groups))
            self._pool.attach(protocol.COPIES, dict.fromkeys(everyone, (pickles, block)))
            self._pickles = pickles
        else:
            self._copy_weights(copies)

    def _copy_weights(self, copies: Copies) -> None:
        for shared, tensor in zip(self._weights, copies.tensors, strict=True):
            shared.copy_(tensor.detach())

    def _fetch(self, reports: Sequence[Report]) -> None:
        """Enlarge the memory that is too small for a result, and have the result written."""
        if not self._memory:
            self._memory = [torch.empty(0, dtype=torch.uint8) for _ in reports]
        blocks = {}
        for index, report in enumerate(reports):
            if report.nbytes > len(self._memory[index]):
                size = torch.Size((report.nbytes * 5 // 4,))
                blocks[index] = TensorBlock({"": Field(size, torch.uint8)})
                self._memory[index] = blocks[index].tensors()[""]
        if blocks:
            self._pool.attach(protocol.MEMORY, blocks)
            layouts = {index: reports[index].layout for index in blocks}
            self._pool.request(
                {index: protocol.pack(protocol.FETCH, layouts[index]) for index in blocks}
            )

    def _part(self, index: int, report: Report) -> ChunkPart:
        entries: Mapping[NestedKey, Tensor] = entry_views(self._memory[index], report.layout)
        failure = report.failure
        error = None if failure is None else self._error(failure, self.groups[index])
        return ChunkPart(
            report.length, entries, report.groups, report.memory, error, report.generator
        )

    def _error(self, failure: protocol.Failure, rows: range) -> Exception:
        """Return the error to raise: that of the policy or a stage, or one that names the env."""
        row = rows[failure.place]
        if failure.is_env_error():
            return failure.to_worker_error(row, "step")
        original = failure.original(row)
        assert isinstance(original, Exception)
        if isinstance(original, TdxError) and original.where.row is not None:
            original.where = replace(original.where, row=row)
        return original
