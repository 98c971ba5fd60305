"""Raw steps: an env that records what the base env returns, and one that plays it back."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.alike_steps import AlikeSteps
from tdx.core.envs.done_flags import reset_masks
from tdx.data.layout import Leaves
from tdx.envs import EnvBase
from tdx.errors import EnvError, StorageError
from tdx.keys import NestedKey, format_key, key_parts, normal_key
from tdx.rollouts.dump.entries import (
    Parts,
    from_tensors,
    storable,
    storable_spec,
    tensors_of,
)
from tdx.rollouts.dump.json_fields import DAMAGED
from tdx.specs import NonTensor

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
        self._alike = AlikeSteps()

    @property
    def _step_reads(self) -> tuple[NestedKey, ...] | None:
        return self.inner._step_reads

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensors_of(storable(tensordict.select(*self.action_keys)))
        result = self.inner._completed_step(tensordict)
        unlike = self._alike.error_of(result)
        if unlike is not None:
            raise unlike
        after = _cpu(tensors_of(storable(result)))
        step = {**self.root, **_cpu(actions), (RESET,): self._reset_flag()}
        self._steps.append({**step, **{("next", *path): leaf for path, leaf in after.items()}})
        rewards = {key_parts(key) for key in self.reward_keys}
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


_HINT = "roll the chain out itself: it needs the env, not its recording"


class StoredEnv(EnvBase):
    """Gives back the steps and resets of a recording, and sees that the same is asked of it.

    Args:
        like: the env that was recorded; its specs are taken.
        recorded: what it gave and took, ``[*B, T]``.
    """

    _writes_all_outputs = True

    def __init__(self, like: EnvBase, recorded: TensorDictBase) -> None:
        super().__init__(device=like.device, batch_size=like.batch_size)
        take_specs(self, like)
        self.full_observation_spec = storable_spec(like.full_observation_spec)
        dim = len(self.batch_size)
        self._columns = {path: leaf.movedim(dim, 0) for path, leaf in tensors_of(recorded).items()}
        self._length = int(recorded.shape[dim])
        resets = self._columns.pop((RESET,), None)
        wanted = (self._length, *self.batch_size, 1)
        if resets is None or resets.dtype is not torch.bool or tuple(resets.shape) != wanted:
            raise StorageError(
                f"the recording has no {RESET!r} of the shape {list(wanted)}", hint=DAMAGED
            )
        self._resets = resets
        self._position = 0
        self._due: Tensor | None = None

    @property
    def _step_reads(self) -> tuple[NestedKey, ...] | None:
        return ()

    def _row(self, start: Parts) -> TensorDictBase:
        """The entries below ``start`` at this step."""
        actions = {key_parts(key) for key in self.action_keys}
        size = len(start)
        found = {
            path[size:]: column[self._position].clone()
            for path, column in self._columns.items()
            if path[:size] == start and (size or (path[0] != "next" and path not in actions))
        }
        return from_tensors(found, self.batch_size, {}).to(self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._check_step(tensordict)
        result = self._row(("next",))
        self._position += 1
        self._due = self._resets[self._position] if self._position < self._length else None
        return result

    def _check_step(self, tensordict: TensorDictBase) -> None:
        step = self._position
        if step >= self._length:
            raise EnvError(f"the recording ends after {self._length} steps", hint=_HINT)
        if self._due is not None and bool(self._due.any()):
            raise EnvError(
                f"the chain goes on at step {step}, where the stored episode was reset", hint=_HINT
            )
        for key in self.action_keys:
            if isinstance(self.full_action_spec[key], NonTensor):
                continue  # It is not stored.
            stored = self._column(key_parts(key))[step]
            given = tensordict.get(key).detach().cpu()
            if given.shape != stored.shape or not torch.equal(given, stored):
                raise EnvError(
                    f"the chain gives the env another {format_key(key)!r} at step {step} "
                    "than the stored one",
                    hint=_HINT,
                )

    def _column(self, path: Parts) -> Tensor:
        if path not in self._columns:
            raise StorageError(
                f"the recording has no {format_key(normal_key(path))!r}",
                hint="roll out without --keys, or with --raw",
            )
        return self._columns[path]

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        step, rows = self._position, rows_to_reset(self, tensordict)
        if step >= self._length:
            raise EnvError(f"the recording ends after {self._length} steps", hint=_HINT)
        if not torch.equal(rows, self._resets[step]):
            raise EnvError(
                f"the chain begins an episode at step {step}, where the stored one goes on",
                hint=_HINT,
            )
        self._due = None
        return self._row(())

    def _set_seed(self, seed: int | None) -> None:
        return None
