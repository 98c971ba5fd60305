"""``GymnasiumStack``: a Gymnasium env or vector env with its wrappers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from tdx.core.meter import Meter
from tdx.envs.gym.autoreset import RESETS_ROWS, AutoresetMode
from tdx.foundation.errors import EnvError, get_first_line
from tdx.foundation.patches import Patches
from tdx.stacks.gymnasium.inner_preprocessing import (
    check_envpool,
    describe_preprocessing,
    is_envpool,
    preprocessing_arguments,
)
from tdx.stacks.gymnasium.level_stack import LevelDriver, LevelStack
from tdx.stacks.gymnasium.levels import (
    THIN_WRAPPERS,
    core_of,
    hidden_envs,
    inner_name,
    list_levels,
    list_wrappers,
    worker_sentence,
)
from tdx.stacks.observe import timed_levels
from tdx.stacks.observe.events import FLAGS
from tdx.stacks.refusals import unsupported_error
from tdx.stacks.sources import attributes_of

if TYPE_CHECKING:
    from tdx.envs import EnvBase
    from tdx.stacks.conversion import ConvertedStack
    from tdx.stacks.gymnasium.converted import GymnasiumReference


class GymnasiumStack(LevelStack):
    """A Gymnasium env with its wrappers; each wrapper is a stage.

    Specs describe the spaces, and values are what the wrappers return: an action of a
    ``Discrete`` space is its index, a reward a number.
    """

    kind = "gymnasium"
    done_keys = ("done", *FLAGS)

    def __init__(self, target: Any, notes: tuple[str, ...] = ()) -> None:
        core: Any = core_of(target)
        check_envpool(core)
        if isinstance(core, VectorEnv) and not hasattr(core, "single_observation_space"):
            raise unsupported_error(
                core, "declare single_observation_space and single_action_space"
            )
        super().__init__(target, list_levels(target))
        self._core, self._notes = core, notes

    @property
    def notes(self) -> Sequence[str]:
        return (*self._notes, *self.hidden)

    @property
    def env_arguments(self) -> Mapping[str, object]:
        return {**super().env_arguments, **preprocessing_arguments(self._core)}

    @cached_property
    def hidden(self) -> Sequence[str]:
        core = self._core
        if isinstance(core, AsyncVectorEnv):
            return (worker_sentence(core, "SyncVectorEnv"),)
        is_in_rows = any(level.in_rows for level in self.levels)
        if isinstance(core, SyncVectorEnv) and not is_in_rows:
            return ("the sub-envs have different wrappers, which are not shown",)
        return (*describe_preprocessing(core), *hidden_envs(self.levels))

    @contextmanager
    def in_this_process(self) -> Iterator[GymnasiumStack]:
        """See :class:`~tdx.stacks.Stack`.

        The factories that an ``AsyncVectorEnv`` keeps create its sub-envs again, in a
        ``SyncVectorEnv``. The wrappers around it are the same objects.
        """
        core = self._core
        env_fns = attributes_of(core).get("env_fns")
        if not isinstance(core, AsyncVectorEnv) or not env_fns:
            yield self
            return
        mode = attributes_of(core).get("observation_mode", "same")
        kwargs = {"autoreset_mode": core.metadata["autoreset_mode"]} if RESETS_ROWS else {}
        try:
            rebuilt = SyncVectorEnv(env_fns, observation_mode=mode, **kwargs)
        except Exception as error:
            raise EnvError(
                f"its sub-envs cannot be created in this process: {get_first_line(error)}",
                hint="use a SyncVectorEnv with the same wrappers",
            ) from error
        outer = list_wrappers(self.target)
        changes = [(outer[-1], inner_name(outer[-1], core), rebuilt)] if outer else []
        try:
            with Patches(changes):
                note = (
                    f"the sub-envs of {type(core).__name__} run in worker processes; those that "
                    "its env_fns create in this process are shown, without the workers' state"
                )
                yield GymnasiumStack(self.target if outer else rebuilt, (note,))
        finally:
            rebuilt.close()

    @property
    def sampled_space(self) -> Space[object]:
        """Space of random actions; envpool declares that of one of its envs."""
        if not is_envpool(self._core):
            return super().sampled_space
        return self._batched_space

    @cached_property
    def _batched_space(self) -> Space[object]:
        outer = self.levels[-1]
        return batch_space(outer.action_space, outer.num_envs or 1)

    def driver(self, policy: object = None) -> GymnasiumDriver:
        """See :class:`~tdx.stacks.Stack`; the policy takes an observation."""
        return GymnasiumDriver(self, policy)

    def measure(self, meter: Meter, *, all_stages: bool = False) -> AbstractContextManager[None]:
        """See :class:`~tdx.stacks.Stack`; thin wrappers alone are measured as part of the env."""
        if all_stages or any(type(level.owner) not in THIN_WRAPPERS for level in self.levels[1:]):
            return super().measure(meter)
        # The outermost object with the index of the env: its calls include those of the wrappers.
        env = replace(self.levels[-1], index=-1)
        return timed_levels(self.level_type(self.target, [env], self.name), meter)

    @property
    def takes_env_settings(self) -> bool:
        return True

    def as_env(self) -> EnvBase:
        """See :class:`~tdx.stacks.Stack`; the wrappers are part of the env."""
        from tdx.envs import GymWrapper

        return GymWrapper(self.target)

    def convert(self) -> ConvertedStack:
        from tdx.stacks.gymnasium.converted import convert_levels

        return convert_levels(self.levels)

    def reference(self, last: int, key: str | None, seed: int) -> GymnasiumReference:
        from tdx.stacks.gymnasium.converted import GymnasiumReference

        return GymnasiumReference(self.levels[last + 1].owner, key, seed)

    def base_env(self, last: int, key: str | None) -> EnvBase:
        from tdx.stacks.gymnasium.converted import wrap_level

        return wrap_level(self.levels[last + 1].owner, key)


class GymnasiumDriver(LevelDriver):
    """Resets and steps a Gymnasium env."""

    policy_hint = "pass a function that takes an observation and returns an action"

    def __init__(self, stack: LevelStack, policy: object) -> None:
        super().__init__(stack, policy)
        env = stack.target
        self._is_vector = isinstance(env, VectorEnv)
        mode = getattr(env, "metadata", {}).get("autoreset_mode") if self._is_vector else None
        self._resets_itself = self._is_vector and mode != AutoresetMode.DISABLED
        self._takes_seed = not is_envpool(core_of(env))  # It would warn that it ignores it.
        self._ended: Any = None

    def _reset(self, seed: int | None) -> object:
        env, ended = self._stack.target, self._ended
        self._ended = None
        seed = seed if self._takes_seed else None
        result = env.reset(seed=seed) if ended is None else env.reset(options={"reset_mask": ended})
        return self._check_result(result, "reset", "observation, info")[0]

    def _sample(self) -> object:
        return self._stack.sample_action()

    def _read(self, result: object) -> tuple[object, bool]:
        parts = "observation, reward, terminated, truncated, info"
        observation, _, terminated, truncated, _ = self._check_result(result, "step", parts)
        if not self._is_vector:
            return observation, bool(terminated) or bool(truncated)
        ended = np.logical_or(terminated, truncated)
        if self._resets_itself or not ended.any():
            return observation, False
        self._ended = ended
        return observation, True
