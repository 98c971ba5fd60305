"""Memory of columns ``[T, ...]``: in huge pages, and shared by a column and the one a step later.

Private parts of torch that are used here: ``Tensor._lazy_clone``, a copy that is made when either
tensor is written to. Without it columns are copied at once.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any

from torch import Tensor

_LARGE = 2**22
"""Columns of this many bytes are in huge pages, and share their memory."""

_MADVISE: Any = (
    getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_HUGEPAGE") else None
)
_SPARE = "_tdx_spare_row"


def new_column(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialized tensor with the dtype and device of another.

    For large ones huge pages are requested. That saves most of the cost of new memory.
    """
    column = like.new_empty(shape)
    if column.device.type == "cpu" and column.nbytes >= _LARGE:
        _request_huge_pages(column)
    return column


def new_output_column(shape: tuple[int, ...], like: Tensor, batch_dims: int) -> Tensor:
    """Return an uninitialized column of a rollout, ``[T, *B, ...]``.

    A large one without batch dims has the memory of one more row before its first one, for
    :func:`shift_column`. One with batch dims is contiguous once time is moved behind them.

    Args:
        shape: Its shape.
        like: A tensor of the same dtype and device.
        batch_dims: Number of batch dims.
    """
    if like.device.type != "cpu" or like.itemsize * math.prod(shape) < _LARGE:
        return like.new_empty(shape)
    length, batch, rest = shape[0], shape[1 : batch_dims + 1], shape[batch_dims + 1 :]
    if batch:
        return new_column((*batch, length, *rest), like).movedim(batch_dims, 0)
    column = new_column((length + 1, *rest), like)[1:]
    setattr(column, _SPARE, True)
    return column


def shift_column(column: Tensor, first: Tensor) -> Tensor | None:
    """Return ``first`` and all rows of a column but its last, ``[T, ...]``, without a copy.

    The result shares memory with the column until one of them is written to.

    Returns:
        The shifted column. ``None`` if the column has no spare row.
    """
    if not hasattr(column, _SPARE) or not hasattr(Tensor, "_lazy_clone"):
        return None
    delattr(column, _SPARE)
    block = column.as_strided((len(column) + 1, *column.shape[1:]), column.stride(), 0)
    block[0] = first
    copied: Tensor = block._lazy_clone()[:-1]
    return copied


def _request_huge_pages(block: Tensor) -> None:
    if _MADVISE is None:
        return
    start, page = block.data_ptr(), mmap.PAGESIZE
    first = -(-start // page) * page
    length = (start + block.nbytes - first) // page * page
    _MADVISE(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
