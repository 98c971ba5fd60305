"""Pairs of training and deployment that preprocess alike: no difference is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize
from torchrl import envs as rl

import tdx
from tests.contracts import envs as made
from tests.programs import sampled

STATISTICS = Path("statistics.pkl")


def _trained_and_saved() -> Any:
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=3))
    env.reset()
    for _ in range(20):
        env.step(np.random.uniform(-2, 2, (3, 1)))
    env.save(str(STATISTICS))
    return env


def _loaded(*, training: bool, norm_reward: bool = True, n_envs: int = 1) -> Any:
    env = VecNormalize.load(str(STATISTICS), make_vec_env("Pendulum-v1", n_envs=n_envs))
    env.training, env.norm_reward = training, norm_reward
    return env


def _stacked(env: Any, size: int = 3) -> Any:
    return wrappers.FrameStackObservation(env, size)


def _cat_frames(library: Any) -> Any:
    return library.CatFrames(3, -1, in_keys=["observation"])


def _trained_vec_norm(*, freeze: bool) -> Any:
    env = made.tdx_normalized(learning=True)
    if freeze:
        env.transform[0].freeze()
    return env


def _gym_vector(count: int) -> Any:
    env = gym.make_vec("Pendulum-v1", num_envs=count)
    found = wrappers.vector.NormalizeObservation(env)
    found.obs_rms.mean, found.obs_rms.var = np.array(made.MEAN), np.array(made.VAR)
    found.obs_rms.count, found.update_running_mean = 1000.0, False
    return found


def _scaled_frames(env: Any) -> Any:
    scale = lambda x: (x / 255).astype(np.float32)  # noqa: E731
    return made.Mapped(env, scale, low=0.0, high=1.0, shape=(40, 40, 3))


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    # Stable-Baselines3
    "training resumed": (_trained_and_saved, lambda: _loaded(training=True, n_envs=3)),
    "evaluation of a training": (
        _trained_and_saved,
        lambda: _loaded(training=False, norm_reward=False),
    ),
    "more sub-envs": (lambda: made.sb3_normalized(n_envs=1), lambda: made.sb3_normalized(n_envs=4)),
    "same stack": (lambda: made.sb3_stacked(3), lambda: made.sb3_stacked(3)),
    "another monitor": (
        made.sb3_normalized,
        lambda: made.sb3_normalized(env=VecMonitor(DummyVecEnv([made.pendulum]))),
    ),
    "frames of images": (
        lambda: VecFrameStack(make_vec_env(made.Camera, n_envs=2), 2),
        lambda: VecFrameStack(make_vec_env(made.Camera, n_envs=1), 2),
    ),
    # Gymnasium
    "plain env": (made.pendulum, made.pendulum),
    "another step limit": (made.pendulum, lambda: made.pendulum(max_episode_steps=3)),
    "statistics copied": (made.gym_normalized, made.gym_normalized),
    "learning stopped": (
        lambda: made.gym_normalized(learning=True),
        lambda: made.gym_normalized(learning=False),
    ),
    "reward wrapper only in training": (
        lambda: wrappers.NormalizeReward(made.gym_normalized()),
        made.gym_normalized,
    ),
    "episode statistics only in evaluation": (
        lambda: _stacked(made.pendulum()),
        lambda: _stacked(wrappers.RecordEpisodeStatistics(made.pendulum())),
    ),
    "rescaled action": (
        made.rescaled,
        lambda: made.rescaled(-1, 1),
    ),
    "vector env and its size": (lambda: _gym_vector(3), lambda: _gym_vector(1)),
    "images": (lambda: _scaled_frames(made.Camera()), lambda: _scaled_frames(made.Camera())),
    "joined entries": (
        lambda: made.Join(made.Arm(), ["position", "velocity"]),
        lambda: made.Join(made.Arm(), ["position", "velocity"]),
    ),
    # tdx
    "frozen chain": (
        lambda: _trained_vec_norm(freeze=False),
        lambda: _trained_vec_norm(freeze=True),
    ),
    "counters only in training": (
        lambda: made.chain(tdx.StepCounter(), made.fixed_norm(), tdx.RewardSum()),
        lambda: made.chain(made.fixed_norm()),
    ),
    "chain with a vector env": (
        lambda: made.chain(_cat_frames(tdx)),
        lambda: made.chain(_cat_frames(tdx), env=tdx.GymEnv("Pendulum-v1", num_envs=2)),
    ),
    # TorchRL
    "TorchRL rebuilt": (
        lambda: made.rl_chain(made.rl_fixed_norm(), _cat_frames(rl)),
        lambda: made.rl_chain(made.rl_fixed_norm(), _cat_frames(rl)),
    ),
    "TorchRL frozen": (lambda: made.rl_normalized(learning=True), made.rl_normalized),
    # Different libraries
    "Stable-Baselines3 and tdx": (made.sb3_normalized, lambda: made.chain(made.fixed_norm())),
    "TorchRL and tdx": (
        lambda: made.rl_chain(made.rl_fixed_norm(), _cat_frames(rl)),
        lambda: made.chain(made.fixed_norm(), _cat_frames(tdx)),
    ),
    "Gymnasium and TorchRL": (
        made.gym_normalized,
        lambda: made.rl_chain(made.rl_fixed_norm()),
    ),
    "Gymnasium and Stable-Baselines3": (made.gym_normalized, made.sb3_normalized),
    "discrete actions of Gymnasium and tdx": (
        lambda: gym.make("CartPole-v1"),
        lambda: tdx.GymEnv("CartPole-v1"),
    ),
    "rescaled action of Gymnasium and tdx": (
        made.rescaled,
        lambda: made.chain(tdx.ActionScaling()),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@sampled(5)
def test_no_difference(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train, deploy = PAIRS[name]
    torch.manual_seed(0)
    reference, target = train(), deploy()
    # Some transforms create their buffers with their specs.
    tdx.open_stack(target).specs()
    before = _flat_state(target)
    report = tdx.check_contract(target, tdx.freeze(reference))
    assert report.differences == ()
    assert report.first is None
    assert _flat_state(target) == before


def _flat_state(env: Any) -> dict[tuple[int, str], Any]:
    stack = tdx.open_stack(env)
    return {
        (index, name): value.tolist()
        for index, values in stack.state().items()
        for name, value in values.items()
    }
