"""Replay buffers of TensorDicts, and buffers with priorities."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.buffer import ReplayBuffer, build_part
from tdx.data.layout import Info, to_time_first
from tdx.data.prioritized_sampler import PrioritizedSampler
from tdx.data.sample_units import ANCHOR, VALID
from tdx.data.storage import ListStorage, Storage
from tdx.data.writers import reduce_elements
from tdx.foundation.errors import ChainError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.tensordicts import read, write


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer of TensorDicts whose batches contain the positions of their steps.

    With a :class:`PrioritizedSampler` they also contain importance weights, and
    :meth:`update_tensordict_priority` updates the priorities from a batch.

    Args:
        priority_key: Entry with the priority of each step. Written data that has it sets
            priorities.
        **kwargs: Arguments of :class:`ReplayBuffer`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(9),
        ...     sampler=SamplerWithoutReplacement(shuffle=False),
        ...     batch_size=4,
        ... )
        >>> _ = buffer.extend(TensorDict(reward=torch.ones(9, 1), batch_size=[9]))
        >>> buffer.sample()["index"]
        tensor([0, 1, 2, 3])
    """

    def __init__(self, *, priority_key: NestedKey = "td_error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.priority_key = normalize_key(priority_key)

    def extend(self, data: object, *, update_priority: bool | None = None) -> Tensor:
        index, written = self._write(data, several=True)
        priority = self._priority(data, written)
        if update_priority is not False and priority is not None and len(index):
            ndim = self._storage.ndim
            time_first = to_time_first(priority, self.dim_extend).flatten(0, ndim - 1)
            self.update_priority(index, self._reduce(time_first))
        return cast(Tensor, index)

    def add(self, data: object) -> int | Tensor | None:
        index: int | Tensor | None
        index, written = self._write(data, several=False)
        priority = self._priority(data, written)
        if index is None or priority is None or (isinstance(index, Tensor) and not len(index)):
            return index
        rows = priority.unsqueeze(0) if isinstance(index, int) else priority
        self.update_priority(index, self._reduce(rows))
        return index

    def _priority(self, data: object, written: object) -> Tensor | None:
        """Return the priorities of written steps, which may be others than those of the data."""
        if not isinstance(self._sampler, PrioritizedSampler):
            return None
        if not isinstance(data, TensorDictBase) or not isinstance(written, TensorDictBase):
            return None
        priority = read(written, self.priority_key)
        if priority is None and written.batch_size == data.batch_size:  # a transform dropped it
            priority = read(data, self.priority_key)
        result: Tensor | None = priority
        return result

    def _reduce(self, priority: Tensor) -> Tensor:
        """Return one priority per step, ``[N]``."""
        return reduce_elements(priority.reshape(len(priority), -1), self._reduction)

    @property
    def _reduction(self) -> str:
        return self._sampler.reduction if isinstance(self._sampler, PrioritizedSampler) else "max"

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of the steps of a batch.

        Args:
            data: Batch with ``index`` and the entry ``priority_key``, of any shape. Steps without
                the entry get the default priority.
        """
        if not isinstance(self._sampler, PrioritizedSampler):
            return
        index, priority = data.get("index"), read(data, self.priority_key)
        anchors = None if priority is None else self._anchor_reduced_priority(data, priority)
        if anchors is not None:
            self.update_priority(*anchors)
            return
        if self._storage.ndim > 1:
            index = index.reshape(-1, self._storage.ndim)
        elif index.ndim > 1 and bool(
            (index == index.flatten(1)[:, :1].view_as(index[:, :1])).all()
        ):
            index = index.flatten(1)[:, 0]
        else:
            index = index.reshape(-1)
        if priority is None:
            self.update_priority(index, self._sampler.default_priority)
        else:
            self.update_priority(index, self._reduce(priority.reshape(len(index), -1)))

    def _anchor_reduced_priority(
        self, data: TensorDictBase, priority: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Return the anchors of the windows in a batch, and the largest priority of their steps.

        ``None`` if the batch has no windows. Steps outside the episode do not count.
        """
        anchors = None if self._sample_unit is None else read(data, ANCHOR)
        if anchors is None:
            return None
        anchors = anchors.reshape(-1, self._storage.ndim)
        valid = data.get(VALID, torch.ones(len(anchors), dtype=torch.bool)).reshape(-1)
        anchors, window = anchors[valid].unique(dim=0, return_inverse=True)
        values = reduce_elements(priority.reshape(len(valid), -1)[valid], self._reduction)
        largest = values.new_zeros(len(anchors)).scatter_reduce(
            0, window, values, "amax", include_self=False
        )
        return (anchors if self._storage.ndim > 1 else anchors[:, 0]), largest

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
    ) -> Any:
        """Sample a batch of steps and map it by the transforms.

        Args:
            batch_size: Number of steps. ``None``: that of the buffer.
            return_info: Also return the positions and entries of the sampler as a dict.
            include_info: No effect: batches always contain them.

        Returns:
            Batch ``[N, ...]``; or the batch and the dict.

        Raises:
            ArgumentError: No batch size is given, or the sampler does not support it.
            ChainError: The buffer is empty, or has other data than TensorDicts.
        """
        return super().sample(batch_size, return_info)

    def _with_info(self, data: object, info: Info) -> Any:
        if not isinstance(data, TensorDictBase):
            raise ChainError(
                f"the batches are {type(data).__name__} instead of TensorDicts",
                hint="use ReplayBuffer, which stores data of any kind",
            )
        for key, value in info.items():
            entry = torch.stack(value, -1) if isinstance(value, tuple) else value
            if data.ndim == 1 and key == "index":
                write(data, key, entry)
                continue
            # The same for all elements of the other batch dims.
            missing = data.ndim - entry.ndim
            if missing > 0:
                entry = entry.reshape(*entry.shape, *[1] * missing).expand(data.shape)
            data.set(key, entry)
        return data

    def _info_keys(self, info: Info) -> Collection[str]:
        return [key for key in info if isinstance(key, str)]


