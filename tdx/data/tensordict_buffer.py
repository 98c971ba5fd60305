"""A replay buffer whose batches say where they come from."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.data.buffer import ReplayBuffer
from tdx.errors import ChainError
from tdx.tensordicts import write


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer of TensorDicts whose batches also say where their steps are stored.

    Args:
        **kwargs: those of :class:`ReplayBuffer`.

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
                f"the buffer holds no TensorDicts, its batches are {type(data).__name__}",
                hint="ReplayBuffer takes data of any kind",
            )
        write(data, "index", index[0] if len(index) == 1 else torch.stack(index, -1))
        return data
