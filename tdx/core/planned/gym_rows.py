"""Collects the steps of single Gymnasium envs, one or a few in turns, without TensorDicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tdx.core.envs.policies import ActionCheck
from tdx.core.planned.collected import Collected, Stop
from tdx.core.planned.gym_loops import follow, follow_one, play, play_one
from tdx.core.planned.gym_run import GymRun
from tdx.core.planned.inputs import ClosedLoop, Inputs, OpenLoop
from tdx.core.planned.now_program import NowProgram
from tdx.core.transforms.chunk import StepLimit
from tdx.envs.gym.raw_rows import RawEnv
from tdx.keys import NestedKey

NEVER = 2**62
"""A step that no rollout reaches."""


class GymRows:
    """Steps ``n`` Gymnasium envs in turns; its columns are ``[T, ...]`` or ``[T, n, ...]``.

    Args:
        envs: the envs.
        batch_size: of the env that they make up: ``[]`` for one, or ``[n]``.
        limits: after how many steps the chain ends an episode.
        now: the stages that run along.
        check: holds a policy's actions against the action spec.
    """

    def __init__(
        self,
        envs: Sequence[RawEnv],
        batch_size: torch.Size,
        limits: Sequence[StepLimit],
        now: NowProgram,
        check: ActionCheck,
    ) -> None:
        self.envs, self.batch_size = tuple(envs), batch_size
        self.single = not batch_size
        self._limits = tuple(limits)
        self.most = min((limit.most for limit in limits), default=NEVER)
        self.now, self.check = now, check

    def collect(
        self, first: Mapping[NestedKey, Tensor], inputs: Inputs, length: int, stop: Stop
    ) -> Collected:
        """See :class:`~tdx.core.planned.collected.Collector`."""
        run = GymRun(self, self._first_limits(first), stop, length)
        if isinstance(inputs, OpenLoop):
            drawn = inputs.draw(length)
            if drawn.length and self.single:
                play_one(run, self.envs[0].decode(drawn.inner))
            elif drawn.length:
                play(run, self._decoded(drawn.inner))
            run.convert()
            drawn.keep(run.tried)
            if drawn.error is not None and run.error is None and not run.stopped:
                run.failed(drawn.error)
            run.inputs = {key: value[: run.made] for key, value in drawn.columns.items()}
        else:
            assert isinstance(inputs, ClosedLoop)
            (follow_one if self.single else follow)(run, inputs, first)
            run.convert()
            run.inputs = {key: value[: run.made] for key, value in run.inputs.items()}
        return run.collected()

    def _decoded(self, inner: Any) -> Sequence[Sequence[Any]]:
        """The actions of each step, for each env."""
        by_env = [env.decode(inner[:, index]) for index, env in enumerate(self.envs)]
        return list(zip(*by_env, strict=True))

    def _first_limits(self, first: Mapping[NestedKey, Tensor]) -> list[int]:
        """In which step each env's episode is cut off, from how far it has got."""
        found = [NEVER] * len(self.envs)
        for limit in self._limits:
            counted = limit.counted(first)
            counts = [0] * len(found) if counted is None else counted.reshape(-1).tolist()
            found = [
                min(known, limit.most - count - 1)
                for known, count in zip(found, counts, strict=True)
            ]
        return found
