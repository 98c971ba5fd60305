"""Envs that draw from torch's global generator get the same actions as in eager rollouts."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tdx import EnvBase, GymEnv, GymWrapper, RewardSum, SerialEnv, TransformedEnv
from tdx.core.planned.actions import shares_torch_rng
from tests.core.planned.test_law import compared


class Foreign(gymnasium.Env[Any, Any]):
    """Env that draws noise from torch's global generator, or draws nothing."""

    observation_space = spaces.Box(-100.0, 100.0, (2,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, draws: bool) -> None:
        self.draws, self.count = draws, 0

    def _observed(self) -> Any:
        noise = torch.rand(2).numpy() if self.draws else np.zeros(2, np.float32)
        return noise + self.count

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observed(), float(action[0]), self.count >= 6, False, {}


def made(draws: bool, rows: int, planned: bool) -> TransformedEnv:
    base: EnvBase = GymWrapper(Foreign(draws))
    if rows:
        base = SerialEnv(rows, lambda: GymWrapper(Foreign(draws)))
    return TransformedEnv(base, RewardSum(), planned=planned)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("stop", [True, False])
def test_actions_are_the_same(draws: bool, rows: int, stop: bool) -> None:
    results = []
    for planned in (True, False):
        env = made(draws, rows, planned)
        torch.manual_seed(0)
        parts = [env.rollout(9, break_when_any_done=stop) for _ in range(3)]
        results.append((parts, torch.get_rng_state()))
    (mine, state), (other, expected) = results
    for ours, theirs in zip(mine, other, strict=True):
        compared(ours, theirs)
    assert torch.equal(state, expected)


class Grouped(Foreign):
    """Env with a tuple of different actions, which are a group of entries."""

    action_space = spaces.Tuple((spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(3)))  # type: ignore[assignment]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(action[0])


@pytest.mark.parametrize("rows", [0, 2])
def test_grouped_actions(rows: int) -> None:
    results = []
    for planned in (True, False):
        base: EnvBase = GymWrapper(Grouped(draws=True))
        if rows:
            base = SerialEnv(rows, lambda: GymWrapper(Grouped(draws=True)))
        env = TransformedEnv(base, RewardSum(), planned=planned)
        torch.manual_seed(0)
        results.append(env.rollout(9, break_when_any_done=False))
    compared(*results)


def test_detected_draws_are_cached() -> None:
    for draws in (True, False):
        env = made(draws, 0, planned=True)
        assert shares_torch_rng(env.base_env) is None
        env.rollout(4)
        assert shares_torch_rng(env.base_env) is draws
    assert shares_torch_rng(GymEnv("CartPole-v1")) is False
    assert shares_torch_rng(SerialEnv(2, lambda: GymEnv("CartPole-v1"))) is False
    assert shares_torch_rng(GymEnv("CartPole-v1", num_envs=2)) is False
