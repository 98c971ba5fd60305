"""P12 and P13: envs in worker processes, in wall time. Requires two idle processors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import tdx
from tests.benchmarks.bare import make_env, pendulum_actions, played_at_once
from tests.benchmarks.bars import STEPWISE_WORKERS, WORKER_POLICY_ROLLOUT, WORKER_ROLLOUT, Bar
from tests.benchmarks.chains import ENV, chain_6, policy_of_stacks, serial_env
from tests.benchmarks.conftest import Compare, Run
from tests.benchmarks.test_rollout import rollout

ENVS = 8
STEPS = 2000
STEPWISE_STEPS = 200
ROUNDS = 9


def parallel_env() -> Any:
    return tdx.ParallelEnv(ENVS, lambda: tdx.GymEnv(ENV), processes=2)


def async_steps(steps: int) -> Callable[[], int]:
    """Return a loop over Gymnasium's vector env with a process per env."""
    env = gymnasium.vector.AsyncVectorEnv([lambda: make_env(ENV)] * ENVS)
    return played_at_once(env, [np.stack([action] * ENVS) for action in pendulum_actions(steps)])


@pytest.mark.parametrize(
    ("bar", "has_policy"), [(WORKER_ROLLOUT, False), (WORKER_POLICY_ROLLOUT, True)]
)
def test_rollout_of_parallel_envs(compare: Compare, bar: Bar, has_policy: bool) -> None:
    policy = policy_of_stacks() if has_policy else None
    env = tdx.TransformedEnv(parallel_env(), chain_6("tdx"))
    with torch.no_grad():
        runs = {
            "tdx": rollout(env, STEPS, ENVS, policy),
            "bare": rollout(serial_env("tdx", ENVS), STEPS, ENVS, policy),
        }
        if not has_policy:
            runs["Gymnasium"] = Run(async_steps(STEPWISE_STEPS), STEPWISE_STEPS * ENVS)
        compare(bar, runs, rounds=ROUNDS, clock=time.perf_counter)
    env.close()


def test_steps_of_parallel_envs(compare: Compare) -> None:
    env = parallel_env()
    root = env.rand_action(env.reset())

    def work() -> None:
        for _ in range(STEPWISE_STEPS):
            env.step(root)

    units = STEPWISE_STEPS * ENVS
    runs = {"tdx": Run(work, units), "Gymnasium": Run(async_steps(STEPWISE_STEPS), units)}
    compare(STEPWISE_WORKERS, runs, rounds=ROUNDS, clock=time.perf_counter)
    assert env.step(root)["next", "reward"].shape == (ENVS, 1)
    env.close()
