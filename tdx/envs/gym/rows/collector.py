"""Collects the steps of one Gymnasium env, or of a few in turns, without TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tdx.core.planned.actions import ActionSource, OpenLoopActions, PolicyActions
from tdx.core.planned.collectors import CollectorSetup, RawRows, Stop
from tdx.core.planned.columns import CollectedSteps
from tdx.core.transforms.kernels import StepLimit
from tdx.envs.gym.raw_rows import RawEnv
from tdx.envs.gym.rows.loops import follow, follow_one, play, play_one
from tdx.envs.gym.rows.run import NEVER, GymRun, RowSettings
from tdx.keys import NestedKey


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
        return all(env.dense for env in self.envs)

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
        """Take note of the output of the last step of a chunk, ``[*B, ...]``."""
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
            setup.check,
        )

    def collect(
        self, first: Mapping[NestedKey, Tensor], inputs: ActionSource, length: int, stop: Stop
    ) -> CollectedSteps:
        """See :class:`~tdx.core.planned.collectors.Collector`."""
        settings = self.settings
        run = GymRun(settings, self._first_limits(first), stop, length)
        if isinstance(inputs, OpenLoopActions):
            block = inputs.draw(length)
            if block.length and settings.single:
                play_one(run, settings.envs[0].decode(block.inner))
            elif block.length:
                play(run, self._decode(block.inner))
            run.convert()
            block.keep(run.tried)
            if block.error is not None and run.error is None and not run.stopped:
                run.fail(block.error)
            run.inputs = {key: value[: run.count] for key, value in block.columns.items()}
        else:
            assert isinstance(inputs, PolicyActions)
            (follow_one if settings.single else follow)(run, inputs, first)
            run.convert()
            run.inputs = {key: value[: run.count] for key, value in run.inputs.items()}
        return run.collected()

    def _decode(self, inner: Any) -> Sequence[Sequence[Any]]:
        """Return the actions of each step, one for each env."""
        envs = self.settings.envs
        by_env = [env.decode(inner[:, index]) for index, env in enumerate(envs)]
        return list(zip(*by_env, strict=True))

    def _first_limits(self, first: Mapping[NestedKey, Tensor]) -> list[int]:
        """Return the step at which each env's present episode is truncated by the chain."""
        found = [NEVER] * len(self.settings.envs)
        for limit in self._limits:
            counted = limit.counted(first)
            counts = [0] * len(found) if counted is None else counted.reshape(-1).tolist()
            found = [
                min(known, limit.most - count - 1)
                for known, count in zip(found, counts, strict=True)
            ]
        return found
