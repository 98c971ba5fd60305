"""A ``ParallelEnv`` without processes: its rows run apart, as in workers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tdx import EnvBase, SerialEnv
from tdx.core.planned.workers import ChunkPart, ChunkTask, Copies
from tdx.envs.batched.chunk_runner import ChunkRunner, entry_views
from tdx.envs.batched.shared_memory import Field, TensorBlock


class SplitEnv(SerialEnv):
    """Serial envs whose chunks run in groups, with the code of worker processes.

    Args:
        sizes: Number of envs of each group.
        make: Creates an env.
    """

    threads = 1
    reason = ""
    seconds = 1e-3

    def __init__(self, sizes: Sequence[int], make: Callable[[], EnvBase]) -> None:
        super().__init__(sum(sizes), make)
        self.threads = torch.get_num_threads()
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        self.groups = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self.runners = [ChunkRunner([self._envs[row] for row in rows]) for rows in self.groups]
        self.chunks: list[int] = []

    @property
    def seconds_per_step(self) -> float:
        """Time of a step, from which the sizes of chunks follow: not what was measured."""
        return self.seconds

    @seconds_per_step.setter
    def seconds_per_step(self, measured: float) -> None:
        pass

    @property
    def chunk_workers(self) -> SplitEnv:
        return self

    def run(self, copies: Copies, tasks: Sequence[ChunkTask]) -> Sequence[ChunkPart] | None:
        fields = {index: Field.of(tensor) for index, tensor in enumerate(copies.tensors)}
        parts = []
        for rows, runner, task in zip(self.groups, self.runners, tasks, strict=True):
            block = TensorBlock(fields, shared=False)
            for shared, tensor in zip(block.tensors().values(), copies.tensors, strict=True):
                shared.copy_(tensor.detach())
            runner.take_copies(replace(copies, tensors=()), block)
            report = runner.run(pickle.loads(pickle.dumps(task)), rows)
            if report is None:
                return None
            memory = TensorBlock(
                {"": Field(torch.Size((report.nbytes,)), torch.uint8)}, shared=False
            )
            runner.take_memory(memory)
            runner.write(report.layout)
            runner.take_memory(TensorBlock({"": Field(torch.Size((0,)), torch.uint8)}))
            entries = entry_views(memory.tensors()[""], report.layout)
            error: Any = None
            if report.failure is not None:
                error = report.failure.original(rows[0])
            state = (report.groups, report.memory, error, report.generator)
            parts.append(ChunkPart(report.length, entries, *state))
            for row, last in zip(rows, runner.last_rows(), strict=True):
                self._last_rows[row] = last
        self.chunks.append(tasks[0].length)
        return parts
