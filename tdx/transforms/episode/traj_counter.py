"""Number the episodes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.env_specs import DoneGroup, done_groups
from tdx.core.transforms import EnvOnlyTransform, TimeBehavior
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.spec_maps import missing_key_error, require_free_key, with_entries
from tdx.core.transforms.statistics import Lock
from tdx.foundation.errors import ChainError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key, parent_key, sibling_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Bounded, Composite, TensorSpec


class TrajCounter(EnvOnlyTransform):
    """Write the number of the episode, which counts up with each reset of an env.

    No two episodes have the same number, not even in a batch of envs. The count is a buffer, so it
    is part of ``state_dict``. Clones of the transform share it, and so do envs made by the same
    ``EnvCreator``, even in other processes.

    Args:
        out_key: Key to write, next to the done flags whose resets it counts.

    Raises:
        KeyNotFoundError: There are no done flags next to the key (when its specs are computed).
        ChainError: The env already writes that key (when its specs are computed), or the
            transform is applied to stored data.

    Example:
        >>> from tdx import GymEnv, StepCounter, TrajCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=2))
        >>> env = env.append_transform(TrajCounter())
        >>> env.rollout(5, break_when_any_done=False)["traj_count"].flatten()
        tensor([0, 0, 1, 1, 2])
    """

    _is_verified = True
    STORED_ERR = "it counts the resets of an env, and stored data has none"

    time_behavior = TimeBehavior.CONTROL
    episode_memory = ("_last",)
    _last: dict[NestedKey, Tensor]
    traj_count: Tensor

    def __init__(self, out_key: NestedKey = "traj_count") -> None:
        super().__init__(in_keys=[], out_keys=[normalize_key(out_key)])
        self.register_buffer("traj_count", torch.zeros((), dtype=torch.int64))
        self.lock: Lock | None = None
        self._group: DoneGroup | None = None

    def _take_lock(self, lock: Lock) -> None:
        """Use a lock shared by all instances that share the count."""
        self.lock = lock

    # Data

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        (key,), group = self.out_keys, self._group
        assert group is not None
        numbers = group.new_entry(0, torch.int64, tensordict_reset)
        rows = reset_rows(tensordict, key, numbers)
        rows = torch.ones_like(numbers, dtype=torch.bool) if rows is None else rows
        rows = rows.expand(numbers.shape)
        # The count is not read: it may be on an accelerator, for which the host would wait.
        place = rows.flatten().cumsum(0).reshape(rows.shape)
        with self.lock or nullcontext():
            first = self.traj_count.clone()
            self.traj_count.add_(rows.sum().to(first.device))
        last = self._last.get(key)
        if last is not None and last.shape == numbers.shape:
            numbers = last
        numbers = torch.where(rows, first.to(rows.device) + place - 1, numbers)
        self._last[key] = numbers.clone()
        write(tensordict_reset, key, numbers)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        (key,) = self.out_keys
        numbers = read(tensordict, key)
        if numbers is None:
            # A later stage may have renamed the entry.
            numbers = self._last.get(key)
        if numbers is None:
            raise ChainError(
                "the episode has no number, since the env was not reset",
                hint="call env.reset() before env.step()",
                where=Where(key=key, transform="TrajCounter"),
            )
        write(next_tensordict, key, numbers.clone())
        return next_tensordict

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        (key,) = self.out_keys
        flags = output_spec["full_done_spec"]
        groups = (
            group for group in done_groups(flags) if parent_key(group.reset_key) == parent_key(key)
        )
        self._group = next(groups, None)
        if self._group is None:
            known = list(map(normalize_key, flags.keys(True, True)))
            raise missing_key_error(sibling_key(key, "done"), known, "the done spec")

    def _number_spec(self) -> dict[NestedKey, TensorSpec]:
        if self._group is None:
            return {}
        high, shape = torch.iinfo(torch.int64).max, self._group.shape
        spec = Bounded(0, high, shape=shape, dtype=torch.int64, device=self._group.device)
        return {self.out_keys[0]: spec}

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the number."""
        require_free_key(observation_spec, self.out_keys[0])
        return with_entries(observation_spec, self._number_spec())

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec with the number, which a step reads."""
        return with_entries(state_spec, self._number_spec())

    def __getstate__(self) -> dict[str, Any]:
        # A lock cannot always be pickled; the env creator of another process sets its own.
        return {**super().__getstate__(), "_last": dict(self._last), "lock": None}

    def __repr__(self) -> str:
        return f"TrajCounter(keys=[{format_key(self.out_keys[0])!r}])"
