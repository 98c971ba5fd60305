"""P1, P2, P5 and P6: rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.benchmarks.bare import (
    pendulum_actions,
    played,
    played_in_turns,
    played_with_policy,
    wrapped_pendulum,
)
from tests.benchmarks.bars import (
    POLICY_ROLLOUT,
    ROLLOUT,
    SERIAL_POLICY_ROLLOUT,
    SERIAL_ROLLOUT,
    VEC_NORM_ROLLOUT,
    Bar,
)
from tests.benchmarks.chains import (
    Library,
    Maker,
    chain_6_env,
    policy_of_stacks,
    serial_env,
    vec_norm_env,
)
from tests.benchmarks.conftest import Measure

STEPS = 2000
ENVS = 8
BATCHED_STEPS = 500
# Slow contestants run fewer rounds, so that all of them take minutes.
ROUNDS = {"tdx": 8, "TorchRL": 2}


def serial_8_env(library: Library) -> Any:
    """Eight serial envs under the six transforms."""
    return serial_env(library, ENVS)


@pytest.mark.parametrize(
    ("bar", "make", "steps", "envs", "with_policy"),
    [
        (ROLLOUT, chain_6_env, STEPS, 1, False),
        (POLICY_ROLLOUT, chain_6_env, STEPS, 1, True),
        (SERIAL_ROLLOUT, serial_8_env, BATCHED_STEPS, ENVS, False),
        (SERIAL_POLICY_ROLLOUT, serial_8_env, BATCHED_STEPS, ENVS, True),
        (VEC_NORM_ROLLOUT, vec_norm_env, STEPS, 1, False),
    ],
    ids=["random", "policy", "serial", "serial-policy", "vecnorm"],
)
@pytest.mark.parametrize("library", ["tdx", "TorchRL"])
def test_rollout(
    measure: Measure,
    bar: Bar,
    make: Maker,
    steps: int,
    envs: int,
    with_policy: bool,
    library: Library,
) -> None:
    env = make(library)
    env.set_seed(0)
    policy = policy_of_stacks() if with_policy else None
    made: list[Any] = []

    def rollout() -> None:
        made[:] = [env.rollout(steps, policy, break_when_any_done=False)]

    with torch.no_grad():
        measure(bar, library, rollout, rounds=ROUNDS[library], units=steps * envs)
    assert made[0].numel() == steps * envs
    env.close()


@pytest.mark.parametrize("bar", [ROLLOUT, VEC_NORM_ROLLOUT], ids=["random", "vecnorm"])
def test_bare_rollout(measure: Measure, bar: Bar) -> None:
    env = gymnasium.make("Pendulum-v1")
    loop = played(env, pendulum_actions(STEPS))
    measure(bar, "bare", loop, rounds=ROUNDS["tdx"], units=STEPS)
    assert loop() == STEPS


def test_bare_rollout_with_policy(measure: Measure) -> None:
    env = gymnasium.make("Pendulum-v1")
    loop = played_with_policy(env, policy_of_stacks().module, torch.randn(STEPS, 12))
    with torch.no_grad():
        measure(POLICY_ROLLOUT, "bare", loop, rounds=ROUNDS["tdx"], units=STEPS)
        assert loop() == STEPS


def test_bare_rollout_serial(measure: Measure) -> None:
    envs = [gymnasium.make("Pendulum-v1") for _ in range(ENVS)]
    loop = played_in_turns(envs, pendulum_actions(BATCHED_STEPS))
    units = BATCHED_STEPS * ENVS
    measure(SERIAL_ROLLOUT, "bare", loop, rounds=ROUNDS["tdx"], units=units)
    assert loop() == units


def test_gymnasium_rollout(measure: Measure) -> None:
    env = wrapped_pendulum()
    env.reset(seed=0)
    env.action_space.seed(0)
    stacked: list[Any] = []

    def loop() -> None:
        step, draw = env.step, env.action_space.sample
        for _ in range(STEPS):
            observation, _, terminated, truncated, _ = step(draw())
            if terminated or truncated:
                env.reset()
        stacked[:] = [observation]

    measure(ROLLOUT, "Gymnasium", loop, rounds=ROUNDS["tdx"], units=STEPS)
    assert stacked[0].shape == (4, 3)


def test_gymnasium_rollout_serial(measure: Measure) -> None:
    makers: list[Callable[[], Any]] = [lambda: gymnasium.make("Pendulum-v1")] * ENVS
    env = gymnasium.vector.SyncVectorEnv(makers)
    env.reset(seed=0)
    actions = [np.stack([action] * ENVS) for action in pendulum_actions(BATCHED_STEPS)]

    def loop() -> None:
        step = env.step
        for action in actions:
            step(action)

    units = BATCHED_STEPS * ENVS
    measure(SERIAL_ROLLOUT, "Gymnasium", loop, rounds=ROUNDS["tdx"], units=units)
    assert env.step(actions[0])[0].shape == (ENVS, 3)
    env.close()
