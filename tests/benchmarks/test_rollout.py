"""P1, P2, P5, P6, P14 and P17: rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import tdx
from tests.benchmarks.bare import (
    make_env,
    pendulum_actions,
    played,
    played_at_once,
    played_in_turns,
    played_with_policy,
    wrapped_env,
)
from tests.benchmarks.bars import (
    NO_OP_CAST,
    POLICY_ROLLOUT,
    POLICY_ROLLOUT_GRAD,
    ROLLOUT,
    SERIAL_POLICY_ROLLOUT,
    SERIAL_ROLLOUT,
    VEC_NORM_ROLLOUT,
    VECTOR_CHAIN_ROLLOUT,
    VECTOR_ROLLOUT,
    Bar,
    Contestant,
)
from tests.benchmarks.chains import (
    ENV,
    Maker,
    chain_6,
    chain_6_env,
    libraries,
    policy_of_stacks,
    serial_env,
    vec_norm_env,
)
from tests.benchmarks.conftest import Compare, Run

STEPS = 2000
ENVS = 8
BATCHED_STEPS = 500
ROUNDS = 15
# Slow contestants run fewer steps per round; the cost of a step does not depend on it.
SHARE = {"tdx": 1, "TorchRL": 10}


def rollouts(make: Maker, steps: int, envs: int = 1, policy: Any = None) -> dict[Contestant, Run]:
    """Return a run of the rollout in each library."""
    return {
        library: rollout(make(library), steps // SHARE[library], envs, policy)
        for library in libraries()
    }


def rollout(env: Any, steps: int, envs: int = 1, policy: Any = None) -> Run:
    """Return a run of a rollout whose rows are reset when they are done."""
    env.set_seed(0)

    def work() -> None:
        made = env.rollout(steps, policy, break_when_any_done=False)
        assert made.numel() == steps * envs

    return Run(work, steps * envs)


def test_rollout_with_random_actions(compare: Compare) -> None:
    bare = played(make_env(), pendulum_actions(STEPS))
    gym = Run(_wrapped_loop(), STEPS)
    runs = {**rollouts(chain_6_env, STEPS), "bare": Run(bare, STEPS), "Gymnasium": gym}
    compare(ROLLOUT, runs, rounds=ROUNDS)


def _wrapped_loop() -> Callable[[], None]:
    env = wrapped_env()
    env.reset(seed=0)
    env.action_space.seed(0)

    def loop() -> None:
        step, draw = env.step, env.action_space.sample
        for _ in range(STEPS):
            observation, _, terminated, truncated, _ = step(draw())
            if terminated or truncated:
                env.reset()
        assert observation.shape == (4, 3)

    return loop


@pytest.mark.parametrize(
    ("bar", "grad"),
    [(POLICY_ROLLOUT, False), (POLICY_ROLLOUT_GRAD, True)],
    ids=["no-grad", "grad"],
)
def test_rollout_with_a_policy(compare: Compare, bar: Bar, grad: bool) -> None:
    policy = policy_of_stacks()
    bare = played_with_policy(make_env(), policy.module, torch.randn(STEPS, 12))
    with torch.set_grad_enabled(grad):
        runs = {**rollouts(chain_6_env, STEPS, 1, policy), "bare": Run(bare, STEPS)}
        compare(bar, runs, rounds=ROUNDS)


def test_rollout_with_vec_norm(compare: Compare) -> None:
    bare = played(make_env(), pendulum_actions(STEPS))
    runs = {**rollouts(vec_norm_env, STEPS), "bare": Run(bare, STEPS)}
    compare(VEC_NORM_ROLLOUT, runs, rounds=ROUNDS)


def test_rollout_of_serial_envs(compare: Compare) -> None:
    envs = [make_env() for _ in range(ENVS)]
    actions, units = pendulum_actions(BATCHED_STEPS), BATCHED_STEPS * ENVS
    at_once = [np.stack([action] * ENVS) for action in actions]
    with torch.no_grad():
        runs = {
            **rollouts(lambda library: serial_env(library, ENVS), BATCHED_STEPS, ENVS),
            "bare": Run(played_in_turns(envs, actions), units),
            "Gymnasium": Run(played_at_once(_vector_env(ENV), at_once), units),
        }
        compare(SERIAL_ROLLOUT, runs, rounds=ROUNDS)


def test_rollout_of_serial_envs_with_a_policy(compare: Compare) -> None:
    policy = policy_of_stacks()
    with torch.no_grad():
        runs = rollouts(lambda library: serial_env(library, ENVS), BATCHED_STEPS, ENVS, policy)
        compare(SERIAL_POLICY_ROLLOUT, runs, rounds=ROUNDS)


@pytest.mark.parametrize(
    ("bar", "name", "has_chain"),
    [(VECTOR_ROLLOUT, ENV, False), (VECTOR_CHAIN_ROLLOUT, "CartPole-v1", True)],
    ids=["plain", "chain6"],
)
def test_rollout_of_a_vector_env(compare: Compare, bar: Bar, name: str, has_chain: bool) -> None:
    env: Any = tdx.GymEnv(name, num_envs=ENVS)
    if has_chain:
        env = tdx.TransformedEnv(env, chain_6("tdx"))
    vector_env = _vector_env(name, wrapped_env if has_chain else make_env)
    vector_env.action_space.seed(0)
    actions = [vector_env.action_space.sample() for _ in range(BATCHED_STEPS)]
    runs = {
        "tdx": rollout(env, BATCHED_STEPS, ENVS),
        "Gymnasium": Run(played_at_once(vector_env, actions), BATCHED_STEPS * ENVS),
    }
    compare(bar, runs, rounds=ROUNDS)


def _vector_env(name: str, make: Callable[[str], Any] = make_env) -> Any:
    return gymnasium.vector.SyncVectorEnv([lambda: make(name)] * ENVS)


def test_rollout_with_a_cast_that_has_no_effect(compare: Compare) -> None:
    chain = tdx.Compose(chain_6("tdx"), tdx.DoubleToFloat())
    runs = {
        "tdx": rollout(tdx.TransformedEnv(tdx.GymEnv(ENV), chain), STEPS),
        "bare": rollout(chain_6_env("tdx"), STEPS),
    }
    compare(NO_OP_CAST, runs, rounds=ROUNDS)
