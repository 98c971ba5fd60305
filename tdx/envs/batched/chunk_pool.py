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

    Args:
        pool: The worker processes.
        block: Shared memory of the steps that the parent requests.
        close: Closes the batch of envs.
        reason: Why they cannot run chunks; empty if they can.
    """

    saved_seconds = 0.1
    """Duration of the shortest chunk before which the states of the envs are saved."""

    def __init__(
        self,
        pool: WorkerPool,
        block: TensorBlock | None,
        close: Callable[[], None],
        reason: str,
    ) -> None:
        self._pool, self._block, self._close = pool, block, close
        self.reason = reason
        self.seconds_per_step = float("inf")
        self._pickles: Copies | None = None
        self._weights: list[Tensor] = []
        self._copies_block: TensorBlock | None = None
        self._memory: list[Tensor] = []
        self._restarted: set[int] = set()

    @property
    def groups(self) -> Sequence[range]:
        """Rows of each process."""
        return self._pool.groups

    @property
    def threads(self) -> int:
        """Number of torch threads of each process."""
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
        is_saved = tasks[0].length * self.seconds_per_step >= self.saved_seconds
        messages = {
            index: protocol.pack(protocol.CHUNK, (task, rows, is_saved))
            for index, (task, rows) in enumerate(zip(tasks, self.groups, strict=True))
        }
        self._restarted.clear()
        self._pool.snapshots.clear()
        replies = self._pool.request(messages, self._recover)
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

    def _recover(self, index: int) -> bool:
        """Restart a process that has exited, with its envs as they were before the chunk.

        Returns:
            False if their states are not known, or if the process has exited twice.
        """
        snapshot = self._pool.snapshots.pop(index, None)
        states = None if snapshot is None else protocol.unpack(snapshot)
        if states is None or None in states or index in self._restarted:
            return False
        self._restarted.add(index)
        self._pool.restart(index)
        self._pool.attach(protocol.ATTACH, {index: (self._block, self.groups[index][0])})
        content = (self._pickles, self._copies_block)
        self._pool.attach(protocol.COPIES, {index: content})
        # Its memory is exchanged with its result.
        if self._memory:
            self._memory[index] = torch.empty(0, dtype=torch.uint8)
        restored = protocol.pack(protocol.RESTORE_STATE, dict(enumerate(states)))
        self._pool.request({index: restored})
        return True

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
            self._pickles, self._copies_block = pickles, block
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