class PrioritizedReplayBuffer(ReplayBuffer):
    """A replay buffer that draws steps in proportion to their priorities.

    Args:
        alpha: Exponent of the priorities; 0: uniform.
        beta: Exponent of the importance weights.
        eps: Small number added to priorities.
        dtype: Dtype of the importance weights.
        storage: Storage; ``ListStorage(1000)`` by default.
        sampler: Sampler to use instead of a new :class:`PrioritizedSampler`.
        **kwargs: Other arguments of :class:`ReplayBuffer`.
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: PrioritizedSampler | None = None,
        **kwargs: Any,
    ) -> None:
        built: Storage = build_part(storage, Storage, lambda: ListStorage(1000))
        if sampler is None:
            sampler = PrioritizedSampler(built.max_size, alpha, beta, eps, dtype)
        super().__init__(storage=built, sampler=sampler, **kwargs)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` that draws steps in proportion to their priorities.

    Args:
        alpha: Exponent of the priorities; 0: uniform.
        beta: Exponent of the importance weights.
        priority_key: Entry with the priority of each step.
        eps: Small number added to priorities.
        storage: Storage; ``ListStorage(1000)`` by default.
        reduction: How a priority of several elements becomes one number: ``max``, ``min``,
            ``mean`` or ``median``.
        **kwargs: Other arguments of :class:`ReplayBuffer`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
        >>> buffer = TensorDictPrioritizedReplayBuffer(
        ...     alpha=0.7, beta=0.5, storage=LazyTensorStorage(9), batch_size=4
        ... )
        >>> data = TensorDict(step=torch.arange(9), td_error=torch.rand(9), batch_size=[9])
        >>> _ = buffer.extend(data)
        >>> batch = buffer.sample()
        >>> batch["priority_weight"].shape
        torch.Size([4])
        >>> batch["td_error"] = torch.ones(4)
        >>> buffer.update_tensordict_priority(batch)
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: NestedKey = "td_error",
        eps: float = 1e-8,
        storage: Storage | Callable[[], Storage] | None = None,
        reduction: str = "max",
        **kwargs: Any,
    ) -> None:
        built: Storage = build_part(storage, Storage, lambda: ListStorage(1000))
        super().__init__(
            priority_key=priority_key,
            storage=built,
            sampler=PrioritizedSampler(built.max_size, alpha, beta, eps, reduction=reduction),
            **kwargs,
        )
