"""Rendered frames, as ``pixels``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tdx.envs.gym import GymEnv, GymWrapper
from tdx.foundation.errors import ArgumentError
from tests.envs.gym.mocks import SpaceEnv


@pytest.mark.parametrize("rows", [0, 2])
def test_pixels_replace_the_observation(rows: int) -> None:
    env = GymEnv("CartPole-v1", from_pixels=True, num_envs=rows)
    rollout = env.rollout(2)
    assert list(env.observation_spec.keys()) == ["pixels"]
    assert rollout["pixels"].shape == (*env.batch_size, 2, 400, 600, 3)
    assert rollout["pixels"].dtype == torch.uint8
    assert env.observation_spec.is_in(rollout[..., 0].select("pixels"))


@pytest.mark.parametrize("rows", [0, 2])
def test_pixels_with_the_observation(rows: int) -> None:
    env = GymEnv("CartPole-v1", from_pixels=True, pixels_only=False, num_envs=rows, seed=0)
    plain = GymEnv("CartPole-v1", num_envs=rows, seed=0)
    assert set(env.observation_spec.keys()) == {"pixels", "observation"}
    assert torch.equal(env.reset()["observation"], plain.reset()["observation"])


def rendered(env: Any) -> Any:
    return env.render()


def test_pixels_equal_the_rendered_frame() -> None:
    env = GymEnv("CartPole-v1", from_pixels=True, seed=0)
    bare = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    bare.reset(seed=0)
    start = env.reset()
    assert np.array_equal(start["pixels"].numpy(), rendered(bare))
    start["action"] = torch.tensor([0, 1])
    bare.step(1)
    assert np.array_equal(env.step(start)["next", "pixels"].numpy(), rendered(bare))


def test_pixels_of_an_existing_env() -> None:
    bare = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    assert GymWrapper(bare, from_pixels=True).reset()["pixels"].shape == (400, 600, 3)


def test_pixels_with_the_entries_of_a_dict() -> None:
    pytest.importorskip("minigrid")
    env = GymEnv("MiniGrid-Empty-5x5-v0", from_pixels=True, pixels_only=False)
    assert set(env.observation_spec.keys()) == {"pixels", "image", "direction", "mission"}
    only = GymEnv("MiniGrid-Empty-5x5-v0", from_pixels=True)
    assert set(only.reset().keys()) == {"pixels", "done", "terminated", "truncated"}


def test_an_env_that_observes_images_needs_nothing_rendered() -> None:
    env = GymWrapper(SpaceEnv(spaces.Box(0, 255, (4, 4, 3), np.uint8)), from_pixels=True)
    assert env.reset()["pixels"].shape == (4, 4, 3)


def test_pixels_skip_frames_too() -> None:
    env = GymEnv("CartPole-v1", from_pixels=True, pixels_only=False, frame_skip=2, seed=0)
    assert env.rand_step(env.reset())["next", "reward"].item() == 2.0


def test_existing_env_without_rgb_array_is_rejected() -> None:
    with pytest.raises(ArgumentError) as caught:
        GymWrapper(gymnasium.make("CartPole-v1"), from_pixels=True)
    assert str(caught.value) == (
        "from_pixels needs render_mode 'rgb_array', got None "
        '(create the env with gymnasium.make(..., render_mode="rgb_array"))'
    )


def test_existing_vector_env_does_not_support_pixels() -> None:
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(ArgumentError, match="need a single env, got a vector env"):
        GymWrapper(vector, from_pixels=True)
