"""Returns over several steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import StoredDataTransform, TimeBehavior
from tdx.core.transforms.episodes import require_time_order
from tdx.core.transforms.spec_maps import normalize_keys
from tdx.core.transforms.validation import check_integer, check_number
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, join_keys, normalize_key
from tdx.foundation.tensordicts import read

DONE_KEYS = ("done", "terminated", "truncated")


class MultiStepTransform(StoredDataTransform):
    """Look ``n_steps`` ahead in data that is written to a replay buffer.

    Each reward becomes the discounted sum of the next ``n_steps`` rewards of its episode, and the
    other entries under ``next`` become those after these steps. Done flags are unchanged. The
    steps get the entries ``steps_to_next_obs``, ``gamma`` (the discount of what follows),
    ``nonterminal`` and ``("next", "original_reward")``.

    The last ``n_steps`` steps wait for the next ones: they are written with the next data, so
    the result does not depend on how the data is split. An env cannot use this transform.

    Args:
        n_steps: Number of steps to look ahead. May be changed between two writes.
        gamma: Discount factor.
        reward_keys: Rewards under ``next``; ``reward`` by default.
        done_key: Flag under ``next`` that ends an episode; ``done`` by default.
        done_keys: Entries under ``next`` to leave unchanged; ``done``, ``truncated`` and
            ``terminated`` by default.
        mask_key: Mask of the valid steps, if the data has one; ``mask`` by default.

    Raises:
        ArgumentError: ``n_steps`` is not an integer of at least 1, ``gamma`` is not a number, or
            the order of the data is random.
        KeyNotFoundError: A reward or the flag is missing in the data.
        ChainError: The transform is put into an env.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import MultiStepTransform
        >>> done = torch.zeros(5, 1, dtype=torch.bool)
        >>> stored = TensorDict({"next": {"reward": torch.ones(5, 1), "done": done}}, [5])
        >>> MultiStepTransform(2, gamma=0.5).inv(stored)["next", "reward"].flatten()
        tensor([1.5000, 1.5000, 1.5000])
    """

    _is_verified = True
    ENV_ERR = "it needs later steps, but an env has only the steps so far"

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_keys: Sequence[NestedKey] | None = None,
        done_key: NestedKey | None = None,
        done_keys: Sequence[NestedKey] | None = None,
        mask_key: NestedKey | None = None,
    ) -> None:
        super().__init__()
        self.n_steps = n_steps
        discount = check_number(gamma, "gamma", "for example 0.99")
        if discount is None:
            raise ArgumentError("gamma must be a number, got None", hint="for example 0.99")
        self.gamma = discount
        rewards = ["reward"] if reward_keys is None else reward_keys
        self.reward_keys = normalize_keys(rewards, "reward_keys")
        self.done_key = normalize_key("done" if done_key is None else done_key)
        unchanged = DONE_KEYS if done_keys is None else done_keys
        self.done_keys = normalize_keys(unchanged, "done_keys")
        self.mask_key = normalize_key("mask" if mask_key is None else mask_key)
        self._waiting: TensorDictBase | None = None

    @property
    def n_steps(self) -> int:
        """Number of steps to look ahead."""
        return self._n_steps

    @n_steps.setter
    def n_steps(self, value: int) -> None:
        self._n_steps = check_integer(value, "n_steps", 1, "for example n_steps=3")

    @property
    def invertible(self) -> bool:
        """Always true."""
        return True

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the steps ``[*B, T']`` whose next ``n_steps`` are known.

        For a single step without a time dim, return the step that it completes.
        """
        if not tensordict.ndim:
            ready = self._inv_call(tensordict.unsqueeze(0))
            return ready[0] if len(ready) == 1 else ready
        require_time_order(tensordict)
        if self._waiting is not None:
            tensordict = torch.cat([self._waiting, tensordict], -1)
        self._waiting = tensordict[..., -self.n_steps :].clone()
        return self._look_ahead(tensordict)[..., : -self.n_steps]

    def _look_ahead(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map stored steps ``[*B, T]``, of which the last ``n_steps`` see only what there is."""
        done = self._entry(tensordict, join_keys("next", self.done_key))
        done = done.reshape(*tensordict.batch_size, -1).any(-1)
        length = done.shape[-1]
        time = torch.arange(length, device=done.device)
        ends = torch.where(done, time, length - 1)
        nearest = ends.flip(-1).cummin(-1).values.flip(-1) if length else ends
        # Number of further steps that each step looks ahead, int64 [*B, T].
        ahead = (nearest - time).clamp_max(self.n_steps - 1)
        result = tensordict.clone(False)
        following: TensorDictBase = tensordict.get("next").clone(False)
        unchanged = following.select(*self.reward_keys, *self.done_keys, strict=False)
        moved = following.exclude(*self.reward_keys, *self.done_keys).gather(-1, time + ahead)
        following = unchanged.update(moved)
        for key in self.reward_keys:
            reward = self._entry(tensordict, join_keys("next", key))
            following.set("original_reward", reward)
            following.set(key, self._discounted_sum(reward, ahead))
        result.set("next", following)
        steps = ahead + 1
        is_cut = ahead == 0
        mask = read(tensordict, self.mask_key)
        if mask is not None:
            is_cut = is_cut | ~mask.reshape(ahead.shape)
        result.set("steps_to_next_obs", steps)
        result.set("gamma", self.gamma**steps)
        result.set("nonterminal", ~is_cut)
        return result

    def _discounted_sum(self, reward: Tensor, ahead: Tensor) -> Tensor:
        """Return the sum of the rewards of a step and the steps ahead, ``[*B, T, ...]``."""
        dim = ahead.ndim - 1
        ahead = ahead.reshape(*ahead.shape, *[1] * (reward.ndim - ahead.ndim))
        dtype = reward.dtype if reward.is_floating_point() else torch.get_default_dtype()
        total = reward.to(dtype, copy=True)
        for step in range(1, min(self.n_steps, reward.shape[dim])):
            later = reward.narrow(dim, step, reward.shape[dim] - step)
            counts = ahead.narrow(dim, 0, later.shape[dim]) >= step
            part = total.narrow(dim, 0, later.shape[dim])
            part.add_(torch.where(counts, later, 0), alpha=self.gamma**step)
        return total

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the data unchanged, since sampled data has looked ahead already."""
        return tensordict

    def __repr__(self) -> str:
        return f"MultiStepTransform({self.n_steps}, gamma={self.gamma:g}, keys={self.reward_keys})"
