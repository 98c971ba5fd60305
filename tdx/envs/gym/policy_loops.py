"""The loops that step Gymnasium envs with a policy, without TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tdx.core.planned.actions import PolicyActions
from tdx.envs.gym.chunk_recorder import ChunkRecorder, EndedRow
from tdx.envs.gym.interface import Batch
from tdx.envs.gym.single_env import RawEnv, reward_rows
from tdx.foundation.keys import NestedKey
from tdx.specs.arguments import Value

NO_ENTRIES: Mapping[NestedKey, Tensor] = {}


def step_with_policy(
    recorder: ChunkRecorder, source: PolicyActions, first: Mapping[NestedKey, Tensor]
) -> None:
    """Step one env, or several in turns, with a policy that reads the output of their stages."""
    settings, columns = recorder.settings, EntryColumns()
    envs, immediate, single = settings.envs, settings.immediate, settings.single
    check, run_stages, act = source.check, immediate.step, source.policy.act
    steps = [env.step_with_first_reset() for env in envs]
    put, add_reward = recorder.store.putter(False), recorder.rewards.append
    rows = None if single else len(envs)
    read_entries = recorder.store.reader(rows, immediate.arrays, immediate.wanted)
    decode = ActionDecoder(envs, source, single)
    add_results = StepResults(len(envs), single, immediate.reads)
    reads_back = not {*source.policy.writes, *source.inverse.handed_out}.isdisjoint(
        source.policy.reads
    )
    limits, root = recorder.limits, dict[NestedKey, Value](first)
    count, position = 0, -1
    try:
        for index in range(recorder.length):
            written = act(root)
            actions, handed_out = decode(written)
            ended_rows: list[EndedRow] = []
            for row, step in enumerate(steps):
                try:
                    observation, reward, terminated, truncated, _ = step(actions[row])
                    put(position := position + 1, observation)
                except Exception as error:
                    located = envs[row].failure("step", error, None if single else row)
                    raise check.explain(written.get, located) from error
                add_reward(reward)
                if terminated or truncated or index >= limits[row]:
                    ended_rows.append((row, terminated, truncated))
            if not index:
                steps = [env.step for env in envs]
            columns.add(written, handed_out)
            if reads_back:
                root.update(written)
                root.update(handed_out)
            fields = read_entries()
            if add_results.needed:
                add_results(fields, recorder.rewards[-len(envs) :], ended_rows)
            root.update(run_stages(root, fields))
            count = index + 1
            if ended_rows and recorder.end_rows(index, ended_rows, root):
                break
        recorder.count = count
    except Exception as error:
        recorder.fail(error, count=count)
    recorder.inputs = columns.stack(recorder.count)


class EntryColumns:
    """Collects the entries of many steps by key."""

    def __init__(self) -> None:
        self._values: dict[NestedKey, list[Tensor]] = {}

    def add(self, *parts: Mapping[NestedKey, Tensor]) -> None:
        values = self._values
        for entries in parts:
            for key, value in entries.items():
                if key in values:
                    values[key].append(value)
                else:
                    values[key] = [value]

    def values(self, key: NestedKey) -> list[Tensor]:
        return self._values.setdefault(key, [])

    def stack(self, length: int) -> dict[NestedKey, Tensor]:
        return {key: torch.stack(values[:length]) for key, values in self._values.items() if length}


class ActionDecoder:
    """Checks the output of a policy, and converts it to the actions of the envs.

    Args:
        envs: The envs.
        source: The policy, with the inverse of the chain.
        single: True without a batch dim.
    """

    def __init__(self, envs: Sequence[RawEnv], source: PolicyActions, single: bool) -> None:
        self._envs, self._source, self._single = envs, source, single
        inverse, codecs = source.inverse, [env.conversion.action.value for env in envs]
        # Functions of the entry `action`, if each env takes it as it is.
        self._decode: list[Callable[[Tensor], object]] = []
        self._decode_all: Callable[[Tensor], Batch] | None = None
        if inverse.action_keys == ("action",) and not inverse.stages and None not in codecs:
            self._decode = [codec.decode for codec in codecs if codec is not None]
            shared = {codec.decode_rows for codec in codecs if codec is not None}
            if single:
                decode = self._decode[0]
                self._decode_all = lambda action: (decode(action),)
            elif len(shared) == 1:
                self._decode_all = shared.pop()
        self._is_exact = source.check.fast_check()

    def __call__(
        self, written: Mapping[NestedKey, Tensor]
    ) -> tuple[Batch, Mapping[NestedKey, Tensor]]:
        """Return the action of each env, and what the inverse of the chain hands out."""
        if self._decode and self._is_exact(action := written["action"]):
            if self._decode_all is not None:
                return self._decode_all(action), NO_ENTRIES
        else:
            self._source.check(written.get)
        if self._decode:
            parts = (written["action"],) if self._single else written["action"].unbind(0)
            return [decode(part) for decode, part in zip(self._decode, parts, strict=True)], {}
        inner, handed_out = self._source.apply_inverse(written)
        rows = (inner.unsqueeze(0),) if self._single else inner.unsqueeze(1).unbind(0)
        pairs = zip(self._envs, rows, strict=True)
        return [env.decode(row)[0] for env, row in pairs], handed_out


class StepResults:
    """Reward and done flags of one step, as far as an immediate stage or the policy reads them.

    Args:
        rows: Number of envs.
        single: True without a batch dim.
        reads: Keys that are read.
    """

    def __init__(self, rows: int, single: bool, reads: Collection[NestedKey]) -> None:
        self._rows, self._single = rows, single
        self._reward = "reward" in reads
        self._flags = not {"done", "terminated", "truncated"}.isdisjoint(reads)
        self.needed = self._reward or self._flags

    def __call__(
        self,
        fields: dict[NestedKey, Value],
        rewards: list[object],
        ended_rows: list[EndedRow],
    ) -> None:
        """Add them to the entries of the step."""
        if self._reward:
            column = torch.from_numpy(reward_rows(rewards))
            fields["reward"] = column[0] if self._single else column
        if self._flags:
            flags = np.zeros((2, self._rows, 1), np.bool_)
            for row, terminated, truncated in ended_rows:
                flags[:, row, 0] = terminated, truncated
            both = {"terminated": flags[0], "truncated": flags[1], "done": flags[0] | flags[1]}
            for name, value in both.items():
                fields[name] = torch.from_numpy(value[0] if self._single else value)
