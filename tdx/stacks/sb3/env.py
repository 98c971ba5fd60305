"""A VecEnv of Stable-Baselines3 as an env of tdx."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from tdx.envs import EnvBase, GymWrapper
from tdx.envs.gym.autoreset import AutoresetMode
from tdx.stacks.sb3.levels import close_vec_env


def wrap_vec_env(vec_env: Any, space: Space[Any], name: str) -> EnvBase:
    """Return an env of tdx that steps a VecEnv.

    ``next`` has the ``terminal_observation`` of the sub-envs whose episode ended, and
    ``TimeLimit.truncated`` of the infos separates ``truncated`` from ``terminated``.

    Args:
        vec_env: The outermost VecEnv.
        space: Space of the observations that one sub-env returns.
        name: Name of the env.

    Example:
        >>> from gymnasium.spaces import Box
        >>> from stable_baselines3.common.env_util import make_vec_env
        >>> vec_env = make_vec_env("CartPole-v1", n_envs=2)
        >>> env = wrap_vec_env(vec_env, vec_env.observation_space, "CartPole-v1")
        >>> env.rollout(3)["next", "reward"].shape
        torch.Size([2, 3, 1])
    """
    return GymWrapper(VecEnvAdapter(vec_env, space, name))


class VecEnvAdapter(VectorEnv[Any, Any, Any]):
    """A VecEnv with the methods of Gymnasium's vector envs.

    Args:
        vec_env: The VecEnv.
        space: Space of the observations that one sub-env returns.
        name: Name of the env.
    """

    def __init__(self, vec_env: Any, space: Space[Any], name: str) -> None:
        self.vec_env = vec_env
        self.num_envs = vec_env.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        # The name is all that tdx reads of the spec of an env.
        self.spec: Any = SimpleNamespace(id=name)
        self.single_observation_space = space
        self.single_action_space = vec_env.action_space
        self.observation_space = batch_space(space, self.num_envs)
        self.action_space = batch_space(vec_env.action_space, self.num_envs)

    @property
    def unwrapped(self) -> Any:
        """The VecEnv inside all wrappers, which messages name."""
        return self.vec_env.unwrapped

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-envs; see :class:`gymnasium.vector.VectorEnv`."""
        if isinstance(seed, int):
            self.vec_env.seed(seed)
        return self.vec_env.reset(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all sub-envs; those whose episode ends reset themselves."""
        observation, reward, done, infos = self.vec_env.step(actions)
        limited = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
        truncated = np.logical_and(done, limited)
        info: dict[str, Any] = {}
        if np.any(done):
            final = np.full(self.num_envs, None, dtype=object)
            for index in np.flatnonzero(done):
                final[index] = infos[index]["terminal_observation"]
            info = {"final_obs": final, "_final_obs": np.asarray(done, np.bool_)}
        return observation, reward, np.logical_and(done, ~truncated), truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        """Close the VecEnv."""
        close_vec_env(self.vec_env)
