"""Track the return that is left to reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.env_specs import batched_shape
from tdx.core.transforms import RunningTransform, TimeBehavior
from tdx.core.transforms.episodes import stored_starts
from tdx.core.transforms.spec_maps import sum_dtype, with_entries
from tdx.core.transforms.statistics import leaf_spec
from tdx.core.transforms.validation import check_choice, check_number
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, join_keys, normalize_key, sibling_key
from tdx.foundation.tensordicts import read
from tdx.specs import Composite, TensorSpec, Unbounded


class TargetReturn(RunningTransform):
    """Write the return that an episode should reach, from which rewards are subtracted.

    The target has the shape of the reward and is present at the root and under ``next``, like an
    observation. It starts at ``target_return`` after each reset.

    Args:
        target_return: Return to reach in an episode.
        mode: ``reduce`` subtracts the rewards so far, ``constant`` keeps the target.
        in_keys: Rewards to read; all rewards of the env by default.
        out_keys: Keys to write; ``target_return`` next to each reward by default.
        reset_key: Reset mask to follow; that of the reward's group by default.

    Raises:
        ArgumentError: ``target_return`` is not a number, the numbers of keys differ, or two
            targets have the same key.
        UnknownNameError: ``mode`` is unknown.
        KeyNotFoundError: The env has no such reward (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, TargetReturn, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), TargetReturn(10.0))
        >>> env.rollout(3)["target_return"].flatten()
        tensor([10.,  9.,  8.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.SCAN
    reset_key: NestedKey | None = None

    def __init__(
        self,
        target_return: float,
        mode: Literal["reduce", "constant"] = "reduce",
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        reset_key: NestedKey | None = None,
    ) -> None:
        target = check_number(target_return, "target_return", "for example 200.0")
        if target is None:
            raise ArgumentError("target_return must be a number", hint="for example 200.0")
        check_choice(mode, "mode", ("reduce", "constant"))
        if in_keys is None and out_keys is not None:
            in_keys = ["reward"]
        super().__init__(["reward"] if in_keys is None else in_keys)
        self._finds_keys = in_keys is None
        self.target_return, self.mode = target, mode
        self.reset_key = None if reset_key is None else normalize_key(reset_key)
        self._set_keys(self.in_keys, _target_keys(self.in_keys) if out_keys is None else out_keys)
        self._target_specs: dict[NestedKey, TensorSpec] = {}
        self._batch_dims = 0

    def _set_keys(
        self, in_keys: Sequence[NestedKey] | None, out_keys: Sequence[NestedKey] | None
    ) -> None:
        super()._set_keys(in_keys, out_keys)
        if self.reset_key is not None:
            self._reset_key_of = dict.fromkeys(self._out_keys, self.reset_key)

    def _on_keys_assigned(self) -> None:
        self._finds_keys = False

    # Kernel

    def _state_pairs(self) -> tuple[tuple[NestedKey, NestedKey], ...]:
        return self._pairs

    def _initial(self, key: NestedKey, tensordict_reset: TensorDictBase) -> Tensor:
        spec = self._target_specs.get(key)
        if spec is None:
            shape: torch.Size = torch.Size((*tensordict_reset.batch_size, 1))
            return torch.full(shape, self.target_return, device=tensordict_reset.device)
        shape = batched_shape(tensordict_reset, spec.shape, self._batch_dims)
        return torch.full(shape, self.target_return, dtype=spec.dtype, device=spec.device)

    def _increment(self, key: NestedKey, values: Tensor | None) -> Tensor:
        assert values is not None
        values = values.to(_target_dtype(values.dtype))
        return -values if self.mode == "reduce" else torch.zeros_like(values)

    # Stored data

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the targets of a stored rollout, at the root and in ``next``, in place.

        Args:
            tensordict: Stored rollout ``[*B, T]``, in time order along its last dim, with the
                rewards in ``next``.

        Raises:
            ArgumentError: It has no time dim.
            KeyNotFoundError: A reward is missing, or both a done flag and ``is_init`` are.
        """
        time_dim = tensordict.ndim - 1
        for in_key, out_key in self._pairs:
            reward = self._entry(tensordict, join_keys("next", in_key))
            starts = stored_starts(tensordict, self._reset_key_of.get(out_key, in_key))
            reward = reward.to(_target_dtype(reward.dtype))
            initial = torch.full_like(reward.select(time_dim, 0), self.target_return)
            before, after = self._scan_stored(out_key, reward, starts, initial, time_dim)
            for target, value in ((out_key, before), (join_keys("next", out_key), after)):
                if read(tensordict, target) is None:
                    tensordict.set(target, value)
        return tensordict

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if self._finds_keys:
            in_keys = list(map(normalize_key, output_spec["full_reward_spec"].keys(True, True)))
            self._set_keys(in_keys, _target_keys(in_keys))
        self._batch_dims = len(output_spec.shape)
        self._target_specs = {}
        for in_key, out_key in self._pairs:
            spec = leaf_spec(output_spec, in_key)
            self._target_specs[out_key] = Unbounded(
                shape=spec.shape, dtype=_target_dtype(spec.dtype), device=spec.device
            )

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Return the reward spec unchanged."""
        return reward_spec

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Return the done spec unchanged."""
        return done_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the targets."""
        return with_entries(observation_spec, self._target_specs)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec with the targets, which a step reads."""
        return with_entries(state_spec, self._target_specs)

    def __repr__(self) -> str:
        return f"TargetReturn({self.target_return:g}, {self.mode!r}, keys={self.in_keys})"


def _target_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a target: that of a sum, or the default dtype for integers."""
    return sum_dtype(dtype) if dtype.is_floating_point else torch.get_default_dtype()


def _target_keys(in_keys: Sequence[NestedKey]) -> list[NestedKey]:
    keys = [sibling_key(key, "target_return") for key in in_keys]
    if len(set(keys)) < len(keys):
        raise ArgumentError(
            "several rewards of one group would have the same target_return",
            hint="name the targets: out_keys=[...]",
        )
    return keys
