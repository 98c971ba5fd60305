"""Hindsight experience replay."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.layout import Info
from tdx.data.slice_sampler import EpisodeBoundaries
from tdx.data.storage import TensorStorage, require_leaf
from tdx.data.tensordict_buffers import TensorDictReplayBuffer
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, format_key, join_keys, normalize_key
from tdx.foundation.tensordicts import read


class HindsightStrategy(StrEnum):
    """Which step the new goal of a step is taken from."""

    FUTURE = "future"
    """The step itself or a later one of its episode."""
    FINAL = "final"
    """The last step of its episode."""
    EPISODE = "episode"
    """Any step of its episode."""
    RANDOM = "random"
    """Any stored step."""


class HERReplayBuffer(TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` that relabels goals (hindsight experience replay).

    The first ``int(her_ratio * N)`` steps of a batch get a goal that was achieved in their
    episode, at the root and under ``next``, and the reward for it. Goals are those achieved under
    ``next``: they follow the action. Transforms of the buffer map the relabeled batch.

    Episodes are those of :class:`SliceSampler`: they end at ``end_key``, at the end of the stored
    data, and where a step does not continue the previous one.

    Args:
        reward_fn: Function from relabeled steps, a TensorDict ``[n]``, to their rewards, ``[n]``
            or ``[n, 1]``. The goal achieved by the action is under ``next``.
        her_ratio: Fraction of steps to relabel, from 0 to 1.
        strategy: Step whose achieved goal becomes the goal: ``future``, ``final``, ``episode``
            or ``random``.
        goal_key: Entry with the goal.
        achieved_goal_key: Entry with the achieved goal.
        reward_key: Entry of the reward.
        end_key: Flag of the last step of an episode.
        **kwargs: Arguments of :class:`TensorDictReplayBuffer`. The storage has to be one of
            tensors, such as :class:`LazyTensorStorage`.

    Raises:
        ArgumentError: ``her_ratio`` or ``strategy`` is not valid, or the storage is a list.

    Source:
        Andrychowicz et al., "Hindsight Experience Replay", 2017.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import HERReplayBuffer, LazyTensorStorage
        >>> def reward(steps):
        ...     return (steps["next", "achieved_goal"] == steps["next", "desired_goal"]).float()
        >>> place = torch.arange(4.0).unsqueeze(1)
        >>> following = TensorDict(
        ...     achieved_goal=place + 1,
        ...     desired_goal=torch.full((4, 1), 9.0),
        ...     reward=torch.zeros(4, 1),
        ...     done=place == 3,
        ...     batch_size=[4],
        ... )
        >>> steps = TensorDict(
        ...     achieved_goal=place, desired_goal=torch.full((4, 1), 9.0), next=following
        ... ).auto_batch_size_(1)
        >>> buffer = HERReplayBuffer(
        ...     reward, her_ratio=0.5, strategy="final", storage=LazyTensorStorage(9), batch_size=4
        ... )
        >>> _ = buffer.extend(steps)
        >>> buffer.sample()["desired_goal"].flatten()
        tensor([4., 4., 9., 9.])
    """

    def __init__(
        self,
        reward_fn: Callable[[TensorDictBase], Tensor],
        *,
        her_ratio: float = 0.8,
        strategy: HindsightStrategy | str = "future",
        goal_key: NestedKey = "desired_goal",
        achieved_goal_key: NestedKey = "achieved_goal",
        reward_key: NestedKey = ("next", "reward"),
        end_key: NestedKey = ("next", "done"),
        **kwargs: Any,
    ) -> None:
        if not 0 <= her_ratio <= 1:
            raise ArgumentError(f"her_ratio must be from 0 to 1, got {her_ratio}")
        try:
            self.strategy = HindsightStrategy(strategy)
        except ValueError:
            raise ArgumentError(
                f"unknown strategy {strategy!r}", hint=f"use one of {', '.join(HindsightStrategy)}"
            ) from None
        super().__init__(**kwargs)
        if not isinstance(self._storage, TensorStorage):
            raise ArgumentError(
                f"a {type(self._storage).__name__} has no episodes to take goals from",
                hint="pass storage=LazyTensorStorage(max_size)",
            )
        if self._sample_unit is not None:
            raise ArgumentError("a HERReplayBuffer relabels single steps: remove sample_unit")
        self.reward_fn = reward_fn
        self.her_ratio = her_ratio
        self.goal_key = normalize_key(goal_key)
        self.achieved_goal_key = normalize_key(achieved_goal_key)
        self.reward_key = normalize_key(reward_key)
        self._boundaries = EpisodeBoundaries(end_key, None, None, None, None)

    def _with_info(self, data: object, info: Info) -> Any:
        batch: TensorDictBase = super()._with_info(data, info)
        count = int(self.her_ratio * len(batch))
        if count:
            index = info["index"]
            parts = index if isinstance(index, tuple) else (index,)
            first = tuple(part[:count].cpu() for part in parts)
            self._relabel(batch, self._choose(first if len(first) > 1 else first[0]))
        return batch

    def _choose(self, index: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Return the number of the step whose achieved goal each step gets, int64 ``[n]``."""
        storage = self._storage
        assert isinstance(storage, TensorStorage)
        place, begin, end = self._boundaries.bounds_of(storage, storage.step_numbers(index))
        if self.strategy is HindsightStrategy.FINAL:
            begin = end - 1
        elif self.strategy is HindsightStrategy.FUTURE:
            begin = place
        elif self.strategy is HindsightStrategy.RANDOM:
            begin, end = torch.zeros_like(place), torch.full_like(place, len(storage))
        generator = self._sampler.generator
        device = "cpu" if generator is None else generator.device
        part = torch.rand(len(place), generator=generator, dtype=torch.float64, device=device)
        chosen = begin + (part.cpu() * (end - begin)).long()
        return self._boundaries.steps_at(storage, chosen)

    def _relabel(self, batch: TensorDictBase, sources: Tensor) -> None:
        """Write goals and rewards into the first steps of a batch.

        Raises:
            KeyNotFoundError: The data has no goals, achieved goals or rewards.
            ArgumentError: ``reward_fn`` returned another number of rewards.
        """
        count, storage = len(sources), self._storage
        assert isinstance(storage, TensorStorage)
        achieved_key = join_keys("next", self.achieved_goal_key)
        for argument, key in (("goal_key", self.goal_key), ("reward_key", self.reward_key)):
            require_leaf(storage, key, f"pass what is relabeled as {argument}")
        achieved = require_leaf(storage, achieved_key, "pass the new goals as achieved_goal_key")
        goal, rewards = read(batch, self.goal_key), read(batch, self.reward_key)
        goals = achieved.flatten(0, storage.ndim - 1)[sources.to(achieved.device)]
        following = read(batch, join_keys("next", self.goal_key))
        for entry in (goal, following):
            if entry is not None:
                entry[:count] = goals
        relabeled = rewards[:count]
        new = self.reward_fn(batch[:count])
        if new.numel() != relabeled.numel():
            raise ArgumentError(
                f"reward_fn returned rewards of shape {tuple(new.shape)} for {count} steps",
                hint=f"return {tuple(relabeled.shape)}",
            )
        relabeled.copy_(new.reshape(relabeled.shape))

    def __repr__(self) -> str:
        goal = f", strategy={self.strategy.value!r}, goal_key={format_key(self.goal_key)!r})"
        return super().__repr__()[:-1] + goal
