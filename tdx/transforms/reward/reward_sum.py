"""Add up the rewards of an episode."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask
from tdx.core.transforms import RunningTransform
from tdx.core.transforms.chunk import Chunk, running_sum
from tdx.core.transforms.episodes import stored_group_of
from tdx.core.transforms.key_pairs import missing_key
from tdx.core.transforms.spec_edits import shape_in, with_entries
from tdx.core.transforms.sums import sum_dtype
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, format_key, join_keys, normalize_key, sibling_key, split_key
from tdx.specs import Composite, TensorSpec, Unbounded
from tdx.tensordicts import read


class RewardSum(RunningTransform):
    """Write the sum of an episode's rewards so far; zero after a reset.

    The sum is an observation-like entry: it is present at the root and under ``next``, with the
    reward's shape. With several rewards each sum starts again with its own group's reset.
    Rewards of integers and bools are summed in int64, float16 and bfloat16 in float32, so that
    sums do not overflow.

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

    _is_verified = True

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
        return [sibling_key(key, f"episode_{split_key(key)[-1]}") for key in in_keys]

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
        return torch.zeros_like(reward, dtype=sum_dtype(reward.dtype))

    def _advance(self, key: NestedKey, state: Tensor, value: Tensor | None) -> Tensor:
        assert value is not None
        wide = sum_dtype(value.dtype)
        # A later stage may have cast the state at the root to a narrower dtype.
        return (state if state.dtype is wide else _widened(state, wide)) + value

    def _over_chunk(
        self, chunk: Chunk, key: NestedKey, state: Tensor, initial: Tensor, values: Tensor | None
    ) -> Tensor:
        assert values is not None
        keys = key, self._reset_key_of.get(key, key)
        wide = sum_dtype(values.dtype)
        parts = _widened(state, wide), keys, _widened(initial, wide), values.to(wide)
        return running_sum(chunk, *parts)

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
                shape=spec.shape, dtype=sum_dtype(spec.dtype), device=spec.device
            )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sum the rewards of a stored rollout, at the root and in ``next``, in place.

        An in-key that begins with ``next``, such as ``("next", "reward")``, gets one entry: the
        sums after each step, under its out-key. Sums that are already stored stay.

        Args:
            tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

        Raises:
            ArgumentError: It has no dim of time.
            KeyNotFoundError: A reward is missing, or a done flag and ``is_init`` both are.
        """
        for in_key, out_key in self._pairs:
            explicit = split_key(in_key)[0] == "next"
            places = [out_key]
            if not explicit and tensordict.get("next", None) is not None:
                places.append(join_keys("next", out_key))
            if all(read(tensordict, place) is not None for place in places):
                continue
            before, after = self._sums_over_time(tensordict, in_key, out_key)
            for place, sums in zip(places, [after] if explicit else [before, after], strict=False):
                if read(tensordict, place) is None:
                    tensordict.set(place, sums)
        return tensordict

    def _sums_over_time(
        self, tensordict: TensorDictBase, in_key: NestedKey, out_key: NestedKey
    ) -> tuple[Tensor, Tensor]:
        """The sums before and after each step, ``[*B, T, ...]``."""
        parts = split_key(in_key)
        inner = normalize_key(parts[1:]) if parts[0] == "next" else in_key
        reward = tensordict.get(join_keys("next", inner), read(tensordict, in_key))
        if reward is None:
            raise self._missing(in_key, tensordict)
        group = stored_group_of(tensordict, self._reset_key_of.get(out_key, inner))
        starts, time_dim = group.starts(tensordict), tensordict.ndim - 1
        reward = reward.to(sum_dtype(reward.dtype))
        zero = torch.zeros_like(reward.select(time_dim, 0))
        before, after, state = [], [], zero
        for start, value in zip(starts.unbind(time_dim), reward.unbind(time_dim), strict=True):
            state = zero.where(expand_mask(start, value, time_dim), state)
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


def _widened(state: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a state in at least the given dtype."""
    return state.to(torch.promote_types(state.dtype, dtype))
