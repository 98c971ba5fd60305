"""What stacks of the vector envs of other libraries share: their sub-envs restart in a step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from tdx.envs import EnvBase, GymWrapper
from tdx.stacks.gymnasium.level_stack import LevelDriver, LevelStack
from tdx.stacks.gymnasium.levels import Level, hidden_envs, worker_sentence
from tdx.stacks.sb3.adapter import VecEnvAdapter

if TYPE_CHECKING:
    from tdx.stacks.conversion import ConvertedStack
    from tdx.stacks.sb3.converted import VecEnvReference


class VectorStack(LevelStack):
    """A vector env; each wrapper of it and of its sub-envs is a stage."""

    local_class: str
    """Class of the library that has its sub-envs in this process."""
    observes_vector = True
    """False if the vector env cannot be compared, but only its sub-envs."""

    @property
    def core(self) -> Any:
        """The vector env inside its wrappers."""
        return next(level.owner for level in self.levels if not level.in_rows)

    @property
    @abstractmethod
    def has_sub_envs(self) -> bool:
        """True if the sub-envs are in this process."""

    @property
    def hidden(self) -> Sequence[str]:
        if self.levels[0].in_rows:
            return hidden_envs([level for level in self.levels if level.in_rows])
        if self.has_sub_envs:
            return ("the sub-envs have different wrappers, which are not shown",)
        return (worker_sentence(self.core, self.local_class),)

    @property
    def sampled_space(self) -> Space[object]:
        """Space of the random actions of one sub-env."""
        return self.levels[-1].action_space

    def adapter(self, level: Level, name: str | None = None) -> VecEnvAdapter:
        """Return a level, also one in the sub-envs, as a vector env of Gymnasium."""
        return VecEnvAdapter(level, name)

    def convert(self) -> ConvertedStack:
        from tdx.stacks.sb3.converted import convert_levels

        return convert_levels(
            self.levels,
            self.local_class,
            has_sub_envs=self.has_sub_envs,
            observes_vector=self.observes_vector,
        )

    def reference(self, last: int, key: str | None, seed: int) -> VecEnvReference:
        from tdx.stacks.sb3.converted import VecEnvReference

        return VecEnvReference(self.adapter(self.levels[last + 1]), key, seed)

    def base_env(self, last: int, key: str | None) -> EnvBase:
        from tdx.stacks.counterparts import root_key
        from tdx.stacks.gymnasium.converted import with_observation_key

        env = self.adapter(self.levels[last + 1])
        return with_observation_key(GymWrapper(env), root_key(env.single_observation_space), key)


class VectorDriver(LevelDriver):
    """Resets and steps a vector env, whose random actions are those of each sub-env."""

    def _sample(self) -> object:
        stack = self._stack
        return np.array([stack.sample_action() for _ in range(stack.num_envs or 1)])
