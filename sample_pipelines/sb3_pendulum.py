"""VecEnvs of Stable-Baselines3 for training and evaluation, as a training script creates them."""

from __future__ import annotations

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecFrameStack, VecNormalize


def make(n_envs: int = 2) -> VecEnv:
    """Pendulum with normalized observations and rewards, and stacked frames."""
    env = make_vec_env("Pendulum-v1", n_envs=n_envs, env_kwargs={"max_episode_steps": 100})
    return VecFrameStack(VecNormalize(env, gamma=0.9), 3)


def make_eval() -> VecEnv:
    """The same stack, with the rewards of the env."""
    env = make_vec_env("Pendulum-v1", n_envs=1, env_kwargs={"max_episode_steps": 100})
    return VecFrameStack(VecNormalize(env, gamma=0.9, norm_reward=False), 3)


def make_workers(n_envs: int = 2) -> VecEnv:
    """Normalized Pendulum in worker processes."""
    env = make_vec_env(
        "Pendulum-v1",
        n_envs=n_envs,
        vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"start_method": "fork"},
        env_kwargs={"max_episode_steps": 100},
    )
    return VecNormalize(env)
