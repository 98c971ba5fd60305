"""An env that plays what another one once gave."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.envs import EnvBase
from tdx.errors import EnvError, StorageError
from tdx.keys import NestedKey, format_key, normalize_key, split_key
from tdx.rollouts.fields import DAMAGED
from tdx.rollouts.recording import RESET, rows_to_reset, take_specs
from tdx.rollouts.storable import storable_spec
from tdx.rollouts.track import Parts, from_tensors, tensors_of
from tdx.specs import NonTensor

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
        actions = {split_key(key) for key in self.action_keys}
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
            stored = self._column(split_key(key))[step]
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
                f"the recording has no {format_key(normalize_key(path))!r}",
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
