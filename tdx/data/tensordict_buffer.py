"""Replay buffer whose batches contain the positions of their steps."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.buffer import ReplayBuffer
from tdx.errors import ChainError
from tdx.tensordicts import write


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer of TensorDicts whose batches contain the positions of their steps.

    Args:
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

    def _with_index(self, data: Any, index: tuple[Tensor, ...]) -> Any:
        if not isinstance(data, TensorDictBase):
            raise ChainError(
                f"the batches are {type(data).__name__} instead of TensorDicts",
                hint="use ReplayBuffer, which stores data of any kind",
            )
        write(data, "index", index[0] if len(index) == 1 else torch.stack(index, -1))
        return data
