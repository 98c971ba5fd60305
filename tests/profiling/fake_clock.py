"""A fake clock, and envs, stages and policies that advance it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx.core.envs import EnvBase
from tdx.core.transforms import TimeBehavior, Transform
from tdx.foundation.keys import NestedKey
from tdx.profiling.result import ModeProfile
from tdx.specs import Bounded, Composite, Unbounded

Spin = Callable[[float], None]
US = 1000


class FakeClock:
    """Clock in nanoseconds that advances only in :meth:`spin` and :meth:`spend`."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def spin(self, microseconds: float) -> None:
        """Advance the clock by a number of microseconds."""
        self.spend(round(microseconds * US))

    def spend(self, nanoseconds: int) -> None:
        self.now += nanoseconds


class SpinningStage(Transform):
    """Pointwise transform that adds one and takes a known time in each lane.

    Args:
        spin: Function that advances the clock.
        forward: Time of a forward call in a step, in µs.
        inverse: Time of an inverse call, in µs.
        reset: Time of a reset, in µs.
        rare: Additional time of every 100th step, in µs.
    """

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        spin: Spin,
        *,
        forward: float = 0.0,
        inverse: float = 0.0,
        reset: float = 0.0,
        rare: float = 0.0,
    ) -> None:
        keys = ["action"] if inverse else []
        super().__init__(["observation"], ["observation"], keys, keys)
        self.spin, self.rare, self.calls = spin, rare, 0
        self.forward_us, self.inverse_us, self.reset_us = forward, inverse, reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self.spin(self.forward_us)
        self.calls += 1
        if self.calls % 100 == 0:
            self.spin(self.rare)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> Any:
        self.spin(self.reset_us)
        return tensordict_reset

    def _inv_apply_transform(self, state: Tensor) -> Tensor:
        self.spin(self.inverse_us)
        return state


class SpinningMap(Transform):
    """Pointwise map of the observation that takes a fixed time per call."""

    time_behavior = TimeBehavior.POINTWISE

    def __init__(self, spin: Spin, each: float) -> None:
        super().__init__(["observation"], ["observation"])
        self.spin, self.each = spin, each

    def _apply_transform(self, obs: Tensor) -> Tensor:
        self.spin(self.each)
        return obs + 1


class SpinningCall(Transform):
    """Transform that may read any entry and takes a fixed time per step."""

    def __init__(self, spin: Spin, each: float) -> None:
        super().__init__()
        self.spin, self.each = spin, each

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        self.spin(self.each)
        return next_tensordict


class SpinningEnv(EnvBase):
    """Env whose steps and resets take a known time.

    Args:
        spin: Function that advances the clock.
        step: Time of a step, in µs.
        reset: Time of a reset, in µs.
        length: Number of steps of an episode.
    """

    def __init__(self, spin: Spin, step: float = 0.0, reset: float = 0.0, length: int = 50) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((3,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))
        self.spin, self.step_us, self.reset_us, self.length = spin, step, reset, length
        self.at = 0

    @property
    def step_reads(self) -> tuple[NestedKey, ...] | None:
        return ()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.spin(self.step_us)
        self.at += 1
        return self._entries(reward=torch.ones(1))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.spin(self.reset_us)
        self.at = 0
        return self._entries()

    def _entries(self, **others: Tensor) -> TensorDictBase:
        from tensordict import TensorDict

        over = torch.tensor([self.at >= self.length])
        entries = {"observation": torch.full((3,), float(self.at)), "terminated": over, **others}
        return TensorDict(entries, [])

    def _set_seed(self, seed: int | None) -> None:
        self.at = 0


class SpinningPolicy(nn.Module):
    """Policy that returns zeros after a fixed time."""

    def __init__(self, spin: Spin, each: float) -> None:
        super().__init__()
        self.spin, self.each = spin, each

    def forward(self, observation: Tensor) -> Tensor:
        self.spin(self.each)
        return torch.zeros(1)


class SpinningGymEnv(gymnasium.Env[Any, Any]):
    """Gymnasium env with episodes of 50 steps whose steps and resets take a fixed time."""

    def __init__(self, spin: Spin, step: float = 0.0, reset: float = 0.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.spin, self.step_us, self.reset_us, self.at = spin, step, reset, 0

    def step(self, action: Any) -> Any:
        self.spin(self.step_us)
        self.at += 1
        return np.zeros(3, np.float32), 1.0, self.at >= 50, False, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.spin(self.reset_us)
        self.at = 0
        return np.zeros(3, np.float32), {}


class SpinningWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gymnasium wrapper that adds a fixed time to each step and reset."""

    def __init__(self, env: Any, spin: Spin, step: float, reset: float = 0.0) -> None:
        super().__init__(env)
        self.spin, self.step_us, self.reset_us = spin, step, reset

    def step(self, action: Any) -> Any:
        self.spin(self.step_us)
        return self.env.step(action)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.spin(self.reset_us)
        return self.env.reset(seed=seed, options=options)


def totals_us(mode: ModeProfile) -> dict[tuple[str, str], float]:
    """Return the total time of each row in µs, without rows that took no time."""
    return {row.key: row.total_ns / US for row in mode.rows if row.total_ns}
