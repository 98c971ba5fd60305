"""State of VecEnv wrappers as named tensors: statistics, returns, frame stacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.state import level_state as row_state
from tdx.stacks.sb3.levels import arguments_of
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
    """Return copies of the numbers that a level keeps; those of sub-envs are stacked.

    Args:
        level: The level.
    """
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


def _is_record(value: Any) -> bool:
    """Return True for a dict and for a plain object, such as running statistics."""
    if isinstance(value, Mapping):
        return True
    if value is None or callable(value) or isinstance(value, str | bytes | list | tuple | type):
        return False
    return not hasattr(value, "step") and bool(attributes_of(value))
