"""Chunks of rollouts in a worker process.

Results are written into a block of shared memory of the process. The tensors of the chain and of
the policy are in a block that all processes share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core import Compose, TransformedEnv
from tdx.core.chain import flatten_chain
from tdx.core.envs import EnvBase
from tdx.core.envs.eager_run import RolloutChunk
from tdx.core.envs.failures import failed_row
from tdx.core.envs.policies import ActionSequence
from tdx.core.planned.columns import as_tensordict, flatten
from tdx.core.planned.executor import PlannedRun, cached_program
from tdx.core.planned.keyed_policy import KeyedPolicy
from tdx.core.planned.workers import (
    ChunkTask,
    Copies,
    Groups,
    Memory,
    act_for_rows,
    read_memory,
    unpack,
    write_memory,
)
from tdx.envs.batched import protocol
from tdx.envs.batched.serial import SerialEnv
from tdx.envs.batched.shared_memory import Field, TensorBlock
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import group_dims

EntryFields = list[tuple[NestedKey, Field]]


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker returns for a chunk, in addition to the entries in shared memory."""

    length: int  # number of complete steps
    layout: EntryFields  # Shape and dtype of each entry, in the order in which they are in memory.
    groups: Groups  # dims of nested groups
    memory: Memory  # episode memory of the stages
    failure: protocol.Failure | None  # raised after the last step
    generator: Tensor | None  # state of torch's generator
    nbytes: int  # of the entries, which are only written if the memory is large enough


def entry_views(memory: Tensor, layout: EntryFields) -> dict[NestedKey, Tensor]:
    """Return the entries in a block of bytes."""
    views, start = {}, 0
    for key, field in layout:
        views[key] = memory[start : start + field.nbytes].view(field.dtype).view(field.shape)
        start += _aligned(field.nbytes)
    return views


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


class ChunkRunner:
    """Runs chunks with the envs of a worker process."""

    def __init__(self, envs: Sequence[EnvBase]) -> None:
        self._envs = envs
        self._base: SerialEnv | None = None
        self._env: EnvBase | None = None
        self._policy: KeyedPolicy | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._result: dict[NestedKey, Tensor] = {}

    def take_copies(self, copies: Copies, block: TensorBlock) -> None:
        """Make the chain and the policy of pickles without tensors; ``block`` has the tensors."""
        tensors = list(block.tensors().values())
        count = copies.chain_tensors
        stages = unpack(copies.chain, tensors[:count])
        if self._base is None:
            self._base = SerialEnv(len(self._envs), list(self._envs))
        self._env = TransformedEnv(self._base, Compose(*stages)) if stages else self._base
        policy = copies.policy
        self._policy = None if policy is None else unpack(policy, tensors[count:])

    def take_memory(self, block: TensorBlock) -> None:
        """Write results into this memory from now on."""
        (self._memory,) = block.tensors().values()

    def run(self, task: ChunkTask, rows: range) -> Report | None:
        """Run a chunk; ``None`` if the chain cannot run here."""
        env = self._env
        assert env is not None
        policy: KeyedPolicy | ActionSequence
        if task.actions is not None:
            policy, reads = ActionSequence(task.actions), None
        else:
            known = self._policy
            assert known is not None
            act, reads = act_for_rows(known, rows, task.batch), known.reads
            policy = KeyedPolicy(reads, known.writes, act, known.name)
        program = cached_program(env, reads)
        if program.plan.executor == "eager":
            return None
        run = PlannedRun(env, program, policy, "never", task.first_step)
        stages = flatten_chain(env)[1]
        root = as_tensordict(task.root, env.batch_size, env.device, task.groups)
        if not run.accepts(root):
            return None
        write_memory(stages, task.memory)
        before = torch.get_rng_state()
        if task.generator is not None:
            torch.set_rng_state(task.generator)
        with torch.no_grad():
            chunk = run.chunk(root, task.length)
        after = None if task.generator is None else torch.get_rng_state()
        torch.set_rng_state(before)
        return self._report(chunk, read_memory(stages), after)

    def _report(self, chunk: RolloutChunk, memory: Memory, generator: Tensor | None) -> Report:
        failure = None
        if chunk.error is not None:
            failure = protocol.Failure.of(chunk.error, failed_row(chunk.error) or 0)
        data: Any = chunk.data
        if isinstance(data, list):
            assert self._env is not None
            data = torch.stack(data, self._env.ndim) if data else None
        self._result = {} if data is None else flatten(data)
        layout = [(key, Field.of(value)) for key, value in self._result.items()]
        groups = {} if data is None else group_dims(data, data.ndim)
        nbytes = sum(_aligned(field.nbytes) for _, field in layout)
        report = Report(chunk.length, layout, groups, memory, failure, generator, nbytes)
        if nbytes <= len(self._memory):
            self.write(layout)
        return report

    def write(self, layout: EntryFields) -> None:
        """Write the latest result into the shared memory."""
        for key, view in entry_views(self._memory, layout).items():
            view.copy_(self._result[key])
        self._result = {}

    def last_rows(self) -> Sequence[TensorDictBase | None]:
        """Return the latest output of each env."""
        assert self._base is not None
        return self._base._last_rows
