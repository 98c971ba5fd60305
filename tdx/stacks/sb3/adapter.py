"""A VecEnv of Stable-Baselines3, or a level of one, as a vector env of Gymnasium."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from numpy.typing import NDArray

from tdx.envs.gym.autoreset import AutoresetMode
from tdx.envs.gym.interface import AnyEnv, Info, ResetResult, StepResult
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.sb3.levels import close_vec_env

VecStep = tuple[Any, NDArray[np.floating], NDArray[np.bool_], Sequence[Info]]
"""Observations, rewards, dones and infos."""


class VecEnv(Protocol):
    """What steps a level: a VecEnv of Stable-Baselines3, or an object with its methods."""

    num_envs: int

    def seed(self, seed: int) -> object:
        """Seed the next reset."""
        ...

    def reset(self) -> Any:
        """Reset all rows, and return their observations."""
        ...

    def step(self, actions: Any) -> VecStep:
        """Step all rows; those whose episode ends reset themselves."""
        ...

    def close(self) -> object:
        """Close the sub-envs."""
        ...


class VecEnvAdapter(VectorEnv[Any, Any, Any]):
    """A VecEnv with the methods of Gymnasium's vector envs; it resets its rows in the same step.

    ``final_obs`` has the ``terminal_observation`` of the sub-envs whose episode ended, and
    ``TimeLimit.truncated`` of the infos separates ``truncated`` from ``terminated``.

    ``stepped`` has the methods of a VecEnv and steps the level. ``None``: its owner does.

    Attributes:
        infos: Infos of the last step.
    """

    def __init__(
        self, level: Level, name: str | None = None, stepped: VecEnv | None = None
    ) -> None:
        self.vec_env: VecEnv = level.owner if stepped is None else stepped
        if level.in_rows:
            self.vec_env = SteppedRows(level.owners, level.observation_space)
        self.num_envs = self.vec_env.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        # tdx reads only the name from the spec of an env.
        self.spec: Any = None if name is None else SimpleNamespace(id=name)
        self.single_observation_space = level.observation_space
        self.single_action_space = level.action_space
        self.observation_space = batch_space(level.observation_space, self.num_envs)
        self.action_space = batch_space(level.action_space, self.num_envs)
        self.infos: Sequence[Info] = ()

    @property
    def unwrapped(self) -> Any:
        """The VecEnv inside all wrappers, which messages name."""
        return getattr(self.vec_env, "unwrapped", self.vec_env)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: Info | None = None
    ) -> ResetResult:
        """Start new episodes in all rows; see :class:`gymnasium.vector.VectorEnv`."""
        first = seed[0] if isinstance(seed, list) else seed
        if first is not None:
            self.vec_env.seed(int(first))
        return self.vec_env.reset(), {}

    def step(self, actions: object) -> StepResult:
        """Step all rows; those whose episode ends reset themselves."""
        observation, rewards, dones, self.infos = self.vec_env.step(actions)
        truncated = np.array([bool(info.get("TimeLimit.truncated")) for info in self.infos])
        info: Info = {}
        if np.any(dones):
            final = np.full(self.num_envs, None, dtype=object)
            for row, done in enumerate(dones):
                if done:
                    final[row] = self.infos[row]["terminal_observation"]
            info = {"final_obs": final, "_final_obs": np.asarray(dones, np.bool_)}
        return observation, rewards, dones & ~truncated, dones & truncated, info

    def close_extras(self, **kwargs: object) -> None:
        close_vec_env(self.vec_env)


class SteppedRows:
    """Sub-envs that are stepped as a ``DummyVecEnv`` steps them, with spaces of any kind.

    A ``DummyVecEnv`` has no memory for text, which a wrapper above these levels may remove.
    """

    def __init__(self, envs: Sequence[AnyEnv], space: gymnasium.Space[object]) -> None:
        self.num_envs = len(envs)
        self._envs, self._space = tuple(envs), space
        self._seeds: list[int | None] = [None] * len(envs)

    def seed(self, seed: int) -> None:
        """Seed the next reset of each sub-env."""
        self._seeds = [seed + row for row in range(self.num_envs)]

    def reset(self) -> object:
        pairs = zip(self._envs, self._seeds, strict=True)
        first = [env.reset(seed=seed)[0] for env, seed in pairs]
        self._seeds = [None] * self.num_envs
        return self._stacked(first)

    def step(self, actions: Iterable[object]) -> VecStep:
        """Step all rows, and reset those that are done."""
        observations, rewards, dones, infos = [], [], [], []
        for env, action in zip(self._envs, actions, strict=True):
            observation, reward, terminated, truncated, info = env.step(action)
            done = terminated or truncated
            info = {**info, "TimeLimit.truncated": truncated and not terminated}
            if done:
                info["terminal_observation"] = observation
                observation, _ = env.reset()
            observations.append(observation)
            rewards.append(reward)
            dones.append(done)
            infos.append(info)
        return self._stacked(observations), np.array(rewards, np.float32), np.array(dones), infos

    def _stacked(self, observations: Sequence[object]) -> object:
        memory: Any = create_empty_array(self._space, self.num_envs)
        return concatenate(self._space, observations, memory)

    def close(self) -> None:
        for env in self._envs:
            env.close()
