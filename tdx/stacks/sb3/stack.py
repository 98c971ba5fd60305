"""``StableBaselines3Stack``: a VecEnv with all wrappers, its env and its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.envs import EnvBase, GymWrapper
from tdx.foundation.errors import ArgumentError
from tdx.stacks.gymnasium.level_stack import policy_name
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.snapshots import level_state as row_state
from tdx.stacks.observe.events import FLAGS
from tdx.stacks.refusals import unsupported_error
from tdx.stacks.sb3.levels import (
    arguments_of,
    close_vec_env,
    core_of,
    list_levels,
    list_notes,
    sub_envs,
)
from tdx.stacks.sb3.observed import DONE, VecEnvLevels
from tdx.stacks.sb3.vector_stack import VectorDriver, VectorStack
from tdx.stacks.sources import attributes_of

_SKIPPED = (
    *("venv", "envs", "num_envs", "actions", "_actions", "_observations", "old_obs", "old_reward"),
    *("metadata", "class_attributes", "reset_infos", "render_mode", "t_start", "keys", "closed"),
    *("waiting", "processes", "remotes", "work_remotes", "results_writer", "_seeds", "_options"),
    *("buf_obs", "buf_dones", "buf_rews", "buf_infos", "n_stack", "stack_dimension"),
    *("repeat_axis", "channels_first", "stacked_shape", "video_folder", "name_prefix"),
)
_MAX_DEPTH = 4


def level_state(level: Level) -> dict[str, Tensor]:
    """Return copies of the numbers that a level keeps; those of sub-envs are stacked."""
    if level.in_rows:
        return row_state(level)
    skipped = {*_SKIPPED, *arguments_of(level.owner)}
    return dict(_leaves("", attributes_of(level.owner), skipped, 0))


def _leaves(
    prefix: str, parts: Mapping[Any, Any], skipped: set[str], depth: int
) -> Iterator[tuple[str, Tensor]]:
    for name, value in parts.items():
        if name in skipped or "space" in str(name):
            continue
        path = f"{prefix}{name}"
        if isinstance(value, Tensor):
            yield path, value.detach().clone()
        elif isinstance(value, bool | int | float | np.generic | np.ndarray):
            array = np.array(value)
            if array.dtype.kind in "biuf":
                yield path, torch.from_numpy(array)
        elif depth < _MAX_DEPTH and _is_record(value):
            inner = value if isinstance(value, Mapping) else attributes_of(value)
            yield from _leaves(f"{path}.", inner, skipped, depth + 1)


def _is_record(value: object) -> bool:
    """Return True for a dict and for a plain object, such as running statistics."""
    if isinstance(value, Mapping):
        return True
    if value is None or callable(value) or isinstance(value, str | bytes | list | tuple | type):
        return False
    return not hasattr(value, "step") and bool(attributes_of(value))


class StableBaselines3Stack(VectorStack):
    """A VecEnv of Stable-Baselines3; each wrapper of it and of its sub-envs is a stage.

    Values are batched, ``[N, ...]`` for N sub-envs. ``next`` of a step has the
    ``terminal_observation`` of the infos for the sub-envs whose episode ended, and ``terminated``
    and ``truncated`` by ``TimeLimit.truncated`` of the infos.
    """

    kind = "stable-baselines3"
    done_keys = (DONE, *FLAGS)
    level_type = VecEnvLevels
    local_class = "DummyVecEnv"

    def __init__(self, target: Any) -> None:
        # `hasattr` of a VecEnv wrapper also searches the VecEnvs inside.
        env = target if hasattr(type(target), "step_wait") else target.get_env()
        if env is None:
            raise ArgumentError(
                f"the {type(target).__name__} has no env",
                hint="pass env= to its constructor or load(), or call set_env(env)",
            )
        from stable_baselines3.common.vec_env import VecEnv

        core = core_of(env)
        if not isinstance(core, VecEnv):
            raise unsupported_error(core, "pass a VecEnv, or the env inside")
        super().__init__(env, list_levels(env))

    @cached_property
    def notes(self) -> Sequence[str]:
        return (*self.hidden, *list_notes(self.levels))

    @property
    def has_sub_envs(self) -> bool:
        return bool(sub_envs(self.core))

    @cached_property
    def hidden(self) -> Sequence[str]:
        if self.levels[0].in_rows or self.has_sub_envs or "processes" in attributes_of(self.core):
            return super().hidden
        return (f"{type(self.core).__name__} does not show its sub-envs",)

    def level_flags(self, level: Level) -> Sequence[str]:
        return FLAGS if level.in_rows else (DONE,)

    def level_state(self, level: Level) -> dict[str, Tensor]:
        return level_state(level)

    def driver(self, policy: object = None) -> VecEnvDriver:
        """See :class:`~tdx.stacks.Stack`; the policy takes observations, or is an algorithm."""
        return VecEnvDriver(self, policy)

    def as_env(self) -> EnvBase:
        """See :class:`~tdx.stacks.Stack`; the VecEnv and its wrappers are part of the env."""
        return GymWrapper(self.adapter(self.levels[-1], self.name))

    def close(self) -> None:
        close_vec_env(self.target)


class VecEnvDriver(VectorDriver):
    """Resets and steps a VecEnv as the algorithms of Stable-Baselines3 do.

    A VecEnv resets its sub-envs itself, so a reset is due only once.
    """

    policy_hint = "pass an algorithm, or a function that takes observations and returns actions"

    def __init__(self, stack: StableBaselines3Stack, policy: object) -> None:
        if (predict := getattr(policy, "predict", None)) is None:
            super().__init__(stack, policy)
        else:
            super().__init__(stack, lambda observation: predict(observation)[0])
        self._policy_name = policy_name(policy)

    def _reset(self, seed: int | None) -> object:
        env = self._stack.target
        if seed is not None:
            env.seed(seed)
        return env.reset()

    def _read(self, result: object) -> tuple[object, bool]:
        return self._check_result(result, "step", "observation, reward, done, infos")[0], False
