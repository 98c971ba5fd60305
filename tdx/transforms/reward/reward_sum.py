"""Add up the rewards of an episode."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.envs.base.done_flags import as_row_mask
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, format_key, join_keys, key_parts, sibling_key
from tdx.specs import Composite, TensorSpec, Unbounded
from tdx.tensordicts import read
from tdx.transforms.base import RunningTransform
from tdx.transforms.base.chunk import Chunk, running_sum
from tdx.transforms.base.episodes import episode_starts
from tdx.transforms.base.key_pairs import missing_key
from tdx.transforms.base.spec_edits import shape_in, with_entries


class RewardSum(RunningTransform):
    """Write the sum of an episode's rewards so far; zero after a reset.

    The sum is an observation-like entry: it is there at the root and under ``next``, of the
    reward's shape. With several rewards each sum starts again with its own group's reset.

    Args:
        in_keys: the rewards read; every reward of the env by default.
        out_keys: the sums' keys; ``episode_reward`` beside ``reward`` by default.
        reset_keys: the reset masks, one for each reward; that of its group by default.

    Raises:
        ArgumentError: the numbers of keys differ.
        KeyNotFoundError: the env has no such reward (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
        >>> env.rollout(3)["next", "episode_reward"].flatten()
        tensor([1., 2., 3.])
    """

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        reset_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        if in_keys is None and out_keys is not None:
            in_keys = ["reward"]
        super().__init__(in_keys)
        self._own_keys = in_keys is None
        if in_keys is None:
            self._set_keys(["reward"], ["episode_reward"])
        else:
            self._set_keys(in_keys, self._sums(self.in_keys) if out_keys is None else out_keys)
        self.reset_keys = None if reset_keys is None else list(reset_keys)
        if self.reset_keys is not None and len(self.reset_keys) != len(self.in_keys):
            raise ArgumentError(
                f"{len(self.reset_keys)} reset_keys for {len(self.in_keys)} rewards",
                hint="give one for each reward",
            )
        self._reset_key_of = dict(zip(self.out_keys, self.reset_keys or (), strict=False))
        self._sum_specs: dict[NestedKey, TensorSpec] = {}
        self._batch_dims = 0

    @staticmethod
    def _sums(in_keys: Sequence[NestedKey]) -> list[NestedKey]:
        return [sibling_key(key, f"episode_{key_parts(key)[-1]}") for key in in_keys]

    def _keys_were_set(self) -> None:
        self._own_keys = False

    def _state_pairs(self) -> tuple[tuple[NestedKey, NestedKey], ...]:
        return self._pairs

    def _initial(self, key: NestedKey, tensordict_reset: TensorDictBase) -> Tensor:
        spec = self._sum_specs.get(key)
        if spec is not None:
            shape = shape_in(tensordict_reset, spec.shape, self._batch_dims)
            return torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        in_key = next(source for source, target in self._pairs if target == key)
        reward = tensordict_reset.get(in_key, None)
        if reward is None:
            return torch.zeros(*tensordict_reset.batch_size, 1, device=tensordict_reset.device)
        return torch.zeros_like(reward)

    def _advance(self, key: NestedKey, state: Tensor, value: Tensor | None) -> Tensor:
        assert value is not None
        return state + value

    def _over_chunk(
        self, chunk: Chunk, key: NestedKey, state: Tensor, initial: Tensor, values: Tensor | None
    ) -> Tensor:
        assert values is not None
        keys = key, self._reset_key_of.get(key, key)
        return running_sum(chunk, state, keys, initial, values)

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        rewards = output_spec["full_reward_spec"]
        if self._own_keys:
            in_keys = list(rewards.keys(True, True))
            self._set_keys(in_keys, self._sums(in_keys))
        self._sum_specs, self._batch_dims = {}, len(output_spec.shape)
        for in_key, out_key in self._pairs:
            spec = rewards.get(in_key, None)
            if spec is None:
                raise missing_key(in_key, list(rewards.keys(True, True)), "the reward spec")
            self._sum_specs[out_key] = Unbounded(
                shape=spec.shape, dtype=spec.dtype, device=spec.device
            )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sum the rewards of a stored rollout, at the root and in ``next``, in place.

        Sums that are there already stay.

        Args:
            tensordict: ``[*B, T]``, in time order along its last dim.

        Raises:
            ArgumentError: it has no dim of time.
            KeyNotFoundError: a reward is not there, or neither a done flag nor ``is_init``.
        """
        for in_key, out_key in self._pairs:
            if read(tensordict, out_key) is None:
                root, following = self._sums_over_time(tensordict, in_key)
                tensordict.set(out_key, root)
                if tensordict.get("next", None) is not None:
                    tensordict.set(join_keys("next", out_key), following)
        return tensordict

    def _sums_over_time(
        self, tensordict: TensorDictBase, in_key: NestedKey
    ) -> tuple[Tensor, Tensor]:
        """The sums before and after each step, ``[*B, T, ...]``."""
        reward = tensordict.get(join_keys("next", in_key), read(tensordict, in_key))
        if reward is None:
            raise self._missing(in_key, tensordict)
        starts = episode_starts(tensordict, join_keys("next", sibling_key(in_key, "done")))
        time_dim = tensordict.ndim - 1
        zero = torch.zeros_like(reward.select(time_dim, 0))
        before, after, state = [], [], zero
        for start, value in zip(starts.unbind(-1), reward.unbind(time_dim), strict=True):
            state = zero.where(as_row_mask(start, value, time_dim), state)
            before.append(state)
            state = state + value
            after.append(state)
        return torch.stack(before, time_dim), torch.stack(after, time_dim)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec, which stays as it is."""
        return reward_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with the sums."""
        return with_entries(observation_spec, self._sum_specs)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with the sums, which a step reads."""
        return with_entries(state_spec, self._sum_specs)

    def __repr__(self) -> str:
        return f"RewardSum(keys=[{', '.join(repr(format_key(key)) for key in self.in_keys)}])"
