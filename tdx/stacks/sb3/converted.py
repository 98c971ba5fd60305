"""Convert the wrappers of a Stable-Baselines3 stack, and run parts of it to compare values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from tdx.envs.gym.numeric_spaces import CodecOptions
from tdx.envs.gym.spaces import codec_of
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import format_key
from tdx.stacks.conversion import (
    ConvertedStack,
    Counterpart,
    NamedTensors,
    action_entries,
)
from tdx.stacks.counterparts import convert_stages
from tdx.stacks.gymnasium.converted import convert_wrappers, stack_errors
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.sb3.adapter import VecEnvAdapter


def convert_levels(
    levels: Sequence[Level], local: str, *, has_sub_envs: bool, observes_vector: bool
) -> ConvertedStack:
    """Find the counterparts of the wrappers in and around a vector env of any library.

    ``local`` is the class of the library that has its sub-envs in this process. Without
    ``observes_vector``, only the sub-envs can be compared.
    """
    if not levels[0].in_rows:
        core = levels[0].owner
        if has_sub_envs:
            raise ArgumentError(
                "the sub-envs have different wrappers",
                hint="import each of them as an env of its own",
            )
        raise ArgumentError(
            f"the sub-envs of {type(core).__name__} cannot be read",
            hint=f"use a {local} of equal envs in the function; `batching: parallel` in the "
            "file runs them in processes",
        )
    rows = [level for level in levels[1:] if level.in_rows]
    converted, place = convert_wrappers(levels[0].owner, rows)
    of_vec_env = Counterpart(comment="num_envs of the env", observable=observes_vector)
    core, *outer = (level for level in levels if not level.in_rows)
    stages = convert_stages(
        [
            (core.info(), of_vec_env, None, core.observation_space),
            *(
                (level.info(), level.owner, below.observation_space, level.observation_space)
                for below, level in pairwise([core, *outer])
            ),
        ],
        place,
    )
    env = replace(converted.env, num_envs=levels[0].num_envs)
    return ConvertedStack(env, (*converted.stages, *stages), converted.key)


class VecEnvReference:
    """A VecEnv whose values are entries ``[N, ...]``, as those of tdx."""

    def __init__(self, env: VecEnvAdapter, key: str | None, seed: int) -> None:
        self._env, self._key = env, key
        observed, acted = env.single_observation_space, env.single_action_space
        options = CodecOptions(self._env.num_envs, categorical=False, remap_state=True)
        self._observe = codec_of(observed, options).encode
        self._observe_one = codec_of(observed, replace(options, rows=None)).encode
        self._encode_action = codec_of(acted, options).encode
        self._env.action_space.seed(seed)
        self._current: Any = None

    def reset(self, seed: int | None) -> NamedTensors:
        """See :class:`~tdx.stacks.conversion.Reference`; a step resets the rows already."""
        if self._current is None:
            with stack_errors("reset"):
                self._current, _ = self._env.reset(seed=seed)
        return self._entries(self._observe(self._current))

    def sample_action(self) -> tuple[Any, NamedTensors]:
        action = self._env.action_space.sample()
        return action, action_entries(self._encode_action(action))

    def step(self, action: object) -> tuple[NamedTensors, Mapping[str, Any]]:
        with stack_errors("step"):
            self._current, rewards, terminated, truncated, info = self._env.step(action)
        entries = {key: value.clone() for key, value in self.reset(None).items()}
        dones = terminated | truncated
        for row in np.flatnonzero(dones):
            last = self._entries(self._observe_one(info["final_obs"][row]))
            for key, value in last.items():
                entries[key][row] = value
        entries["reward"] = _column(rewards, torch.float32)
        # `terminated` and `truncated` of a VecEnv are exclusive, so only the first one is known.
        entries["terminated"] = _column(terminated, torch.bool)
        entries["done"] = _column(dones, torch.bool)
        ended = [info.get("episode") for info in np.array(self._env.infos, object)[dones]]
        episodes = {
            name: torch.tensor([episode[name] for episode in ended if episode]) for name in "rl"
        }
        return entries, {"episode": episodes}

    def _entries(self, encoded: Any) -> dict[str, Tensor]:
        observed = TensorDict(encoded) if isinstance(encoded, Mapping) else encoded
        if isinstance(observed, Tensor):
            return {self._key or "observation": observed}
        leaves = {format_key(key): value for key, value in observed.items(True, True)}
        return {key: value for key, value in leaves.items() if isinstance(value, Tensor)}

    def close(self) -> None:
        self._env.close()


def _column(values: object, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(np.array(values)).to(dtype).reshape(-1, 1)
