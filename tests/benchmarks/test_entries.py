"""P16: cost of the entries of a Dict observation."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from tdx import GymWrapper
from tests.benchmarks.bars import DICT_ENTRY
from tests.benchmarks.conftest import Note

STEPS, ROUNDS = 1000, 25
FEW, MANY = 2, 34


class Entries(gymnasium.Env[Any, Any]):
    """Env that returns the same entries in each step.

    Args:
        count: Number of entries.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, count: int) -> None:
        names = [f"entry_{index}" for index in range(count)]
        space = spaces.Box(-1, 1, (8,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(names, space))
        self.observation = {name: np.zeros(8, np.float32) for name in names}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation, {}

    def step(self, action: Any) -> Any:
        return self.observation, 0.0, False, False, {}


def test_cost_of_an_entry(note: Note) -> None:
    """Compare rollouts with many and few entries."""
    envs = {count: GymWrapper(Entries(count)) for count in (FEW, MANY)}
    found: dict[int, list[float]] = {count: [] for count in envs}
    for _ in range(ROUNDS + 1):
        for count, env in envs.items():
            torch.manual_seed(0)
            start = time.process_time()
            made = env.rollout(STEPS)
            found[count].append(time.process_time() - start)
            assert len(list(made["next"].keys())) == count + 4
    few, many = np.array(found[FEW][1:]), np.array(found[MANY][1:])
    note(DICT_ENTRY, "tdx", ((many - few) / STEPS / (MANY - FEW)).tolist())
