"""Raw steps: an env that records what the base env returns, and one that plays it back."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import reset_masks
from tdx.core.envs.eager_run import StepLayout
from tdx.data.layout import LeavesByPath
from tdx.envs import EnvBase
from tdx.foundation.errors import EnvError, StorageError
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.rollouts.dump.encoding import DAMAGED
from tdx.rollouts.dump.entries import (
    Parts,
    flatten_tensors,
    select_storable,
    select_storable_spec,
    unflatten_tensors,
)
from tdx.specs import NonTensor

RESET_KEY = "reset_before"
"""Entry that is true if a row was reset right before a step, ``[*B, 1]``."""
_ROLL_OUT = "roll out the chain instead: it needs the env, not its recording"


class RecordingEnv(EnvBase):
    """Records every step and reset of another env."""

    writes_all_outputs = True

    def __init__(self, inner: EnvBase) -> None:
        super().__init__(device=inner.device, batch_size=inner.batch_size)
        self.inner = inner
        copy_specs(self, inner)
        self.root: LeavesByPath = {}
        self._was_reset: Tensor | None = None
        self._steps: list[LeavesByPath] = []
        self._alike = StepLayout()

    @property
    def step_reads(self) -> tuple[NestedKey, ...] | None:
        return self.inner.step_reads

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = flatten_tensors(select_storable(tensordict.select(*self.action_keys)))
        result = self.inner.completed_step(tensordict)
        unlike = self._alike.check(result)
        if unlike is not None:
            raise unlike
        after = _copy_to_cpu(flatten_tensors(select_storable(result)))
        step = {**self.root, **_copy_to_cpu(actions), (RESET_KEY,): self._reset_flag()}
        self._steps.append({**step, **{("next", *path): leaf for path, leaf in after.items()}})
        rewards = {split_key(key) for key in self.reward_keys}
        self.root = {path: leaf for path, leaf in after.items() if path not in rewards}
        self._was_reset = None
        return result

    def _reset_flag(self) -> Tensor:
        if self._was_reset is None:
            return torch.zeros((*self.batch_size, 1), dtype=torch.bool)
        return self._was_reset

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        rows = find_reset_rows(self, tensordict)
        result = self.inner.completed_reset(tensordict, **kwargs)
        root = _copy_to_cpu(flatten_tensors(select_storable(result)))
        if self.root and not bool(rows.all()):
            for path, leaf in root.items():
                extra = leaf.ndim - rows.ndim
                mask = rows.reshape(*rows.shape, *[1] * extra) if extra >= 0 else rows.squeeze(-1)
                root[path] = torch.where(mask, leaf, self.root[path])
        self.root = root
        self._was_reset = rows | self._reset_flag()
        return result

    def pop_steps(self) -> TensorDictBase | None:
        """Return the steps since the last call, ``[*B, T]``; ``None`` if there are none."""
        steps, self._steps = self._steps, []
        if not steps:
            return None
        dim = len(self.batch_size)
        stacked = {path: torch.stack([step[path] for step in steps], dim) for path in steps[0]}
        return unflatten_tensors(stacked, (*self.batch_size, len(steps)), {})

    def resume_from(self, root: LeavesByPath) -> None:
        """Continue after a step that returned ``root``, and discard recorded steps."""
        self.root, self._was_reset, self._steps = dict(root), None, []

    def _set_seed(self, seed: int | None) -> None:
        self.inner._set_seed(seed)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the recorded env."""
        super().close()
        self.inner.close()


