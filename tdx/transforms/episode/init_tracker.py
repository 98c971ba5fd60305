"""Mark the first step of every episode."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase

from tdx.core.envs.env_specs import DoneGroup, done_groups
from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.episodes import stored_groups
from tdx.core.transforms.kernels import Chunk, ChunkKernel, DictStep, EntryMapping
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.spec_maps import require_free_key, with_entries
from tdx.core.transforms.validation import check_name
from tdx.foundation.keys import NestedKey, format_key, join_keys
from tdx.foundation.tensordicts import read, write
from tdx.specs import Composite


class InitTracker(Transform):
    """Write a flag that is true after a reset and false after a step.

    Each group of done flags has one flag of the same shape.

    Args:
        init_key: Name of the flag.

    Raises:
        ArgumentError: ``init_key`` is not a string.
        ChainError: The env already writes that key (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, InitTracker, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
        >>> env.rollout(3)["is_init"].flatten()
        tensor([ True, False, False])
    """

    _is_verified = True

    time_behavior = TimeBehavior.SCAN

    def __init__(self, init_key: str = "is_init") -> None:
        check_name(init_key, "init_key", "flags")
        super().__init__(in_keys=[], out_keys=[init_key])
        self.init_key = init_key
        self._groups: dict[NestedKey, DoneGroup] = {}
        """Group of done flags of each flag, by the key of the flag."""

    @property
    def init_keys(self) -> list[NestedKey]:
        """Key of the flag of each group of done flags."""
        self._bind_in_env()
        return list(self.out_keys)

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        groups = done_groups(output_spec["full_done_spec"])
        self._groups = {group.sibling(self.init_key): group for group in groups}
        self._set_keys([], list(self._groups))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for key, group in self._groups.items():
            write(next_tensordict, key, group.new_entry(False, torch.bool, next_tensordict))
        return next_tensordict

    def make_dict_step(self) -> DictStep | None:
        if len(self._groups) != 1:
            return None
        ((name, group),) = self._groups.items()
        if not isinstance(name, str) or group.device.type != "cpu":
            return None
        # Copying an array is the fastest way to create a tensor on the CPU.
        unset, tensor = np.zeros(group.shape, np.bool_).copy, torch.from_numpy

        def step(root: EntryMapping, fields: EntryMapping) -> None:
            fields[name] = tensor(unset())

        return step

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        for key, group in self._groups.items():
            flag = group.new_entry(True, torch.bool, tensordict_reset)
            rows = reset_rows(tensordict, key, flag)
            write(tensordict_reset, key, flag if rows is None else flag & rows)
        return tensordict_reset

    def make_chunk_kernel(self) -> ChunkKernel | None:
        return ChunkKernel(self._run_chunk, writes=tuple(self._groups), scan=True)

    def _run_chunk(self, chunk: Chunk) -> None:
        for key, group in self._groups.items():
            shape, device = group.shape, group.device
            chunk.steps[key] = torch.zeros((chunk.length, *shape), dtype=torch.bool, device=device)
            if chunk.times:
                flags = torch.ones((len(chunk.times), *shape), dtype=torch.bool, device=device)
                chunk.resets[key] = flags & chunk.reset_rows(key, flags)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the flags."""
        for key in self._groups:
            require_free_key(observation_spec, key)
        flags = {key: group.flag_spec() for key, group in self._groups.items()}
        return with_entries(observation_spec, flags)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Mark the first steps of a stored rollout, at the root and in ``next``, in place.

        Stored flags are kept.

        Args:
            tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

        Raises:
            ArgumentError: It has no time dim.
            KeyNotFoundError: It has no done flag to separate episodes.
        """
        if all(read(tensordict, key) is not None for key in self.out_keys):
            return tensordict
        for group in stored_groups(tensordict):
            key = group.sibling(self.init_key)
            if read(tensordict, key) is None:
                starts = group.starts(tensordict)
                tensordict.set(key, starts)
                tensordict.set(join_keys("next", key), torch.zeros_like(starts))
        return tensordict

    def __repr__(self) -> str:
        return f"InitTracker(keys=[{', '.join(repr(format_key(key)) for key in self.out_keys)}])"
