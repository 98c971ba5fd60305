"""Convert the wrappers of a Tianshou stack, and step parts of it as a VecEnv is stepped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tdx.stacks.conversion import ConvertedStack
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.sb3.adapter import VecEnvAdapter
from tdx.stacks.sb3.converted import convert_vector_levels


def convert_levels(levels: Sequence[Level]) -> ConvertedStack:
    """Find the counterparts of the wrappers; the number of sub-envs becomes ``num_envs``."""
    is_local = type(levels[0].owner).__name__ == "DummyVectorEnv"
    return convert_vector_levels(levels, "DummyVectorEnv", has_sub_envs=is_local)


def adapter_of(level: Level) -> VecEnvAdapter:
    """Return a level as a vector env of Gymnasium that resets its rows in the same step."""
    return VecEnvAdapter(level, stepped=None if level.in_rows else SteppedVectorEnv(level.owner))


class SteppedVectorEnv:
    """A vector env of Tianshou with the methods of a VecEnv; it resets its rows in a step."""

    def __init__(self, env: Any) -> None:
        self.num_envs = len(env)
        self._env = env
        self._seed: int | None = None

    def seed(self, seed: int) -> None:
        """Seed the next reset of each sub-env."""
        self._seed = seed

    def reset(self) -> Any:
        """Start new episodes in all rows and return their observations."""
        seed, self._seed = self._seed, None
        if seed is None:
            return self._env.reset()[0]
        # Its own `seed` resets the sub-envs, and the next reset draws other numbers.
        rows = [self._env.reset([row], seed=seed + row)[0] for row in range(self.num_envs)]
        return np.concatenate(rows)

    def step(self, actions: Any) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        """Step all rows, and reset those that are done, as a collector does."""
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        dones = np.logical_or(terminated, truncated)
        infos = [dict(info) for info in infos]
        ended = np.flatnonzero(dones).tolist()
        for row in ended:
            infos[row]["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            infos[row]["terminal_observation"] = np.array(observations[row])
        if ended:
            observations = np.array(observations)
            observations[ended] = self._env.reset(ended)[0]
        return observations, rewards, dones, infos

    @property
    def unwrapped(self) -> SteppedVectorEnv:
        """The object itself, which messages name."""
        return self

    def close(self) -> None:
        """Close the sub-envs."""
        self._env.close()
