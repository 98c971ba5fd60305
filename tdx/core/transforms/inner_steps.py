"""Step the env inside from the hook of a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import episode_end_flags, keep_unmasked_rows
from tdx.core.transforms.compose import upstream
from tdx.core.transforms.transform import Transform
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.tensordicts import read
from tdx.specs import Composite

if TYPE_CHECKING:
    from tdx.core.envs import EnvBase


def require_upstream(stage: Transform) -> tuple[EnvBase, tuple[Transform, ...]]:
    """Return the base env of a stage and the stages between them."""
    inside = upstream(stage)
    if inside is None:
        raise ChainError(
            f"{type(stage).__name__} needs an env to step",
            hint="put the transform into a TransformedEnv first",
        )
    return inside


def end_keys(full_done_spec: Composite) -> list[NestedKey]:
    """Return the flags that end an episode; see :func:`episode_end_flags`."""
    return episode_end_flags(normalize_key(key) for key in full_done_spec.keys(True, True))


def running_rows(output: TensorDictBase, keys: list[NestedKey]) -> Tensor:
    """Return which rows of a step's output are not done, bool ``[*B]``."""
    batch = output.batch_size
    ended = torch.zeros(batch, dtype=torch.bool, device=output.device)
    for key in keys:
        ended = ended | read(output, key).reshape(*batch, -1).any(-1)
    return ~ended


def rows_where(
    condition: Callable[[TensorDictBase], Any], tensordict: TensorDictBase, name: str
) -> Tensor:
    """Return the rows of a TensorDict ``[*B]`` in which a condition holds, bool ``[*B]``.

    The condition returns a bool, or a tensor ``[*B]`` or ``[*B, 1]``.
    """
    batch = tensordict.batch_size
    rows = torch.as_tensor(condition(tensordict), device=tensordict.device).bool()
    if rows.shape == (*batch, 1):
        rows = rows.squeeze(-1)
    if rows.ndim and rows.shape != batch:
        raise ArgumentError(
            f"{name} returned shape {tuple(rows.shape)} for a batch of shape {tuple(batch)}",
            hint="return a bool, or one bool for each row",
        )
    return rows.expand(batch)


def select_rows(env: EnvBase, before: TensorDictBase, rows: Tensor) -> TensorDictBase:
    """Return the input ``[*B]`` of a step of some rows of an env."""
    if not env.batch_locked:
        return before.exclude("_step")
    if not env.steps_some_rows:
        raise ChainError(
            f"{type(env).__name__} cannot step some rows of its batch without the others",
            hint="put the transform into the envs of the batch",
        )
    return before.set("_step", rows.to(before.device or "cpu"))


def step_rows(
    env: EnvBase,
    stages: tuple[Transform, ...],
    before: TensorDictBase,
    rows: Tensor,
    kept: TensorDictBase,
) -> TensorDictBase:
    """Step some rows of the env and of the stages upstream of a stage; return their output.

    ``kept`` is the output ``[*B]`` of the rows that are not stepped.
    """
    for stage in reversed(stages):
        if stage.invertible:
            before = stage._inv_call(before)
    # A stage between them, or one outside, may skip steps.
    played = read(before, "_step")
    if played is not None:
        rows, before = rows & played.to(rows.device), before.exclude("_step")
        if not bool(rows.any()):
            return kept
    some = not bool(rows.all())
    if some:
        before = select_rows(env, before, rows)
    following = env.completed_step(before)
    for stage in stages:
        following = stage._step(before, following)
        before = stage.to_outer_batch(before)
    if some:
        masks: dict[NestedKey, Tensor] = {"_reset": rows.to(following.device or "cpu")}
        keep_unmasked_rows(following, kept, masks, rows.ndim)
    return following
