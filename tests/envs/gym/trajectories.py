"""The same trajectory in Gymnasium and in tdx, with the same actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tdx.envs.gym import GymWrapper


def assert_same_trajectory(env: GymWrapper, bare: Any, seed: int, steps: int) -> None:
    """Compare observations, rewards and flags value by value, across episodes.

    Args:
        env: Env of tdx.
        bare: The same env of Gymnasium.
        seed: Seed of both.
        steps: Number of steps to compare.
    """
    env.set_seed(seed)
    current = env.reset()
    observation, _ = bare.reset(seed=seed)
    assert_observed(env, current, observation)
    for _ in range(steps):
        env.rand_action(current)
        observation, reward, terminated, truncated, _ = bare.step(env.read_action(current))
        following = env.step(current)["next"]
        assert_observed(env, following, observation)
        assert following["reward"].item() == np.float32(reward)
        assert following["terminated"].item() == terminated
        assert following["truncated"].item() == truncated
        assert following["done"].item() == (terminated or truncated)
        current = env.step_mdp(current)
        if terminated or truncated:
            current = env.reset()
            observation, _ = bare.reset()
            assert_observed(env, current, observation)


def assert_observed(env: GymWrapper, tensordict: Any, observation: Any) -> None:
    """Return True if the TensorDict has exactly the results of Gymnasium."""
    for key, value in env.read_obs(observation).items():
        held = tensordict.get(key)
        if isinstance(held, torch.Tensor):
            assert torch.equal(held, value)
        else:
            assert str(held.tolist()) == str(value.tolist())
