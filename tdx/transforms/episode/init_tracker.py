"""Mark the first step of every episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from tdx.core.transforms import TimeBehaviour, Transform
from tdx.core.transforms.chunk import Chunk, TimeForm
from tdx.core.transforms.episodes import stored_groups
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.spec_edits import (
    DoneGroup,
    done_groups,
    refuse_taken,
    shape_in,
    with_entries,
)
from tdx.core.transforms.transform import Entries, RowStep
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, format_key, join_keys
from tdx.specs import Categorical, Composite
from tdx.tensordicts import read, write


class InitTracker(Transform):
    """Write a flag that is true right after a reset and false after every step.

    There is one flag beside each group of done flags, of their shape.

    Args:
        init_key: the flag's name.

    Raises:
        ArgumentError: ``init_key`` is no string.
        ChainError: the env already writes that key (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, InitTracker, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
        >>> env.rollout(3)["is_init"].flatten()
        tensor([ True, False, False])
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.SCAN

    def __init__(self, init_key: str = "is_init") -> None:
        if not isinstance(init_key, str):
            raise ArgumentError(
                f"init_key must be a string, got {init_key!r}",
                hint="nested flags get the name beside their done flags by themselves",
            )
        super().__init__(in_keys=[], out_keys=[init_key])
        self.init_key = init_key
        self._groups: tuple[DoneGroup, ...] = ()
        self._batch_dims = 0
        self._flags: tuple[tuple[NestedKey, torch.Size, torch.device], ...] = ()

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._groups = done_groups(output_spec["full_done_spec"])
        self._batch_dims = len(output_spec.shape)
        self._flags = tuple(
            (group.beside(self.init_key), group.shape, group.device) for group in self._groups
        )
        self._set_keys([], [key for key, _, _ in self._flags])

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for key, shape, device in self._flags:
            shape = shape_in(next_tensordict, shape, self._batch_dims)
            write(next_tensordict, key, torch.zeros(shape, dtype=torch.bool, device=device))
        return next_tensordict

    def _row_step(self) -> RowStep | None:
        if len(self._flags) != 1:
            return None
        ((key, shape, device),) = self._flags
        if not isinstance(key, str) or device.type != "cpu":
            return None
        name = key
        # A copy of an array is the cheapest way to a new tensor on the CPU.
        unset, tensor = np.zeros(shape, np.bool_).copy, torch.from_numpy

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            fields[name] = tensor(unset())

        return step

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        for key, shape, device in self._flags:
            shape = shape_in(tensordict_reset, shape, self._batch_dims)
            begun = torch.ones(shape, dtype=torch.bool, device=device)
            rows = reset_rows(tensordict, key, begun)
            write(tensordict_reset, key, begun if rows is None else begun & rows)
        return tensordict_reset

    def _time_form(self) -> TimeForm | None:
        return TimeForm(self._mark, writes=tuple(key for key, _, _ in self._flags), scan=True)

    def _mark(self, chunk: Chunk) -> None:
        for key, shape, device in self._flags:
            chunk.steps[key] = torch.zeros((chunk.length, *shape), dtype=torch.bool, device=device)
            if chunk.times:
                begun = torch.ones((len(chunk.times), *shape), dtype=torch.bool, device=device)
                chunk.resets[key] = begun & chunk.reset_rows(key, begun)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with the flags."""
        for group in self._groups:
            refuse_taken(observation_spec, group.beside(self.init_key))
        return with_entries(
            observation_spec,
            {
                key: Categorical(2, shape=shape, dtype=torch.bool, device=device)
                for key, shape, device in self._flags
            },
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Mark the first steps of a stored rollout, at the root and in ``next``, in place.

        Flags that are already stored stay.

        Args:
            tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

        Raises:
            ArgumentError: It has no dim of time.
            KeyNotFoundError: It has no done flag to tell episodes apart.
        """
        if all(read(tensordict, key) is not None for key in self.out_keys):
            return tensordict
        for group in stored_groups(tensordict):
            key = group.beside(self.init_key)
            if read(tensordict, key) is None:
                starts = group.starts(tensordict)
                tensordict.set(key, starts)
                tensordict.set(join_keys("next", key), torch.zeros_like(starts))
        return tensordict

    def __repr__(self) -> str:
        return f"InitTracker(keys=[{', '.join(repr(format_key(key)) for key in self.out_keys)}])"
