"""Collects the steps of one Gymnasium env, or of a few in turns, without TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium.error import ResetNeeded
from torch import Tensor

from tdx.core.planned.actions import ActionSource, OpenLoopActions, PolicyActions
from tdx.core.planned.collectors import CollectorSetup, RawRows, Stop
from tdx.core.planned.columns import CollectedSteps
from tdx.core.transforms.kernels import StepLimit
from tdx.envs.gym.chunk_recorder import NEVER, ChunkRecorder, RowSettings, stack_observations
from tdx.envs.gym.single_env import RawEnv, reward_rows
from tdx.keys import NestedKey

NO_ENTRIES: Mapping[NestedKey, Tensor] = {}


@dataclass(frozen=True, slots=True)
class GymRows:
    """Gymnasium envs as rows; implements :class:`~tdx.core.planned.collectors.RawRows`.

    Args:
        envs: The envs.
        batch_size: Batch size of the env that they make up: ``[]`` for one, or ``[n]``.
        on_chunk: Called with the output of the last step of each chunk, ``[*B, ...]``.
    """

    envs: tuple[RawEnv, ...]
    batch_size: torch.Size
    on_chunk: Callable[[Mapping[NestedKey, Tensor]], None] | None = None

    @property
    def has_array_observations(self) -> bool:
        """True if each observation is one array."""
        return all(env.observes_array for env in self.envs)

    def stack(
        self,
        rows: Sequence[RawRows],
        batch_size: torch.Size,
        on_chunk: Callable[[Mapping[NestedKey, Tensor]], None],
    ) -> GymRows | None:
        """Return several envs as the rows of one batch."""
        envs: list[RawEnv] = []
        for each in rows:
            if not isinstance(each, GymRows):
                return None
            envs.extend(each.envs)
        return GymRows(tuple(envs), batch_size, on_chunk)

    def after_chunk(self, last: Mapping[NestedKey, Tensor]) -> None:
        """Report the output of the last step of a chunk, ``[*B, ...]``."""
        if self.on_chunk is not None:
            self.on_chunk(last)

    def collector(self, setup: CollectorSetup) -> GymCollector:
        """Return the collector that steps these rows."""
        envs, meter = self.envs, setup.meter
        if meter is not None and setup.base_parts is not None:
            step, reset = setup.base_parts
            envs = tuple(
                replace(env, step=meter.timed(step, env.step), reset=meter.timed(reset, env.reset))
                for env in envs
            )
        kernel = setup.kernel
        if kernel is not None:
            shape = kernel.form.out_shape
            if meter is not None and setup.kernel_part is not None:
                kernel = meter.timed(setup.kernel_part, kernel)
            envs = tuple(env.mapping(kernel, shape) for env in envs)
        return GymCollector(envs, self.batch_size, setup)


class GymCollector:
    """Steps ``n`` Gymnasium envs in turns; its columns are ``[T, ...]`` or ``[T, n, ...]``.

    Args:
        envs: The envs.
        batch_size: Batch size of the env that they make up: ``[]`` for one, or ``[n]``.
        setup: The chain around them.
    """

    def __init__(
        self, envs: tuple[RawEnv, ...], batch_size: torch.Size, setup: CollectorSetup
    ) -> None:
        self._limits: Sequence[StepLimit] = tuple(setup.limits)
        self.settings = RowSettings(
            envs,
            batch_size,
            min((limit.most for limit in setup.limits), default=NEVER),
            setup.immediate,
        )

    def collect(
        self, first: Mapping[NestedKey, Tensor], inputs: ActionSource, length: int, stop: Stop
    ) -> CollectedSteps:
        """See :class:`~tdx.core.planned.collectors.Collector`."""
        settings = self.settings
        recorder = ChunkRecorder(settings, self._first_limits(first), stop, length)
        if isinstance(inputs, OpenLoopActions):
            block = inputs.draw(length)
            if block.length and settings.single:
                step_env(recorder, settings.envs[0].decode(block.inner))
            elif block.length:
                step_envs(recorder, self._decode(block.inner))
            recorder.convert()
            block.keep(recorder.tried)
            if block.error is not None and recorder.error is None and not recorder.stopped:
                recorder.fail(block.error)
            recorder.inputs = {key: value[: recorder.count] for key, value in block.columns.items()}
        else:
            assert isinstance(inputs, PolicyActions)
            (step_env_with_policy if settings.single else step_envs_with_policy)(
                recorder, inputs, first
            )
            recorder.convert()
            recorder.inputs = {
                key: value[: recorder.count] for key, value in recorder.inputs.items()
            }
        return recorder.result()

    def _decode(self, inner: Any) -> Sequence[Sequence[Any]]:
        """Return the actions of each step, one for each env."""
        envs = self.settings.envs
        by_env = [env.decode(inner[:, index]) for index, env in enumerate(envs)]
        return list(zip(*by_env, strict=True))

    def _first_limits(self, first: Mapping[NestedKey, Tensor]) -> list[int]:
        """Return the step at which the current episode of each env is truncated by the chain."""
        limits = [NEVER] * len(self.settings.envs)
        for limit in self._limits:
            counted = limit.counted(first)
            counts = [0] * len(limits) if counted is None else counted.reshape(-1).tolist()
            limits = [
                min(known, limit.most - count - 1)
                for known, count in zip(limits, counts, strict=True)
            ]
        return limits


def step_env(recorder: ChunkRecorder, actions: Sequence[Any]) -> None:
    """Step one env with given actions."""
    env, limit = recorder.settings.envs[0], recorder.limits[0]
    step, put, add_reward = env.step, recorder.putter(), recorder.rewards.append
    index = -1
    try:
        for index, action in enumerate(actions):
            observation, reward, terminated, truncated, _ = step(action)
            put(index, observation)
            add_reward(reward)
            if terminated or truncated or index >= limit:
                if recorder.end_rows(index, [(0, terminated, truncated)]):
                    break
                limit = recorder.limits[0]
        recorder.count = recorder.tried = index + 1
    except ResetNeeded as error:
        if index or recorder.has_reset_first:
            recorder.tried = index + 1
            recorder.fail(env.failure("step", error), error)
        else:
            _reset_first(recorder, env, actions)
    except Exception as error:
        recorder.tried = index + 1
        recorder.fail(env.failure("step", error), error)


def _reset_first(recorder: ChunkRecorder, env: RawEnv, actions: Sequence[Any]) -> None:
    """Reset an env that was never reset, as a single step does."""
    recorder.has_reset_first = True
    try:
        env.reset()
    except Exception as error:
        recorder.tried = 1
        recorder.fail(env.failure("reset", error), error)
    else:
        step_env(recorder, actions)


def step_envs(recorder: ChunkRecorder, actions: Sequence[Sequence[Any]]) -> None:
    """Step several envs in turns with given actions."""
    envs, limits = recorder.settings.envs, recorder.limits
    steps = [env.step_with_first_reset() for env in envs]
    put, add_reward, position = recorder.putter(), recorder.rewards.append, -1
    index, row, env = -1, 0, envs[0]
    try:
        for index, each in enumerate(actions):
            ended_rows = []
            for row, step in enumerate(steps):
                env = envs[row]
                observation, reward, terminated, truncated, _ = step(each[row])
                put(position := position + 1, observation)
                add_reward(reward)
                if terminated or truncated or index >= limits[row]:
                    ended_rows.append((row, terminated, truncated))
            if ended_rows and recorder.end_rows(index, ended_rows):
                break
        recorder.count = recorder.tried = index + 1
    except Exception as error:
        recorder.tried = index + 1
        recorder.fail(env.failure("step", error, row), error)


def step_env_with_policy(
    recorder: ChunkRecorder, inputs: PolicyActions, first: Mapping[NestedKey, Tensor]
) -> None:
    """Step one env with a policy, without the work that several envs need."""
    settings, env, columns = recorder.settings, recorder.settings.envs[0], EntryColumns()
    step, next_step, keep = env.step_with_first_reset(), env.step, recorder.keep
    check, run_stages, act = inputs.check, settings.immediate.step, inputs.policy.act
    add, add_reward = recorder.observations.append, recorder.rewards.append
    decode = ActionDecoder(settings.envs, inputs, True)
    read_action = _action_reader(settings, inputs, decode)
    entries_of = StepEntries(env, True, settings.immediate.reads)
    one = None if entries_of.is_more_than_observation else env.one
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
                observed = keep(observation)
            except Exception as error:
                raise check.explain(written.get, env.failure("step", error)) from error
            step = next_step
            add(observed)
            add_reward(reward)
            if add_action is not None:
                add_action(written["action"])
            else:
                columns.add(written, handed_out)
            if reads_back:
                root.update(written)
                root.update(handed_out)
            is_over = terminated or truncated or index >= limit
            ended_rows = [(0, terminated, truncated)] if is_over else []
            if one is not None:
                entries: Any = one(observed)
            else:
                entries = entries_of([observed], [reward], ended_rows)
            root.update(run_stages(root, entries))
            count = index + 1
            if is_over:
                if recorder.end_rows(index, ended_rows, root, [observed]):
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
    decode_value = settings.envs[0].decode_value if decode.is_direct else None
    if decode_value is None:

        def read(
            written: Mapping[NestedKey, Tensor],
        ) -> tuple[Any, Mapping[NestedKey, Tensor]]:
            inputs.check(written.get)
            (action,), handed_out = decode(written)
            return action, handed_out

        return read
    is_exact = inputs.check.fast_check()

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
    add, add_reward, keep = recorder.observations.append, recorder.rewards.append, recorder.keep
    decode = ActionDecoder(settings.envs, inputs, settings.single)
    entries_of = StepEntries(settings.envs[0], settings.single, settings.immediate.reads)
    root: dict[NestedKey, Any] = dict(first)
    count = 0
    try:
        for index in range(recorder.length):
            written = act(root)
            check(written.get)
            actions, handed_out = decode(written)
            ended_rows = []
            start = len(recorder.observations)
            for row, step in enumerate(steps):
                try:
                    observation, reward, terminated, truncated, _ = step(actions[row])
                    add(keep(observation))
                except Exception as error:
                    located = settings.envs[row].failure("step", error, row)
                    raise check.explain(written.get, located) from error
                add_reward(reward)
                if terminated or truncated or index >= recorder.limits[row]:
                    ended_rows.append((row, terminated, truncated))
            columns.add(written, handed_out)
            root.update(written)
            root.update(handed_out)
            fields = entries_of(recorder.observations[start:], recorder.rewards[start:], ended_rows)
            root.update(run_stages(root, fields))
            count = index + 1
            if ended_rows and recorder.end_rows(
                index, ended_rows, root, recorder.observations[start:]
            ):
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
        single: True if there is no batch dim.
    """

    def __init__(self, envs: Sequence[RawEnv], inputs: PolicyActions, single: bool) -> None:
        self._envs, self._inputs, self._single = envs, inputs, single
        inverse = inputs.inverse
        is_tensor = inverse.action_keys == ("action",) and not inverse.stages
        direct = is_tensor and envs[0].decode_value is not None
        self._values = [env.decode_value for env in envs] if direct else None
        self.is_direct = direct

    def __call__(
        self, written: Mapping[NestedKey, Tensor]
    ) -> tuple[Sequence[Any], Mapping[NestedKey, Tensor]]:
        if self._values is not None:
            action = written["action"]
            parts = (action,) if self._single else action.unbind(0)
            pairs = zip(self._values, parts, strict=True)
            return [decode(part) for decode, part in pairs if decode is not None], {}
        inner, handed_out = self._inputs.apply_inverse(written)
        inputs = (inner.unsqueeze(0),) if self._single else inner.unsqueeze(1).unbind(0)
        pairs_of_rows = zip(self._envs, inputs, strict=True)
        return [env.decode(part)[0] for env, part in pairs_of_rows], handed_out


