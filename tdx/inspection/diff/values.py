"""Hold the values of two rollouts against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdx.inspection.diff.report import ValueChange
from tdx.keys import format_key, normalize_key

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor


def compare_values(a: TensorDictBase, b: TensorDictBase) -> tuple[ValueChange, ...]:
    """Every key of two rollouts ``[*B, T]``, with the largest difference and where it begins.

    Two values that are both NaN are equal.
    """
    one, other = _leaves(a), _leaves(b)
    keys = list(dict.fromkeys([*one, *other]))
    return tuple(_compared(key, one.get(key), other.get(key), a.ndim - 1) for key in keys)


def _leaves(tensordict: TensorDictBase) -> dict[str, Any]:
    keys = map(normalize_key, tensordict.keys(True, True))
    return {format_key(key): tensordict.get(key) for key in keys}


def _compared(key: str, a: Any, b: Any, time_dim: int) -> ValueChange:
    import torch

    if a is None or b is None:
        return ValueChange(key, "only_b" if a is None else "only_a")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return ValueChange(key, "same" if _as_data(a) == _as_data(b) else "different")
    if a.shape != b.shape:
        return ValueChange(key, "shape", note=f"{list(a.shape)} and {list(b.shape)}")
    note = "" if a.dtype == b.dtype else f"{_dtype(a)} and {_dtype(b)}"
    return _difference(key, a, b.to(a.device), time_dim, note)


def _difference(key: str, a: Tensor, b: Tensor, time_dim: int, note: str) -> ValueChange:
    import torch

    kind = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(kind), b.to(kind)
    unequal = a != b
    if kind.is_floating_point or kind.is_complex:
        unequal &= ~(a.isnan() & b.isnan())
    if not bool(unequal.any()):
        return ValueChange(key, "different" if note else "same", 0.0, note=note)
    times = unequal.movedim(time_dim, 0).flatten(1).any(1).nonzero()
    wide = torch.complex128 if kind.is_complex else torch.float64
    gaps = (a.to(wide) - b.to(wide)).abs()[unequal]
    return ValueChange(key, "different", float(gaps.max()), int(times[0]), note)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _as_data(value: Any) -> Any:
    listed = getattr(value, "tolist", None)
    return listed() if listed is not None else value
