"""Put entries into pinned memory."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform


class PinMemoryTransform(Transform):
    """Copy entries into pinned memory, from which they are copied to a GPU without waiting.

    Use it in a replay buffer whose samples are moved to a GPU. Nothing changes without CUDA, or for
    entries that are on a GPU already.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import PinMemoryTransform
        >>> PinMemoryTransform()(TensorDict(reward=torch.ones(1)))["reward"]
        tensor([1.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(self) -> None:
        super().__init__()

    def _pin(self, tensordict: TensorDictBase) -> TensorDictBase:
        if torch.cuda.is_available():
            for key, value in list(tensordict.items(True, True)):
                if isinstance(value, Tensor) and value.device.type == "cpu":
                    tensordict.set(key, value.pin_memory())
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._pin(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._pin(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Pin the entries of stored data, in place."""
        return self._pin(tensordict)

    def __repr__(self) -> str:
        return "PinMemoryTransform()"