class PlaybackEnv(EnvBase):
    """Returns recorded raw steps ``[*B, T]``, and checks that the chain asks for the same ones."""

    writes_all_outputs = True

    def __init__(self, like: EnvBase, recorded: TensorDictBase) -> None:
        super().__init__(device=like.device, batch_size=like.batch_size)
        copy_specs(self, like)
        self.full_observation_spec = select_storable_spec(like.full_observation_spec)
        dim = len(self.batch_size)
        leaves = flatten_tensors(recorded)
        self._columns = {path: leaf.movedim(dim, 0) for path, leaf in leaves.items()}
        self._length = int(recorded.shape[dim])
        resets = self._columns.pop((RESET_KEY,), None)
        wanted = (self._length, *self.batch_size, 1)
        if resets is None or resets.dtype is not torch.bool or tuple(resets.shape) != wanted:
            raise StorageError(
                f"the recording has no {RESET_KEY!r} of shape {list(wanted)}", hint=DAMAGED
            )
        self._resets = resets
        self._position = 0
        self._due: Tensor | None = None

    @property
    def step_reads(self) -> tuple[NestedKey, ...] | None:
        return ()

    def _entries_below(self, start: Parts) -> TensorDictBase:
        """Return the entries below ``start`` at the current step."""
        actions = {split_key(key) for key in self.action_keys}
        size = len(start)
        found = {
            path[size:]: column[self._position].clone()
            for path, column in self._columns.items()
            if path[:size] == start and (size or (path[0] != "next" and path not in actions))
        }
        return unflatten_tensors(found, self.batch_size, {}).to(self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._check_step(tensordict)
        result = self._entries_below(("next",))
        self._position += 1
        self._due = self._resets[self._position] if self._position < self._length else None
        return result

    def _check_step(self, tensordict: TensorDictBase) -> None:
        step = self._position
        self._check_position()
        if self._due is not None and bool(self._due.any()):
            raise EnvError(
                f"the chain does not reset at step {step}, where the recording does",
                hint=_ROLL_OUT,
            )
        for key in self.action_keys:
            if isinstance(self.full_action_spec[key], NonTensor):
                continue  # It is not stored.
            stored = self._column(split_key(key))[step]
            given = tensordict.get(key).detach().cpu()
            if given.shape != stored.shape or not torch.equal(given, stored):
                raise EnvError(
                    f"{format_key(key)!r} differs from the recording at step {step}",
                    hint=_ROLL_OUT,
                )

    def _check_position(self) -> None:
        if self._position >= self._length:
            raise EnvError(f"the recording ends after {self._length} steps", hint=_ROLL_OUT)

    def _column(self, path: Parts) -> Tensor:
        if path not in self._columns:
            raise StorageError(
                f"the recording has no {format_key(normalize_key(path))!r}",
                hint="roll out without --keys, or with --raw",
            )
        return self._columns[path]

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._check_position()
        step = self._position
        if not torch.equal(find_reset_rows(self, tensordict), self._resets[step]):
            raise EnvError(
                f"the chain resets at step {step}, where the recording does not", hint=_ROLL_OUT
            )
        self._due = None
        return self._entries_below(())

    def _set_seed(self, seed: int | None) -> None:
        return None


def copy_specs(env: EnvBase, other: EnvBase) -> None:
    """Copy the specs of another env."""
    env.full_observation_spec = other.full_observation_spec.clone()
    env.full_action_spec = other.full_action_spec.clone()
    env.full_reward_spec = other.full_reward_spec.clone()
    env.full_done_spec = other.full_done_spec.clone()
    env.full_state_spec = other.full_state_spec.clone()


def find_reset_rows(env: EnvBase, tensordict: TensorDictBase | None) -> Tensor:
    """Return a mask of the rows that a reset affects, ``[*B, 1]``."""
    masks = reset_masks(tensordict, env.reset_keys)
    shape = (*env.batch_size, 1)
    if not masks:
        return torch.ones(shape, dtype=torch.bool)
    rows = torch.zeros(shape, dtype=torch.bool)
    for mask in masks.values():
        rows |= mask.cpu().reshape(*env.batch_size, -1).any(-1, keepdim=True)
    return rows


def _copy_to_cpu(leaves: dict[Parts, Tensor]) -> LeavesByPath:
    return {path: leaf.detach().cpu().clone() for path, leaf in leaves.items()}