class StepEntries:
    """Entries of one step of the envs, as far as an immediate stage or the policy reads them.

    Args:
        env: One of the envs.
        single: True if there is no batch dim.
        reads: Keys that are read.
    """

    def __init__(self, env: RawEnv, single: bool, reads: Collection[NestedKey]) -> None:
        self._env, self._single = env, single
        self._reward = "reward" in reads
        self._flags = not {"done", "terminated", "truncated"}.isdisjoint(reads)
        self.is_more_than_observation = self._reward or self._flags or not env.flat

    def __call__(
        self, observed: list[Any], rewards: list[Any], ended_rows: list[tuple[int, bool, bool]]
    ) -> dict[NestedKey, Any]:
        single = self._single
        fields: dict[NestedKey, Any]
        fields = stack_observations(self._env, observed)
        if single:
            fields = {key: value[0] for key, value in fields.items()}
        if self._reward:
            column = torch.from_numpy(reward_rows(rewards))
            fields["reward"] = column[0] if single else column
        if self._flags:
            flags = np.zeros((2, len(observed), 1), np.bool_)
            for row, terminated, truncated in ended_rows:
                flags[:, row, 0] = terminated, truncated
            both = {"terminated": flags[0], "truncated": flags[1], "done": flags[0] | flags[1]}
            for name, value in both.items():
                fields[name] = torch.from_numpy(value[0] if single else value)
        return fields
