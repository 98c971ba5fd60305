"""Read values of a trace as NumPy arrays, and summarize them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


BINS = 8
_MAX_SHOWN = 6
_MAX_BINNED = 65_536


@dataclass(frozen=True, slots=True)
class RowSelector:
    """Selects rows of a batch.

    Args:
        batch: Batch size.
        row: Row, counted through all batch dims. ``None``: all rows.
    """

    batch: tuple[int, ...]
    row: int | None

    def of(self, value: Any) -> Any:
        """Return the row of a value; the whole value if it has no such batch dims."""
        if self.row is None or not self.batch:
            return value
        if isinstance(value, list):
            return value[self.row] if self.row < len(value) else value
        dims = len(self.batch)
        if tuple(getattr(value, "shape", ())[:dims]) != self.batch:
            return value
        return value[unravel_row(self.row, self.batch)]


def unravel_row(row: int, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the indices of a row in a batch of several dims."""
    found = []
    for size in reversed(batch):
        row, at = divmod(row, size)
        found.append(at)
    return tuple(reversed(found))


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Convert a tensor of real numbers; ``None`` for other data and ``meta`` tensors."""
    from torch import Tensor

    if not isinstance(value, Tensor) or value.is_complex() or value.device.type == "meta":
        return None
    return _array(value)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    import torch

    plain = tensor.detach()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    if plain.dtype is torch.bfloat16:
        plain = plain.float()
    found: np.ndarray[Any, Any] = plain.numpy()
    return found


def summarize_array(
    numbers: np.ndarray[Any, Any],
) -> tuple[float | None, float | None, float | None, int, int]:
    """Return minimum, mean and maximum, and the numbers of NaN and infinities."""
    import numpy as np

    if numbers.size == 0:
        return None, None, None, 0, 0
    if numbers.size == 1:
        return _summarize_number(float(numbers.reshape(-1)[0]))
    if numbers.dtype.kind != "f":
        return float(numbers.min()), float(numbers.mean()), float(numbers.max()), 0, 0
    with np.errstate(all="ignore"):
        return _summarize_floats(numbers)


def _summarize_floats(
    numbers: np.ndarray[Any, Any],
) -> tuple[float | None, float | None, float | None, int, int]:
    import numpy as np

    total = float(numbers.sum(dtype=np.float64))
    if math.isfinite(total):
        return float(numbers.min()), total / numbers.size, float(numbers.max()), 0, 0
    nan = np.isnan(numbers)
    nans, rest = int(nan.sum()), numbers[~nan]
    if rest.size == 0:
        return None, None, None, nans, 0
    finite = rest[np.isfinite(rest)]
    mean = float(finite.mean(dtype=np.float64)) if finite.size else None
    return float(rest.min()), mean, float(rest.max()), nans, int(rest.size - finite.size)


def _summarize_number(number: float) -> tuple[float | None, float | None, float | None, int, int]:
    if math.isnan(number):
        return None, None, None, 1, 0
    if math.isinf(number):
        return number, None, number, 0, 1
    return number, number, number, 0, 0


def count_bins(
    numbers: np.ndarray[Any, Any], low: float | None, high: float | None
) -> tuple[int, ...]:
    """Count the numbers in equal bins; large arrays are subsampled."""
    import numpy as np

    if numbers.size < 3 or low is None or high is None:
        return ()
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return ()
    flat = numbers.reshape(-1)
    flat = flat[:: max(1, flat.size // _MAX_BINNED)]
    if flat.dtype.kind == "f":
        flat = flat[np.isfinite(flat)]
    places = (flat.astype(np.float64) - low) * (BINS / (high - low))
    counts = np.bincount(np.clip(places.astype(np.int64), 0, BINS - 1), minlength=BINS)
    return tuple(counts.tolist())


def format_array(numbers: np.ndarray[Any, Any]) -> str:
    """Format the first numbers on one line."""
    flat = numbers.reshape(-1)
    shown = [_format_number(each) for each in flat[:_MAX_SHOWN].tolist()]
    if flat.size == 1:
        return shown[0]
    return f"[{' '.join(shown)}{' …' if flat.size > _MAX_SHOWN else ''}]"


def _format_number(value: float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f"{value:.4g}"
