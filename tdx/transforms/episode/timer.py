"""Measure the time of policies, steps and resets."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.env_specs import batched_shape
from tdx.core.transforms import EnvOnlyTransform, TimeBehavior
from tdx.core.transforms.spec_maps import require_free_key, with_entries
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import write
from tdx.specs import Composite, Unbounded


class Timer(EnvOnlyTransform):
    """Write how long the policy, the step and the reset of upstream stages took, in seconds.

    Under ``next``, the times are those of the policy and of the step; the time of the reset is
    zero. After a reset, only the time of the reset is not zero. All rows of a batch have the same
    times.

    Args:
        out_keys: Keys of the times of steps, policies and resets. ``None``: the prefix with
            ``_step``, ``_policy`` and ``_reset``.
        time_key: Prefix of the keys.

    Raises:
        ArgumentError: There are not three keys.
        ChainError: The env already writes a key (when its specs are computed), or the transform
            is applied to stored data.

    Example:
        >>> from tdx import GymEnv, Timer, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), Timer())
        >>> bool((env.rollout(10)["next", "time_step"] > 0).all())
        True
    """

    why_not_exported = "it reads a clock"
    _is_verified = True
    STORED_ERR = "it measures the steps of an env, and stored data has none"

    time_behavior = TimeBehavior.CONTROL

    def __init__(self, out_keys: Sequence[NestedKey] | None = None, time_key: str = "time") -> None:
        keys = [f"{time_key}_{name}" for name in ("step", "policy", "reset")]
        super().__init__(in_keys=[], out_keys=keys if out_keys is None else out_keys)
        if len(self.out_keys) != 3:
            raise ArgumentError(
                f"Timer writes three times, got {len(self.out_keys)} out_keys",
                hint="name the times of steps, policies and resets, in this order",
            )
        self.time_key = time_key
        self._batch_size = torch.Size(())
        self._returned_at: float | None = None
        self._called_at: float | None = None
        self._policy_time = 0.0

    # Data

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        now = perf_counter()
        self._policy_time = 0.0 if self._returned_at is None else now - self._returned_at
        self._called_at = now
        return tensordict

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._called_at = perf_counter()
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._write_times(next_tensordict, self._elapsed(), self._policy_time, 0.0)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._write_times(tensordict_reset, 0.0, 0.0, self._elapsed())

    def _elapsed(self) -> float:
        """Return the time since the last call of the env, which returns now."""
        self._returned_at = now = perf_counter()
        return 0.0 if self._called_at is None else now - self._called_at

    def _write_times(self, tensordict: TensorDictBase, *times: float) -> TensorDictBase:
        shape = batched_shape(tensordict, self._batch_size, len(self._batch_size))
        for key, seconds in zip(self.out_keys, times, strict=True):
            value: Tensor = torch.full(shape, seconds, device=tensordict.device)
            write(tensordict, key, value)
        return tensordict

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._batch_size = output_spec.shape

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the times."""
        for key in self.out_keys:
            require_free_key(observation_spec, key)
        shape, device = observation_spec.shape, observation_spec.device
        times = {key: Unbounded(shape, device) for key in self.out_keys}
        return with_entries(observation_spec, times)

    def __repr__(self) -> str:
        return f"Timer(keys={self.out_keys})"
