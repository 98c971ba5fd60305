"""Samplers of data that loses its value: steps used before, and steps of older policies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tdx.core.transforms.validation import check_integer
from tdx.data.layout import Index, StateDict
from tdx.data.samplers import Sampler, on_device_of
from tdx.data.storage import Storage, require_leaf
from tdx.foundation.errors import ArgumentError, ChainError, StorageError
from tdx.foundation.keys import NestedKey, format_key, normalize_key

LEFT = "left"
_UNKNOWN = -1


class ConsumingSampler(Sampler):
    """Draws each step a limited number of times, then never again until it is overwritten.

    The steps of a batch are distinct; the last ones make a smaller batch. The length of the buffer
    is the number of steps that can still be drawn, and ``for batch in buffer`` ends with them.
    Consumed steps keep their memory until the storage, from the oldest step on, is overwritten.

    Args:
        max_sample_count: How often a step is drawn.

    Raises:
        ArgumentError: ``max_sample_count`` is not an integer of at least 1.

    Example:
        >>> import torch
        >>> from tdx import ConsumingSampler, LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(
        ...     storage=LazyTensorStorage(9), sampler=ConsumingSampler(), batch_size=4
        ... )
        >>> _ = buffer.extend(torch.arange(5))
        >>> buffer.sample().shape, len(buffer), buffer.sample().shape, len(buffer)
        (torch.Size([4]), 1, torch.Size([1]), 0)
    """

    draws_ahead = False

    def __init__(self, max_sample_count: int = 1) -> None:
        self.max_sample_count = check_integer(
            max_sample_count, "max_sample_count", 1, "pass how often a step is drawn"
        )
        self.reset()

    def reset(self) -> None:
        """Forget all steps."""
        super().reset()
        self._left = torch.zeros(0, dtype=torch.int64)

    def _grow(self, count: int) -> None:
        missing = count - len(self._left)
        if missing > 0:
            self._left = torch.cat([self._left, self._left.new_full((missing,), _UNKNOWN)])

    def attach_to(self, storage: Storage) -> None:
        """Handle each write to a storage; steps stored before can be drawn, too."""
        super().attach_to(storage)
        count = len(storage)
        self._grow(count)
        stored = self._left[:count]
        stored[stored == _UNKNOWN] = self.max_sample_count

    def mark_update(self, index: Index, *, storage: Storage | None = None) -> None:
        """Make written steps available."""
        steps = torch.as_tensor(index) if storage is None else storage.step_numbers(index)
        steps = steps.reshape(-1).cpu()
        if len(steps):
            self._grow(int(steps.max()) + 1)
            self._left[steps] = self.max_sample_count

    def available(self, storage: Storage) -> int:
        return int((self._left[: len(storage)] > 0).sum())

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, StateDict]:
        live = (self._left[: len(storage)] > 0).nonzero().squeeze(-1)
        if not len(live):
            raise ChainError(
                "Cannot sample from an empty storage: every step was consumed",
                hint="extend() the buffer before you sample",
            )
        device = "cpu" if self.generator is None else self.generator.device
        order = torch.randperm(len(live), generator=self.generator, device=device)
        steps = live[order[:batch_size].cpu()]
        self._left[steps] -= 1
        self.ran_out = not self.available(storage)
        return on_device_of(storage, steps), {}

    def state(self) -> StateDict:
        """Return how often each step can be drawn, int64 ``[n]``; -1 if it is not stored."""
        return {LEFT: self._left.clone()}

    def restore(self, state: StateDict) -> None:
        """Continue from what :meth:`state` returned.

        Raises:
            StorageError: It is not such a state.
        """
        super().restore(state)
        try:
            left = torch.as_tensor(state.get(LEFT, []), dtype=torch.int64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise StorageError(f"the state of the sampler is not valid: {error}") from error
        if left.ndim != 1 or bool((left < _UNKNOWN).any()):
            raise StorageError("the state of the sampler is not valid", hint="save it again")
        self._left = left.to("cpu", copy=True)

    def __repr__(self) -> str:
        return f"ConsumingSampler(max_sample_count={self.max_sample_count})"


def _inverse(staleness: Tensor) -> Tensor:
    return 1.0 / (staleness.clamp(min=0.0) + 1.0)


class StalenessAwareSampler(Sampler):
    """Draws steps of newer policies more often, with replacement, and leaves out too old ones.

    The staleness of a step is ``consumer_version`` minus the version of the policy that collected
    it, an entry of the data. Set ``consumer_version`` to the version that is being trained.
    Batches have an entry ``staleness`` ``[N]``.

    Args:
        max_staleness: Largest staleness of a step that is drawn; -1: no limit.
        staleness_weight_fn: Function from staleness ``[n]``, float64, to weights of at least 0;
            ``1 / (staleness + 1)`` by default, at most 1.
        version_key: Entry with the version, one number per step.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LazyTensorStorage, StalenessAwareSampler, TensorDictReplayBuffer
        >>> sampler = StalenessAwareSampler(max_staleness=2)
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(9), sampler=sampler, batch_size=4
        ... )
        >>> _ = buffer.extend(TensorDict(policy_version=torch.arange(9), batch_size=[9]))
        >>> sampler.consumer_version = 9
        >>> bool((buffer.sample()["policy_version"] >= 7).all())
        True
    """

    changes_when_drawing = False

    def __init__(
        self,
        max_staleness: int = -1,
        staleness_weight_fn: Callable[[Tensor], Tensor] | None = None,
        version_key: NestedKey = "policy_version",
    ) -> None:
        self.max_staleness = max_staleness
        self.version_key = normalize_key(version_key)
        self.consumer_version = 0
        """Version of the policy that is trained."""
        self._weight = staleness_weight_fn or _inverse

    def increment_consumer_version(self) -> None:
        """Increment ``consumer_version``, after an update of the policy."""
        self.consumer_version += 1

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor, StateDict]:
        versions = require_leaf(
            storage,
            self.version_key,
            "store the version of the policy with each step, in a LazyTensorStorage, or pass "
            "version_key",
        )
        count = len(storage)
        versions = versions[: storage.rows].reshape(count, -1)[:, 0].cpu()
        staleness = self.consumer_version - versions.double()
        weights = self._weight(staleness).double()
        if weights.shape != staleness.shape or bool((weights < 0).any()):
            raise ArgumentError(
                f"staleness_weight_fn must return {count} weights of at least 0, one per step"
            )
        if self.max_staleness >= 0:
            weights = weights.where(staleness <= self.max_staleness, 0.0)
        total = weights.cumsum(0)
        if not total[-1] > 0:
            raise ChainError(
                f"no step can be drawn: the staleness is {float(staleness.min()):g} or more, with "
                f"max_staleness={self.max_staleness}",
                hint="collect new data, or raise max_staleness",
            )
        device = "cpu" if self.generator is None else self.generator.device
        part = torch.rand(
            batch_size, generator=self.generator, dtype=torch.float64, device=device
        ).cpu()
        steps = torch.searchsorted(total, part * total[-1], right=True)
        # Rounding may give the end of the last step.
        steps = steps.clamp(max=int(weights.nonzero()[-1]))
        info = {"staleness": staleness[steps].float().to(storage.device)}
        return on_device_of(storage, steps), {"info": info}

    def state(self) -> StateDict:
        """Return ``consumer_version`` and ``max_staleness``."""
        return {"consumer_version": self.consumer_version, "max_staleness": self.max_staleness}

    def restore(self, state: StateDict) -> None:
        """Continue from what :meth:`state` returned.

        Raises:
            StorageError: It is not such a state.
        """
        super().restore(state)
        version = state.get("consumer_version", self.consumer_version)
        limit = state.get("max_staleness", self.max_staleness)
        if not (isinstance(version, (int, float)) and isinstance(limit, (int, float))):
            raise StorageError("the state of the sampler is not valid", hint="save it again")
        self.consumer_version, self.max_staleness = version, limit  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"StalenessAwareSampler(max_staleness={self.max_staleness}, "
            f"version_key={format_key(self.version_key)!r})"
        )
