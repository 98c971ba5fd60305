"""Copies of stages and policies for worker processes, whose tensors stay outside of the copy.

The tensors of a copy live in memory that the processes share. New weights are written there, and
the copy is only sent again if anything else about it has changed.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from tdx.foundation.errors import ArgumentError

_HINT = "remove it, or pass planned=False to the env"
_tensors: ContextVar[Sequence[Tensor]] = ContextVar("tensors of a copy that is unpickled")


def pack(content: Any, name: str) -> tuple[bytes, list[Tensor]]:
    """Pickle an object without its tensors.

    Args:
        content: Any object; functions are pickled by value if they cannot be imported.
        name: Name of the object in messages.

    Returns:
        The pickle, and the tensors in the order in which it refers to them.

    Raises:
        ArgumentError: A part of it cannot be pickled, or a tensor is not plain CPU memory.
    """
    file, tensors = io.BytesIO(), list[Tensor]()
    try:
        _Pickler(file, tensors, name).dump(content)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentError(f"{name} cannot be copied: {error}", hint=_HINT) from error
    return file.getvalue(), tensors


def unpack(data: bytes, tensors: Sequence[Tensor]) -> Any:
    """Return the object that :func:`pack` pickled, with these tensors in it."""
    token = _tensors.set(tensors)
    try:
        return pickle.loads(data)
    finally:
        _tensors.reset(token)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a reference instead of a tensor."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor], name: str) -> None:
        super().__init__(file)
        self._found, self._name = tensors, name

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return super().reducer_override(obj)
        is_plain = type(obj) in (Tensor, nn.Parameter)
        if not is_plain or obj.device.type != "cpu" or obj.layout is not torch.strided:
            raise ArgumentError(
                f"{self._name} holds a {type(obj).__name__} on {obj.device}, which cannot be "
                "shared",
                hint=_HINT,
            )
        self._found.append(obj)
        is_parameter = isinstance(obj, nn.Parameter)
        return _take, (len(self._found) - 1, is_parameter, obj.requires_grad)


def _take(place: int, is_parameter: bool, requires_grad: bool) -> Tensor:
    tensor = _tensors.get()[place]
    return nn.Parameter(tensor, requires_grad) if is_parameter else tensor
