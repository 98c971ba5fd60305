"""Tensors in one block of memory that processes share."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Field:
    """Shape and dtype of a tensor."""

    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Field:
        """Return the shape and dtype of ``tensor``."""
        return cls(tensor.shape, tensor.dtype)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.shape.numel() * self.dtype.itemsize


class TensorBlock:
    """Tensors laid out consecutively in a single block of CPU memory.

    A shared block that is sent to another process refers to the same memory there. It needs one
    file descriptor regardless of the number of tensors, and its file has no name, so nothing is
    left behind however the processes end.

    Args:
        fields: Shape and dtype of each tensor, by name.
        shared: True to share the memory with other processes, which get a copy otherwise.
    """

    def __init__(self, fields: Mapping[Any, Field], *, shared: bool = True) -> None:
        self._fields = dict(fields)
        self._offsets: dict[Any, int] = {}
        end = 0
        for name, field in self._fields.items():
            self._offsets[name] = end
            end += -(-field.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._memory = torch.zeros(max(end, _ALIGNMENT), dtype=torch.uint8)
        if shared:
            self._memory.share_memory_()

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._fields, self._offsets)
        if not self._memory.is_shared():
            return _rebuild_block, (state, b"", self._memory)
        # A plain pickler would copy a shared tensor.
        return _rebuild_block, (state, bytes(ForkingPickler.dumps(self._memory)), None)

    def tensors(self) -> dict[Any, Tensor]:
        """Return a view of each tensor, by name."""
        return {name: self._view(name, field) for name, field in self._fields.items()}

    def _view(self, name: Any, field: Field) -> Tensor:
        start = self._offsets[name]
        return self._memory[start : start + field.nbytes].view(field.dtype).view(field.shape)


def _rebuild_block(state: tuple[Any, Any], handle: bytes, copy: Tensor | None) -> TensorBlock:
    block = TensorBlock.__new__(TensorBlock)
    block._fields, block._offsets = state
    block._memory = pickle.loads(handle) if copy is None else copy
    return block
