"""The noise of an episode, and what its arguments may be."""

from __future__ import annotations

import pytest
import torch

from tdx import GymEnv, SerialEnv, StepCounter, TransformedEnv, check_env_specs, gSDENoise
from tdx.foundation.errors import ArgumentError
from tests.transforms.envs import RowsEnv


def test_noise_is_drawn_for_each_episode_and_carried_through_it() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(3)).append_transform(gSDENoise(3, 1))
    check_env_specs(env)
    torch.manual_seed(0)
    noise = env.rollout(6, break_when_any_done=False)["_eps_gSDE"]
    assert noise.shape == (6, 1, 3)
    assert (noise[:3] == noise[0]).all()
    assert (noise[3:] == noise[3]).all()
    assert (noise[0] != noise[3]).all()


@pytest.mark.parametrize("shape", [(), (2,)])
def test_shape_is_that_of_the_batch(shape: tuple[int, ...]) -> None:
    env = TransformedEnv(SerialEnv(2, RowsEnv), gSDENoise(5, 7, shape))
    check_env_specs(env)
    assert env.reset()["_eps_gSDE"].shape == (2, 7, 5)


def test_one_size_alone_is_refused() -> None:
    with pytest.raises(ArgumentError, match="must both be given, or neither"):
        gSDENoise(state_dim=3)
