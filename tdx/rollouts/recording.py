"""What an env itself gives and takes, kept beside what its chain makes of it."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import reset_masks
from tdx.core.envs.rollout import StepLayout
from tdx.data.layout import Leaves
from tdx.envs import EnvBase
from tdx.keys import NestedKey, split_key
from tdx.rollouts.storable import storable
from tdx.rollouts.track import Parts, from_tensors, tensors_of

RESET = "reset_before"
"""The entry that says whether a row was reset right before a step, ``[*B, 1]``."""


class RecordingEnv(EnvBase):
    """An env that keeps every step and reset of the env inside.

    Args:
        inner: the env inside.
    """

    _writes_all_outputs = True

    def __init__(self, inner: EnvBase) -> None:
        super().__init__(device=inner.device, batch_size=inner.batch_size)
        self.inner = inner
        take_specs(self, inner)
        self.root: Leaves = {}
        self._was_reset: Tensor | None = None
        self._steps: list[Leaves] = []
        self._alike = StepLayout()

    @property
    def _step_reads(self) -> tuple[NestedKey, ...] | None:
        return self.inner._step_reads

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensors_of(storable(tensordict.select(*self.action_keys)))
        result = self.inner._completed_step(tensordict)
        unlike = self._alike.check(result)
        if unlike is not None:
            raise unlike
        after = _cpu(tensors_of(storable(result)))
        step = {**self.root, **_cpu(actions), (RESET,): self._reset_flag()}
        self._steps.append({**step, **{("next", *path): leaf for path, leaf in after.items()}})
        rewards = {split_key(key) for key in self.reward_keys}
        self.root = {path: leaf for path, leaf in after.items() if path not in rewards}
        self._was_reset = None
        return result

    def _reset_flag(self) -> Tensor:
        none = torch.zeros((*self.batch_size, 1), dtype=torch.bool)
        return none if self._was_reset is None else self._was_reset

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        rows = rows_to_reset(self, tensordict)
        result = self.inner._completed_reset(tensordict, **kwargs)
        fresh = _cpu(tensors_of(storable(result)))
        if self.root and not bool(rows.all()):
            fresh = {path: _rows_of(leaf, self.root[path], rows) for path, leaf in fresh.items()}
        self.root = fresh
        self._was_reset = rows | self._reset_flag()
        return result

    def take(self) -> TensorDictBase | None:
        """What was kept since the last time, ``[*B, T]``; none where no step was made."""
        steps, self._steps = self._steps, []
        if not steps:
            return None
        dim = len(self.batch_size)
        stacked = {path: torch.stack([each[path] for each in steps], dim) for path in steps[0]}
        return from_tensors(stacked, (*self.batch_size, len(steps)), {})

    def resume_from(self, root: Leaves) -> None:
        """Go on after a step that left ``root`` behind; nothing is kept of what was before."""
        self.root, self._was_reset, self._steps = dict(root), None, []

    def _set_seed(self, seed: int | None) -> None:
        self.inner._set_seed(seed)

    def close(self) -> None:
        """Close the env inside."""
        super().close()
        self.inner.close()


def take_specs(env: EnvBase, other: EnvBase) -> None:
    """Give an env the specs of another one."""
    env.full_observation_spec = other.full_observation_spec.clone()
    env.full_action_spec = other.full_action_spec.clone()
    env.full_reward_spec = other.full_reward_spec.clone()
    env.full_done_spec = other.full_done_spec.clone()
    env.full_state_spec = other.full_state_spec.clone()


def rows_to_reset(env: EnvBase, tensordict: TensorDictBase | None) -> Tensor:
    """The rows that a reset is meant for, ``[*B, 1]``."""
    masks = reset_masks(tensordict, env.reset_keys)
    shape = (*env.batch_size, 1)
    if not masks:
        return torch.ones(shape, dtype=torch.bool)
    rows = torch.zeros(shape, dtype=torch.bool)
    for mask in masks.values():
        rows |= mask.cpu().reshape(*env.batch_size, -1).any(-1, keepdim=True)
    return rows


def _rows_of(fresh: Tensor, kept: Tensor, rows: Tensor) -> Tensor:
    extra = fresh.ndim - rows.ndim
    mask = rows.reshape(*rows.shape, *[1] * extra) if extra >= 0 else rows.squeeze(-1)
    return torch.where(mask, fresh, kept)


def _cpu(leaves: dict[Parts, Tensor]) -> Leaves:
    return {path: leaf.detach().cpu().clone() for path, leaf in leaves.items()}
