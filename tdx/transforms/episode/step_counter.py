"""Count the steps of an episode, and truncate it after a number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.env_specs import DoneGroup, done_groups
from tdx.core.transforms import RunningTransform, TimeBehavior
from tdx.core.transforms.episodes import StoredGroup, steps_since_start, stored_groups
from tdx.core.transforms.kernels import (
    Chunk,
    ChunkKernel,
    DictStep,
    EntryMapping,
    StepLimit,
    are_flat,
)
from tdx.core.transforms.spec_maps import require_free_key, with_entries
from tdx.core.transforms.validation import check_integer, check_name
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, format_key, join_keys
from tdx.foundation.tensordicts import read, write
from tdx.specs import Bounded, Composite, TensorSpec


class StepCounter(RunningTransform):
    """Write the number of steps since the reset, and truncate the episode at ``max_steps``.

    Each group of done flags has one counter of the same shape. Truncations by the env itself are
    kept, and an episode can be truncated and terminated in the same step.

    Args:
        max_steps: Step at which ``truncated`` is set. ``None``: only count.
        truncated_key: Name of the flag to set.
        step_count_key: Name of the counter.
        update_done: Set ``done`` too if ``truncated`` is set.

    Raises:
        ArgumentError: ``max_steps`` is not an integer of at least 1, or a key is not a string.
        ChainError: The env already writes the counter's key (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=3))
        >>> rollout = env.rollout(100)
        >>> rollout["next", "step_count"].flatten(), rollout["next", "truncated"].flatten()
        (tensor([1, 2, 3]), tensor([False, False,  True]))
    """

    _is_verified = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: str | None = "truncated",
        step_count_key: str | None = "step_count",
        update_done: bool = True,
    ) -> None:
        if max_steps is not None:
            check_integer(max_steps, "max_steps", 1, "for example 200, or None to only count")
        truncated_key = "truncated" if truncated_key is None else truncated_key
        step_count_key = "step_count" if step_count_key is None else step_count_key
        self.truncated_key = check_name(truncated_key, "truncated_key", "flags")
        self.step_count_key = check_name(step_count_key, "step_count_key", "counters")
        super().__init__(in_keys=[], out_keys=[self.step_count_key])
        self.max_steps, self.update_done = max_steps, update_done
        self._groups: dict[NestedKey, DoneGroup] = {}
        """Group of done flags of each counter, by the key of the counter."""
        self._counters: tuple[tuple[None, NestedKey], ...] = ((None, self.step_count_key),)

    @property
    def step_count_keys(self) -> list[NestedKey]:
        """Key of the counter of each group of done flags."""
        self._bind_in_env()
        return [key for _, key in self._counters]

    @property
    def all_truncated_keys(self) -> list[NestedKey]:
        """Key of the ``truncated`` flag of each group of done flags."""
        self._bind_in_env()
        return [group.sibling(self.truncated_key) for group in self._groups.values()]

    @property
    def all_done_keys(self) -> list[NestedKey]:
        """Key of the ``done`` flag of each group of done flags."""
        self._bind_in_env()
        return [group.sibling("done") for group in self._groups.values()]

    # Kernels

    def _increment(self, key: NestedKey, values: Tensor | None) -> int:
        return 1

    def _truncate(
        self, group: DoneGroup | StoredGroup, count: Tensor, get: Callable[[NestedKey], Any]
    ) -> dict[NestedKey, Tensor]:
        """Return the flags of a group after a step; missing flags other than truncated stay so."""
        assert self.max_steps is not None
        ended = count >= self.max_steps
        flags: dict[NestedKey, Tensor] = {}
        for name in self._flag_names:
            key = group.sibling(name)
            flag = get(key)
            if flag is not None:
                flags[key] = flag | ended
            elif name == self.truncated_key:
                flags[key] = ended.clone()
        return flags

    @property
    def _flag_names(self) -> tuple[str, ...]:
        """Names of the flags that are set at ``max_steps``."""
        names = (self.truncated_key, "done") if self.update_done else (self.truncated_key,)
        return () if self.max_steps is None else tuple(dict.fromkeys(names))

    @property
    def _flags(self) -> list[NestedKey]:
        """Keys of these flags in all groups."""
        return [group.sibling(name) for group in self._groups.values() for name in self._flag_names]

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        return (*super().written_keys, *self._flags)

    # The counter

    def _state_pairs(self) -> tuple[tuple[None, NestedKey], ...]:
        return self._counters

    def _initial(self, key: NestedKey, tensordict_reset: TensorDictBase) -> Tensor:
        if key in self._groups:
            return self._groups[key].new_entry(0, torch.int64, tensordict_reset)
        rows, device = tensordict_reset.batch_size, tensordict_reset.device
        return torch.zeros(*rows, 1, dtype=torch.int64, device=device)

    def _widen(self, state: Tensor, dtype: torch.dtype) -> Tensor:
        return state.to(dtype)

    # The flags

    def make_dict_step(self) -> DictStep | None:
        step = super().make_dict_step()
        return step if self.max_steps is None or are_flat(self._flags) else None

    def _step_entries(
        self,
        pairs: tuple[tuple[NestedKey | None, NestedKey], ...],
        root: EntryMapping,
        fields: EntryMapping,
        output: TensorDictBase | None = None,
    ) -> None:
        super()._step_entries(pairs, root, fields, output)
        if self.max_steps is None:
            return
        groups: Mapping[NestedKey, DoneGroup | StoredGroup] = self._groups
        # Without an env, there is a single group at the root.
        for key, group in (groups or {self.step_count_key: StoredGroup((), ())}).items():
            for flag_key, flag in self._truncate(group, fields.get(key), fields.get).items():
                fields[flag_key] = flag

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        tensordict_reset = super()._reset(tensordict, tensordict_reset)
        for group in self._groups.values() if self.max_steps is not None else ():
            key = group.sibling(self.truncated_key)
            if read(tensordict_reset, key) is None:
                flag = group.new_entry(False, torch.bool, tensordict_reset)
                write(tensordict_reset, key, flag)
        return tensordict_reset

    def make_chunk_kernel(self) -> ChunkKernel | None:
        kernel = super().make_chunk_kernel()
        if kernel is None or self.max_steps is None:
            return kernel
        known = {key for group in self._groups.values() for key in group.keys}
        truncated = {group.sibling(self.truncated_key) for group in self._groups.values()}
        flags = [key for key in self._flags if key in known | truncated]
        reads = tuple(flag for flag in flags if flag in known)
        run, writes = self._count_and_truncate, (*kernel.writes, *flags)
        return replace(kernel, run=run, reads=reads, writes=writes)

    def _count_and_truncate(self, chunk: Chunk) -> None:
        self._run_chunk(chunk)
        for key, group in self._groups.items():
            count, flag_key = chunk.steps[key], group.sibling(self.truncated_key)
            chunk.steps.update(self._truncate(group, count, chunk.steps.get))
            if chunk.times and flag_key not in chunk.resets:
                shape = (len(chunk.times), *count.shape[1:])
                chunk.resets[flag_key] = count.new_zeros(shape, dtype=torch.bool)

    def step_limits(self) -> tuple[StepLimit, ...]:
        if self.max_steps is None or not self.update_done:
            return ()
        return tuple(
            StepLimit(self.max_steps, key, group.sibling("done"), partial(self._last.get, key))
            for key, group in self._groups.items()
            if group.has("done")
        )

    # Stored data

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Count the steps of a stored rollout, at the root and in ``next``, in place.

        With ``max_steps``, also set the flags of the last step of episodes of that length.
        Stored counters are kept, and so are the flags of their group.

        Args:
            tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

        Raises:
            ArgumentError: It has no time dim, or an episode continues after ``max_steps``.
            KeyNotFoundError: It has neither a done flag nor ``is_init`` to separate episodes.
        """
        if all(read(tensordict, key) is not None for key in self.out_keys):
            return tensordict
        for group in stored_groups(tensordict):
            key = group.sibling(self.step_count_key)
            if read(tensordict, key) is None:
                starts = group.starts(tensordict)
                count = steps_since_start(starts, tensordict.ndim - 1)
                if self.max_steps is not None:
                    self._truncate_stored(tensordict, group, starts, count + 1)
                tensordict.set(key, count)
                tensordict.set(join_keys("next", key), count + 1)
        return tensordict

    def _truncate_stored(
        self, tensordict: TensorDictBase, group: StoredGroup, starts: Tensor, count: Tensor
    ) -> None:
        time = tensordict.ndim - 1
        later = starts.shape[time] - 1
        assert self.max_steps is not None
        ended = count >= self.max_steps
        if bool((ended.narrow(time, 0, later) & ~starts.narrow(time, 1, later)).any()):
            raise ArgumentError(
                f"a stored episode continues after max_steps={self.max_steps}, where an env would "
                "have been reset",
                hint="count stored data with StepCounter() and no max_steps, or cut the episodes",
            ).at(transform="StepCounter")
        following = tensordict.get("next", None)
        get = (lambda key: None) if following is None else partial(read, following)
        for key, flag in self._truncate(group, count, get).items():
            if get(key) is None:
                tensordict.set(key, torch.zeros_like(flag))
            tensordict.set(join_keys("next", key), flag)

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        groups = done_groups(output_spec["full_done_spec"])
        self._groups = {group.sibling(self.step_count_key): group for group in groups}
        self._counters = tuple((None, key) for key in self._groups)
        self._set_keys([], list(self._groups))

    def _counter_specs(self) -> dict[NestedKey, TensorSpec]:
        high = torch.iinfo(torch.int64).max
        return {
            key: Bounded(0, high, shape=group.shape, dtype=torch.int64, device=group.device)
            for key, group in self._groups.items()
        }

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the counters."""
        for key in self._groups:
            require_free_key(observation_spec, key)
        return with_entries(observation_spec, self._counter_specs())

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec with the counters, which a step reads."""
        return with_entries(state_spec, self._counter_specs())

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Return the spec of the done flags with the truncated flags."""
        groups = self._groups.values() if self.max_steps is not None else ()
        missing = [group for group in groups if not group.has(self.truncated_key)]
        flags = {group.sibling(self.truncated_key): group.flag_spec() for group in missing}
        return with_entries(done_spec, flags)

    def __repr__(self) -> str:
        keys = ", ".join(repr(format_key(key)) for key in self.out_keys)
        return f"StepCounter(max_steps={self.max_steps}, keys=[{keys}])"
