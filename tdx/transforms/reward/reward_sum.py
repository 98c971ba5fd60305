"""Sum the rewards of an episode."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.env_specs import batched_shape
from tdx.core.transforms import RunningTransform, TimeBehavior
from tdx.core.transforms.episodes import stored_starts
from tdx.core.transforms.kernels import ChunkKernel
from tdx.core.transforms.spec_maps import missing_key_error, sum_dtype, with_entries
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, SpecError, Where
from tdx.foundation.keys import (
    NestedKey,
    format_key,
    join_keys,
    normalize_key,
    sibling_key,
    split_key,
)
from tdx.foundation.tensordicts import delete, read
from tdx.specs import Composite, TensorSpec, Unbounded


class RewardSum(RunningTransform):
    """Write the sum of an episode's rewards so far, which is zero after a reset.

    The sum has the shape of the reward and is present at the root and under ``next``, like an
    observation. If there are several rewards, each sum follows the resets of its own group.
    Sums do not overflow: integer and bool rewards are summed in int64, float16 and bfloat16 rewards
    in float32.

    Args:
        in_keys: Rewards to read; all rewards of the env by default.
        out_keys: Keys to write; ``episode_reward`` for ``reward`` by default.
        reset_keys: Reset mask to follow for each reward; that of its group by default.
        reward_spec: Declare the sums as rewards instead of observations.

    Raises:
        ArgumentError: The numbers of keys differ.
        KeyNotFoundError: The env has no such reward (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
        >>> env.rollout(3)["next", "episode_reward"].flatten()
        tensor([1., 2., 3.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.SCAN

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        reset_keys: Sequence[NestedKey] | None = None,
        *,
        reward_spec: bool = False,
    ) -> None:
        if in_keys is None and out_keys is not None:
            in_keys = ["reward"]
        super().__init__(in_keys)
        self._finds_keys = in_keys is None
        if in_keys is None:
            self._set_keys(["reward"], ["episode_reward"])
        else:
            self._set_keys(in_keys, _sum_keys(self.in_keys) if out_keys is None else out_keys)
        self.reset_keys = None if reset_keys is None else list(reset_keys)
        self.reward_spec = reward_spec
        if not self._finds_keys:
            self._pair_reset_keys()
        self._sum_specs: dict[NestedKey, TensorSpec] = {}
        self._batch_dims = 0

    def _pair_reset_keys(self) -> None:
        self._reset_key_of = dict(zip(self.out_keys, self.reset_keys or (), strict=False))

    def _check_reset_keys(self) -> None:
        if self.reset_keys is not None and len(self.reset_keys) != len(self.in_keys):
            raise ArgumentError(
                f"{len(self.reset_keys)} reset_keys for {len(self.in_keys)} rewards",
                hint="give one for each reward",
            )

    def _on_keys_assigned(self) -> None:
        self._finds_keys = False

    def _state_pairs(self) -> tuple[tuple[NestedKey, NestedKey], ...]:
        return self._pairs

    def _initial(self, key: NestedKey, tensordict_reset: TensorDictBase) -> Tensor:
        spec = self._sum_specs.get(key)
        if spec is not None:
            shape = batched_shape(tensordict_reset, spec.shape, self._batch_dims)
            return torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        in_key = next(source for source, target in self._pairs if target == key)
        reward = tensordict_reset.get(in_key, None)
        if reward is None:
            return torch.zeros(*tensordict_reset.batch_size, 1, device=tensordict_reset.device)
        return torch.zeros_like(reward, dtype=sum_dtype(reward.dtype))

    def _increment(self, key: NestedKey, values: Tensor | None) -> Tensor:
        assert values is not None
        dtype = sum_dtype(values.dtype)
        return values if values.dtype is dtype else values.to(dtype)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        self._check_reset_keys()
        result = super()._reset(tensordict, tensordict_reset)
        for key in self.out_keys if self.reward_spec else ():
            delete(result, key)  # A reset returns no rewards.
        return result

    def make_chunk_kernel(self) -> ChunkKernel | None:
        return None if self.reward_spec else super().make_chunk_kernel()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sum the rewards of a stored rollout, at the root and in ``next``, in place.

        An in-key that begins with ``next``, such as ``("next", "reward")``, has a single output:
        the sums after each step, under its out-key; without flags of episodes, each row is one
        episode. Stored sums are kept.

        Args:
            tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

        Raises:
            StoredDataError: It has no time dim.
            KeyNotFoundError: A reward is missing, or both a done flag and ``is_init`` are.
        """
        for in_key, out_key in self._pairs:
            explicit = split_key(in_key)[0] == "next"
            targets = [out_key]
            if not explicit and tensordict.get("next", None) is not None:
                targets.append(join_keys("next", out_key))
            if all(read(tensordict, target) is not None for target in targets):
                continue
            before, after = self._stored_sums(tensordict, in_key, out_key)
            for target, sums in zip(
                targets, [after] if explicit else [before, after], strict=False
            ):
                if read(tensordict, target) is None:
                    tensordict.set(target, sums)
        return tensordict

    def _stored_sums(
        self, tensordict: TensorDictBase, in_key: NestedKey, out_key: NestedKey
    ) -> tuple[Tensor, Tensor]:
        """Return the sums before and after each step, ``[*B, T, ...]``."""
        parts = split_key(in_key)
        root_key = normalize_key(parts[1:]) if parts[0] == "next" else in_key
        reward = tensordict.get(join_keys("next", root_key), read(tensordict, in_key))
        if reward is None:
            raise self._missing_key(in_key, tensordict)
        time_dim = tensordict.ndim - 1
        reward = reward.to(sum_dtype(reward.dtype))
        initial = torch.zeros_like(reward.select(time_dim, 0))
        try:
            starts = stored_starts(tensordict, self._reset_key_of.get(out_key, root_key))
        except KeyNotFoundError:
            if parts[0] != "next":
                raise
            starts = torch.zeros_like(reward, dtype=torch.bool)
            starts.select(time_dim, 0).fill_(True)
        return self._scan_stored(out_key, reward, starts, initial, time_dim)

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        rewards = output_spec["full_reward_spec"]
        if self._finds_keys:
            in_keys = list(rewards.keys(True, True))
            self._set_keys(in_keys, _sum_keys(in_keys))
            self._pair_reset_keys()
        self._check_reset_keys()
        self._sum_specs, self._batch_dims = {}, len(output_spec.shape)
        for in_key, out_key in self._pairs:
            spec = rewards.get(in_key, None)
            if spec is None:
                raise missing_key_error(in_key, list(rewards.keys(True, True)), "the reward spec")
            if -1 in spec.shape:
                raise SpecError(
                    "a step returns an unknown number of rewards, whose sum a reset cannot return",
                    hint="put RewardSum before the stage that adds this dim",
                    where=Where(key=in_key),
                )
            self._sum_specs[out_key] = Unbounded(
                shape=spec.shape, dtype=sum_dtype(spec.dtype), device=spec.device
            )

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Return the reward spec, with the sums if they are declared as rewards."""
        return with_entries(reward_spec, self._sum_specs) if self.reward_spec else reward_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the sums, unless they are declared as rewards."""
        return (
            observation_spec
            if self.reward_spec
            else with_entries(observation_spec, self._sum_specs)
        )

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec with the sums, which a step reads."""
        return state_spec if self.reward_spec else with_entries(state_spec, self._sum_specs)

    def __repr__(self) -> str:
        return f"RewardSum(keys=[{', '.join(repr(format_key(key)) for key in self.in_keys)}])"


def _sum_keys(in_keys: Sequence[NestedKey]) -> list[NestedKey]:
    return [sibling_key(key, f"episode_{split_key(key)[-1]}") for key in in_keys]
