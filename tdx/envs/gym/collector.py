"""Collects the steps of one Gymnasium env, or of a few in turns, without TensorDicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tdx.core.planned.actions import ActionSource, OpenLoopActions, PolicyActions
from tdx.core.planned.collectors import CollectorSetup, RawRows, Stop
from tdx.core.planned.columns import CollectedSteps
from tdx.core.transforms.kernels import ArrayForm, StepLimit
from tdx.envs.gym.chunk_recorder import ChunkRecorder, EndedRow, RowSettings
from tdx.envs.gym.interface import Batch
from tdx.envs.gym.single_env import NEVER, RawEnv, reward_rows
from tdx.foundation.keys import NestedKey
from tdx.specs.arguments import Value

_Decoded = tuple[Batch, Mapping[NestedKey, Tensor]]
_Decode = Callable[[dict[NestedKey, Tensor]], _Decoded]


@dataclass(frozen=True, slots=True)
class GymRows:
    """Gymnasium envs as rows; implements :class:`~tdx.core.planned.collectors.RawRows`.

    Args:
        envs: The envs.
        batch_size: Batch size of the env that they make up: ``[]`` for one, or ``[n]``.
        on_chunk: Called with the output of the last step of each chunk, ``[*B, ...]``.
        are_ready: Returns False if the env has to make its next step itself. ``None``: never.
    """

    envs: tuple[RawEnv, ...]
    batch_size: torch.Size
    on_chunk: Callable[[Mapping[NestedKey, Tensor]], None] | None = None
    are_ready: Callable[[], bool] | None = None

    @property
    def is_ready(self) -> bool:
        return self.are_ready is None or self.are_ready()

    @property
    def has_array_observations(self) -> bool:
        return all(env.observes_array for env in self.envs)

    def stack(
        self,
        rows: Sequence[RawRows],
        batch_size: torch.Size,
        on_chunk: Callable[[Mapping[NestedKey, Tensor]], None],
    ) -> GymRows | None:
        """Return several envs as the rows of one batch."""
        envs: list[RawEnv] = []
        for row in rows:
            if not isinstance(row, GymRows) or row.batch_size:
                return None
            envs.extend(row.envs)
        return GymRows(tuple(envs), batch_size, on_chunk)

    def after_chunk(self, last: Mapping[NestedKey, Tensor]) -> None:
        """Report the output of the last step of a chunk, ``[*B, ...]``."""
        if self.on_chunk is not None:
            self.on_chunk(last)

    def collector(self, setup: CollectorSetup) -> GymCollector:
        envs, meter = self.envs, setup.meter
        if meter is not None and setup.base_parts is not None:
            step, reset = setup.base_parts
            envs = tuple(
                replace(
                    env,
                    reset=meter.timed(reset, env.reset),
                    step=meter.timed(step, env.step),
                )
                for env in envs
            )
        kernel = setup.kernel
        if kernel is not None:
            shape = kernel.form.out_shape
            if meter is not None and setup.kernel_part is not None:
                kernel = meter.timed(setup.kernel_part, kernel)
            kept = 0 if self.on_chunk is None else len(envs)
            envs = tuple(env.mapping(kernel, shape, kept) for env in envs)
        return GymCollector(envs, self.batch_size, setup)


class GymCollector:
    """Steps ``n`` Gymnasium envs in turns; its columns are ``[T, ...]`` or ``[T, n, ...]``."""

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
        self, first: Mapping[NestedKey, Tensor], source: ActionSource, length: int, stop: Stop
    ) -> CollectedSteps:
        """See :class:`~tdx.core.planned.collectors.Collector`."""
        settings = self.settings
        # The step at which the chain truncates the current episode of each env.
        limits = [NEVER] * len(settings.envs)
        for limit in self._limits:
            counted = limit.counted(first)
            counts = [0] * len(limits) if counted is None else counted.reshape(-1).tolist()
            limits = [
                min(known, limit.most - count - 1)
                for known, count in zip(limits, counts, strict=True)
            ]
        recorder = ChunkRecorder(settings, limits, stop, length)
        lead, forms = tuple(settings.batch_size), recorder.store.forms
        forms = {key: ArrayForm((*lead, *form.shape), form.dtype) for key, form in forms.items()}
        settings.immediate.begin(forms, length)
        try:
            if isinstance(source, OpenLoopActions):
                block = source.draw(length)
                if block.length and settings.single:
                    step_env(recorder, settings.envs[0].decode(block.inner))
                elif block.length:
                    pairs = zip(settings.envs, block.inner.unbind(1), strict=True)
                    by_env = [env.decode(rows) for env, rows in pairs]
                    step_envs(recorder, list(zip(*by_env, strict=True)))
                recorder.convert()
                block.keep(recorder.tried)
                if block.error is not None and recorder.error is None and not recorder.stopped:
                    recorder.fail(block.error)
                recorder.inputs = block.columns
            else:
                assert isinstance(source, PolicyActions)
                step_with_policy(recorder, source, first)
                recorder.convert()
            return recorder.result(first)
        finally:
            settings.immediate.finish()


def step_env(recorder: ChunkRecorder, actions: Batch) -> None:
    """Step one env with given actions."""
    env, limit = recorder.settings.envs[0], recorder.limits[0]
    # Only the first step may find an env that was never reset.
    step, later_step = env.step_with_first_reset(), env.step
    put, add_reward = recorder.store.putter(), recorder.rewards.append
    index = -1
    try:
        for index, action in enumerate(actions):
            observation, reward, terminated, truncated, _ = step(action)
            step = later_step
            put(index, observation)
            add_reward(reward)
            if terminated or truncated or index >= limit:
                if recorder.end_rows(index, [(0, terminated, truncated)]):
                    break
                limit = recorder.limits[0]
        recorder.count = recorder.tried = index + 1
    except Exception as error:
        recorder.tried = index + 1
        recorder.fail(env.failure("step", error), error)


def step_envs(recorder: ChunkRecorder, actions: Sequence[Sequence[object]]) -> None:
    """Step several envs in turns with given actions."""
    envs, limits = recorder.settings.envs, recorder.limits
    steps = [env.step_with_first_reset() for env in envs]
    put, add_reward, position = recorder.store.putter(), recorder.rewards.append, -1
    index, row, env = -1, 0, envs[0]
    try:
        for index, row_actions in enumerate(actions):
            ended_rows: list[EndedRow] = []
            for row, step in enumerate(steps):
                env = envs[row]
                observation, reward, terminated, truncated, _ = step(row_actions[row])
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


def step_with_policy(
    recorder: ChunkRecorder, source: PolicyActions, first: Mapping[NestedKey, Tensor]
) -> None:
    """Step one env, or several in turns, with a policy that reads the output of their stages."""
    settings, columns = recorder.settings, defaultdict[NestedKey, list[Tensor]](list)
    envs, immediate, single = settings.envs, settings.immediate, settings.single
    check, run_stages, act = source.check, immediate.step, source.policy.act
    steps = [env.step_with_first_reset() for env in envs]
    put, add_reward = recorder.store.putter(False), recorder.rewards.append
    rows = None if single else len(envs)
    read_entries = recorder.store.reader(rows, immediate.arrays, immediate.wanted)
    decode = action_decoder(envs, source, single)
    add_results = StepResults(len(envs), single, immediate.reads)
    reads_back = not {*source.policy.writes, *source.inverse.handed_out}.isdisjoint(
        source.policy.reads
    )
    limits, root = recorder.limits, dict[NestedKey, Value](first)
    appends = [(key, columns[key].append) for key in source.policy.writes]
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
            for key, append in appends:
                append(written[key])
            for key, value in handed_out.items():
                columns[key].append(value)
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
    count = recorder.count
    recorder.inputs = {key: torch.stack(values[:count]) for key, values in columns.items() if count}


def action_decoder(envs: Sequence[RawEnv], source: PolicyActions, single: bool) -> _Decode:
    """Return the function that checks what a policy wrote and converts it.

    It returns the action of each env, and what the inverse of the chain hands out.
    """
    inverse, check = source.inverse, source.check
    codecs = [codec for env in envs if (codec := env.conversion.action.value) is not None]
    if inverse.action_keys != ("action",) or inverse.stages or len(codecs) < len(envs):

        def decode_inverse(written: dict[NestedKey, Tensor]) -> _Decoded:
            check(written.get, written.__setitem__)
            inner, handed_out = source.apply_inverse(written)
            rows = (inner.unsqueeze(0),) if single else inner.unsqueeze(1).unbind(0)
            pairs = zip(envs, rows, strict=True)
            return [env.decode(row)[0] for env, row in pairs], handed_out

        return decode_inverse
    nothing = dict[NestedKey, Tensor]()
    dtype, shape = check.exact_form
    decode, shared = codecs[0].decode, {codec.decode_rows for codec in codecs}
    decode_all = shared.pop() if len(shared) == 1 else None

    def decode_action(written: dict[NestedKey, Tensor]) -> _Decoded:
        action = written.get("action")
        if type(action) is Tensor and action.dtype is dtype and action.shape == shape:
            if single:
                return (decode(action),), nothing
            if decode_all is not None:
                return decode_all(action), nothing
        else:
            check(written.get, written.__setitem__)
            action = written["action"]
        parts = (action,) if single else action.unbind(0)
        return [codec.decode(part) for codec, part in zip(codecs, parts, strict=True)], nothing

    return decode_action


class StepResults:
    """Reward and done flags of one step, as far as an immediate stage or the policy reads them."""

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
