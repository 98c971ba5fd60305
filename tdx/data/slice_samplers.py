"""Slices of episodes by priority, and without replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tdx.data.prioritized_sampler import WEIGHT, PrioritizedSampler
from tdx.data.samplers import SamplerWithoutReplacement
from tdx.data.slice_sampler import Plan, SliceSampler, Span
from tdx.data.storage import Storage
from tdx.data.tensor_storage import TensorStorage
from tdx.foundation.keys import NestedKey


class SliceSamplerWithoutReplacement(SliceSampler):
    """Draws one slice of each episode per pass; its start in the episode is random.

    The last batch of a pass has fewer slices. A write that changes the number of episodes starts
    a new pass.

    Args:
        num_slices: Number of slices in a batch; their length follows from the batch size.
        slice_len: Length of each slice; their number follows from the batch size.
        drop_last: Skip a last batch with fewer slices.
        end_key: See :class:`SliceSampler`, as the other arguments.
        end_keys: See :class:`SliceSampler`.
        traj_key: See :class:`SliceSampler`.
        ends: See :class:`SliceSampler`.
        trajectories: See :class:`SliceSampler`.
        truncated_key: See :class:`SliceSampler`.
        init_key: See :class:`SliceSampler`.
        strict_length: See :class:`SliceSampler`.
        shuffle: Shuffle the episodes in each pass.
        compile: No effect.
        use_gpu: No effect.
        replacement: No effect.

    Raises:
        ArgumentError: As in :class:`SliceSampler`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LazyTensorStorage, ReplayBuffer, SliceSamplerWithoutReplacement
        >>> sampler = SliceSamplerWithoutReplacement(slice_len=2, traj_key="episode")
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=4)
        >>> episode = torch.arange(3).repeat_interleave(3)
        >>> _ = buffer.extend(TensorDict(episode=episode, batch_size=[9]))
        >>> [len(batch) for batch in buffer]
        [4, 2]
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        traj_key: NestedKey | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        truncated_key: NestedKey | None = ("next", "truncated"),
        init_key: NestedKey | None = "is_init",
        strict_length: bool = True,
        shuffle: bool = True,
        compile: bool | dict[str, Any] = False,
        use_gpu: torch.device | bool = False,
        replacement: bool = False,
    ) -> None:
        super().__init__(
            num_slices=num_slices,
            slice_len=slice_len,
            end_key=end_key,
            end_keys=end_keys,
            traj_key=traj_key,
            ends=ends,
            trajectories=trajectories,
            truncated_key=truncated_key,
            init_key=init_key,
            strict_length=strict_length,
        )
        self.drop_last, self.shuffle = drop_last, shuffle
        self._pass = SamplerWithoutReplacement(drop_last, shuffle)
        self._episodes = 0

    def _choose(
        self, storage: TensorStorage, plan: Plan, count: int
    ) -> tuple[Tensor, Tensor, dict[Any, Tensor]]:
        if self._episodes != len(plan.first):
            self._pass.reset()
        self._episodes = len(plan.first)
        self._pass.generator = self.generator
        chosen = self._pass.take(self._episodes, count).cpu()
        self.ran_out = self._pass.ran_out
        part = self._fractions(len(chosen), torch.device("cpu"))
        return chosen, self._starts_of(plan, chosen, part), {}

    def reset(self) -> None:
        """Start a new pass with the next batch."""
        super().reset()
        self._pass.reset()

    def state(self) -> dict[str, Any]:
        """Return the episodes that the pass has left, int64 ``[n]``."""
        return self._pass.state() | {"episodes": self._episodes}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._pass.restore(state)
        self._episodes = int(state.get("episodes", 0))


SliceSampler._without_replacement = SliceSamplerWithoutReplacement


class PrioritizedSliceSampler(SliceSampler, PrioritizedSampler):
    """Draws slices whose first steps are drawn in proportion to their priorities.

    Only steps at which a slice can start are drawn. Each step of a slice has the importance
    weight of its first step.

    Args:
        max_capacity: See :class:`PrioritizedSampler`, as the next arguments.
        alpha: See :class:`PrioritizedSampler`.
        beta: See :class:`PrioritizedSampler`.
        eps: See :class:`PrioritizedSampler`.
        dtype: See :class:`PrioritizedSampler`.
        reduction: See :class:`PrioritizedSampler`.
        num_slices: See :class:`SliceSampler`, as the next arguments.
        slice_len: See :class:`SliceSampler`.
        end_key: See :class:`SliceSampler`.
        end_keys: See :class:`SliceSampler`.
        traj_key: See :class:`SliceSampler`.
        ends: See :class:`SliceSampler`.
        trajectories: See :class:`SliceSampler`.
        cache_values: No effect.
        truncated_key: See :class:`SliceSampler`.
        init_key: See :class:`SliceSampler`.
        strict_length: See :class:`SliceSampler`.
        compile: No effect.
        span: See :class:`SliceSampler`; slices cannot cross the start of an episode. Episodes
            shorter than a slice are drawn too.
        max_priority_within_buffer: See :class:`PrioritizedSampler`.

    Raises:
        ArgumentError: As in both classes.
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        traj_key: NestedKey | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        cache_values: bool = False,
        truncated_key: NestedKey | None = ("next", "truncated"),
        init_key: NestedKey | None = "is_init",
        strict_length: bool = True,
        compile: bool | dict[str, Any] = False,
        span: Span = False,
        max_priority_within_buffer: bool = False,
    ) -> None:
        SliceSampler.__init__(
            self,
            num_slices=num_slices,
            slice_len=slice_len,
            end_key=end_key,
            end_keys=end_keys,
            traj_key=traj_key,
            ends=ends,
            trajectories=trajectories,
            cache_values=cache_values,
            truncated_key=truncated_key,
            init_key=init_key,
            strict_length=strict_length,
            span=(False, span[1] if isinstance(span, (tuple, list)) else span),  # type: ignore[arg-type]
        )
        self._skips_short = strict_length and not self.span[1]
        PrioritizedSampler.__init__(
            self, max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer
        )

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        steps, notes = SliceSampler.draw(self, storage, batch_size)
        weights = notes["info"][WEIGHT]
        lengths = notes.get("lengths", len(steps) // len(weights))
        if isinstance(lengths, Tensor):
            lengths = lengths.to(weights.device)
        notes["info"] = {WEIGHT: torch.repeat_interleave(weights, lengths)}
        return steps, notes

    def _choose(
        self, storage: TensorStorage, plan: Plan, count: int
    ) -> tuple[Tensor, Tensor, dict[Any, Tensor]]:
        if not any(each is self for each in storage.listeners):
            self.fill_missing(storage)
        counts = plan.starts.long()
        episodes = torch.repeat_interleave(torch.arange(len(counts)), counts)
        before = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        offsets = torch.arange(len(episodes)) - before
        numbers = self._numbers(storage, plan, episodes, offsets.unsqueeze(1)).squeeze(1)
        sums = torch.from_numpy(self._sum_tree[numbers.numpy()]).cumsum(0)
        mass = self._fractions(count, torch.device("cpu")) * sums[-1]
        chosen = torch.searchsorted(sums, mass, right=True).clamp(max=len(sums) - 1)
        weights = self.weights(numbers[chosen].numpy(), storage)
        return episodes[chosen], offsets[chosen], {WEIGHT: weights}

    def __repr__(self) -> str:
        return f"{SliceSampler.__repr__(self)[:-1]}, alpha={self.alpha}, beta={self.beta})"
