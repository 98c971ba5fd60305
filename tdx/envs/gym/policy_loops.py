"""The loops that step Gymnasium envs with a policy, without TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.core.planned.actions import PolicyActions
from tdx.envs.gym.chunk_recorder import ChunkRecorder, EndedRow, RowSettings
from tdx.envs.gym.single_env import RawEnv, reward_rows
from tdx.foundation.keys import NestedKey

NO_ENTRIES: Mapping[NestedKey, Tensor] = {}


def step_env_with_policy(
    recorder: ChunkRecorder, inputs: PolicyActions, first: Mapping[NestedKey, Tensor]
) -> None:
    """Step one env with a policy, without the work that several envs need."""
    settings, env, columns = recorder.settings, recorder.settings.envs[0], EntryColumns()
    step, next_step = env.step_with_first_reset(), env.step
    put = recorder.store.putter(False)
    check, run_stages, act = inputs.check, settings.immediate.step, inputs.policy.act
    add_reward, immediate = recorder.rewards.append, settings.immediate
    read_entries = recorder.store.reader(None, immediate.arrays, immediate.wanted)
    decode = ActionDecoder(settings.envs, inputs, True)
    read_action = _action_reader(settings, inputs, decode)
    add_results = StepResults(1, True, immediate.reads)
    writes_only_action = decode.is_direct and inputs.policy.writes == ("action",)
    add_action = columns.values("action").append if writes_only_action else None
    reads_back, limit, count = _reads_back(inputs), recorder.limits[0], 0
    root: dict[NestedKey, Any] = dict(first)
    try:
        for index in range(recorder.length):
            written = act(root)
            action, handed_out = read_action(written)
            try:
                observation, reward, terminated, truncated, _ = step(action)
                put(index, observation)
            except Exception as error:
                raise check.explain(written.get, env.failure("step", error)) from error
            step = next_step
            add_reward(reward)
            if add_action is not None:
                add_action(written["action"])
            else:
                columns.add(written, handed_out)
            if reads_back:
                root.update(written)
                root.update(handed_out)
            is_over = terminated or truncated or index >= limit
            ended_rows: list[EndedRow] = []
            if is_over:
                ended_rows.append((0, terminated, truncated))
            entries = read_entries()
            if add_results.needed:
                add_results(entries, [reward], ended_rows)
            root.update(run_stages(root, entries))
            count = index + 1
            if is_over:
                if recorder.end_rows(index, ended_rows, root):
                    break
                limit = recorder.limits[0]
        recorder.count = count
    except Exception as error:
        recorder.fail(error, count=count)
    recorder.inputs = columns.stack(recorder.count)


def _action_reader(
    settings: RowSettings, inputs: PolicyActions, decode: ActionDecoder
) -> Callable[[Mapping[NestedKey, Tensor]], tuple[Any, Mapping[NestedKey, Tensor]]]:
    """Return the function that checks and converts what a policy wrote for one env.

    The function returns the action, and what the inverse of the chain hands out.
    """
    codec = decode.codecs[0]
    if codec is None:

        def read(
            written: Mapping[NestedKey, Tensor],
        ) -> tuple[Any, Mapping[NestedKey, Tensor]]:
            inputs.check(written.get)
            (action,), handed_out = decode(written)
            return action, handed_out

        return read
    decode_value, is_exact = codec.decode, inputs.check.fast_check()

    def read_directly(
        written: Mapping[NestedKey, Tensor],
    ) -> tuple[Any, Mapping[NestedKey, Tensor]]:
        action = written["action"]
        if not is_exact(action):
            inputs.check(written.get)
        return decode_value(action), NO_ENTRIES

    return read_directly


def _reads_back(inputs: PolicyActions) -> bool:
    """Return True if the policy reads what it wrote in the step before."""
    written = {*inputs.policy.writes, *inputs.inverse.handed_out}
    return not written.isdisjoint(inputs.policy.reads)


def step_envs_with_policy(
    recorder: ChunkRecorder, inputs: PolicyActions, first: Mapping[NestedKey, Tensor]
) -> None:
    """Step several envs with a policy, which reads the output of the immediate stages."""
    settings, columns = recorder.settings, EntryColumns()
    check, run_stages, act = inputs.check, settings.immediate.step, inputs.act
    steps = [env.step_with_first_reset() for env in settings.envs]
    put, add_reward = recorder.store.putter(False), recorder.rewards.append
    immediate = settings.immediate
    read_entries = recorder.store.reader(len(steps), immediate.arrays, immediate.wanted)
    decode = ActionDecoder(settings.envs, inputs, False)
    add_results = StepResults(len(steps), False, immediate.reads)
    root: dict[NestedKey, Any] = dict(first)
    count, position = 0, -1
    try:
        for index in range(recorder.length):
            written = act(root)
            check(written.get)
            actions, handed_out = decode(written)
            ended_rows: list[EndedRow] = []
            for row, step in enumerate(steps):
                try:
                    observation, reward, terminated, truncated, _ = step(actions[row])
                    put(position := position + 1, observation)
                except Exception as error:
                    located = settings.envs[row].failure("step", error, row)
                    raise check.explain(written.get, located) from error
                add_reward(reward)
                if terminated or truncated or index >= recorder.limits[row]:
                    ended_rows.append((row, terminated, truncated))
            columns.add(written, handed_out)
            root.update(written)
            root.update(handed_out)
            fields = read_entries()
            if add_results.needed:
                add_results(fields, recorder.rewards[-len(steps) :], ended_rows)
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
    """Converts the output of a policy to the actions of the envs.

    Args:
        envs: The envs.
        inputs: The policy, with the inverse of the chain.
        single: True without a batch dim.

    Attributes:
        codecs: Codec of the entry ``action`` of each env; ``None`` if it takes something else.
        is_direct: True if each env takes this entry.
    """

    def __init__(self, envs: Sequence[RawEnv], inputs: PolicyActions, single: bool) -> None:
        self._envs, self._inputs, self._single = envs, inputs, single
        inverse = inputs.inverse
        is_tensor = inverse.action_keys == ("action",) and not inverse.stages
        self.codecs = [env.conversion.action.value if is_tensor else None for env in envs]
        self.is_direct = None not in self.codecs
        shared = {None if codec is None else codec.decode_rows for codec in self.codecs}
        self._decode_rows = shared.pop() if len(shared) == 1 and not single else None
        self._is_exact = inputs.check.fast_check()

    def __call__(
        self, written: Mapping[NestedKey, Tensor]
    ) -> tuple[Sequence[Any], Mapping[NestedKey, Tensor]]:
        if self.is_direct:
            action = written["action"]
            if self._decode_rows is not None and self._is_exact(action):
                return self._decode_rows(action), NO_ENTRIES
            parts = (action,) if self._single else action.unbind(0)
            pairs = zip(self.codecs, parts, strict=True)
            return [codec.decode(part) for codec, part in pairs if codec is not None], NO_ENTRIES
        inner, handed_out = self._inputs.apply_inverse(written)
        inputs = (inner.unsqueeze(0),) if self._single else inner.unsqueeze(1).unbind(0)
        pairs_of_rows = zip(self._envs, inputs, strict=True)
        return [env.decode(part)[0] for env, part in pairs_of_rows], handed_out


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
        fields: dict[NestedKey, Any],
        rewards: list[Any],
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
