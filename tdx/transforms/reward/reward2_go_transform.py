"""Compute the discounted returns of stored episodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask
from tdx.core.transforms import StoredDataTransform, TimeBehavior
from tdx.core.transforms.episodes import episode_starts
from tdx.core.transforms.spec_maps import sum_dtype
from tdx.core.transforms.validation import check_finite
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, join_keys, normalize_key, split_key
from tdx.foundation.tensordicts import read


class Reward2GoTransform(StoredDataTransform):
    """Compute the discounted sum of the rewards from each step to the end of its episode.

    Returns of float16 and bfloat16 rewards have dtype float32, returns of integers and bools the
    default float dtype. They are computed in :meth:`inv`, when whole episodes ``[*B, T]`` are
    written to a replay buffer; the last step of the data counts as an end. Sampled data is not
    changed. An env cannot use this transform, since later rewards are not known.

    Args:
        gamma: Discount factor, from 0 to 1; a tensor broadcasts with the reward.
        in_keys: Rewards in the data; ``("next", "reward")`` by default.
        out_keys: Keys of the returns; the in-keys by default.
        done_key: Flag under ``next`` that ends an episode.

    Raises:
        ArgumentError: ``gamma`` is outside [0, 1], the numbers of keys differ, or the data has
            no time dim or no end of an episode.
        KeyNotFoundError: A reward or the flag is missing in the data.
        ChainError: The transform is put into an env.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import Reward2GoTransform
        >>> done = torch.tensor([[False], [True], [False], [True]])
        >>> stored = TensorDict(
        ...     {"next": {"reward": torch.ones(4, 1), "done": done}}, batch_size=[4]
        ... )
        >>> returns = Reward2GoTransform(gamma=0.5, out_keys=["reward_to_go"])
        >>> returns.inv(stored)["reward_to_go"].flatten()
        tensor([1.5000, 1.0000, 1.5000, 1.0000])
    """

    _is_verified = True
    ENV_ERR = "it needs whole episodes, but an env has only the steps so far"
    _refusal_hint = "append it to a replay buffer, or call its inv() on a rollout"

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self,
        gamma: float | Tensor | None = 1.0,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        done_key: NestedKey | None = "done",
    ) -> None:
        in_keys = [("next", "reward")] if in_keys is None else in_keys
        super().__init__(in_keys_inv=in_keys, out_keys_inv=out_keys)
        discount = check_finite(1.0 if gamma is None else gamma, "gamma")
        if bool(((discount < 0) | (discount > 1)).any()):
            raise ArgumentError(
                f"gamma must be from 0 to 1, got {gamma!r}", hint="for example gamma=0.99"
            )
        self.gamma: Tensor
        self.register_buffer("gamma", discount)
        self.done_key = normalize_key("done" if done_key is None else done_key)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the returns of stored episodes ``[*B, T]``, in place."""
        ends = self._ends(tensordict)
        for in_key, out_key in self._inverse_pairs:
            reward = read(tensordict, in_key)
            if reward is not None:
                tensordict.set(out_key, self._returns(reward, ends))
            elif not self._missing_tolerance:
                raise self._missing_key(in_key, tensordict)
        return tensordict

    def _ends(self, tensordict: TensorDictBase) -> Tensor:
        """Return which steps end an episode, bool ``[*B, T]``."""
        inside = split_key(self.done_key)[0] == "next"
        done_key = self.done_key if inside else join_keys("next", self.done_key)
        starts = episode_starts(tensordict, done_key)
        done = read(tensordict, done_key)
        if done is not None and not bool(done.any()):
            raise ArgumentError(
                "no episode ends in the data, so its returns are unknown",
                hint="store whole episodes, or mark the last step: rollout(set_truncated=True)",
            )
        return torch.cat([starts[..., 1:], torch.ones_like(starts[..., :1])], -1)

    def _returns(self, reward: Tensor, ends: Tensor) -> Tensor:
        """Compute returns by doubling: round ``n`` extends each sum to ``2 ** n`` rewards."""
        time = ends.ndim - 1
        total = reward if reward.is_floating_point() else reward.to(torch.get_default_dtype())
        total = total.to(sum_dtype(total.dtype))
        gamma = self.gamma.to(device=total.device, dtype=total.dtype)
        factor = torch.where(expand_mask(ends, total, ends.ndim), 0.0, gamma).expand_as(total)
        span, length = 1, total.shape[time]
        while span < length:
            known = length - span
            later = total.narrow(time, span, known) * factor.narrow(time, 0, known)
            total = torch.cat(
                [total.narrow(time, 0, known) + later, total.narrow(time, known, span)], time
            )
            further = factor.narrow(time, 0, known) * factor.narrow(time, span, known)
            factor = torch.cat([further, torch.zeros_like(factor.narrow(time, 0, span))], time)
            span *= 2
        return total.clone() if total is reward else total

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the data unchanged, since sampled data contains its returns."""
        return tensordict

    def __repr__(self) -> str:
        gamma = self.gamma.tolist()
        return f"Reward2GoTransform(gamma={gamma}, keys={self.in_keys_inv})"
