"""Reads the value of one version: its numbers, what they were before, a small histogram."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.inspection.live.pictures import is_picture
from tdx.inspection.live.views import Change, ValueView
from tdx.keys import format_key

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from tdx.core.tracing import ValueVersion

BINS = 8
_MOST_SHOWN = 6
_MOST_BINNED = 65_536
_MANY = 4_096


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of a batch are read.

    Args:
        batch: the batch size.
        row: one of them, counted through all batch dims; none for all.
    """

    batch: tuple[int, ...]
    row: int | None

    def of(self, value: Any) -> Any:
        """The row of a value; all of it where it has no such batch dims."""
        if self.row is None or not self.batch:
            return value
        if isinstance(value, list):
            return value[self.row] if self.row < len(value) else value
        dims = len(self.batch)
        if tuple(getattr(value, "shape", ())[:dims]) != self.batch:
            return value
        return value[unravelled(self.row, self.batch)]


def unravelled(row: int, batch: tuple[int, ...]) -> tuple[int, ...]:
    """The indices of a row in a batch of several dims."""
    found = []
    for size in reversed(batch):
        row, at = divmod(row, size)
        found.append(at)
    return tuple(reversed(found))


class ValueReader:
    """Reads versions.

    Args:
        rows: which rows of them.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def read(
        self,
        version: ValueVersion,
        before: ValueVersion | None,
        given: ValueVersion | None,
        lies: tuple[str, ...],
    ) -> ValueView:
        """What there is to see of a version.

        Args:
            version: the version.
            before: what it is compared with.
            given: the version before it in the same trace.
            lies: what its spec promises and is not so.
        """
        value = self.rows.of(version.value)
        key, name = format_key(version.key), version.name
        old = None if before is None else self.rows.of(before.value)
        numbers = as_numbers(value)
        if numbers is None:
            return _without_numbers(key, name, value, old, before is not None, lies)
        change, text, delta = _compared(numbers, as_numbers(old), before is not None)
        least, mean, most, nans, infinities = statistics(numbers)
        return ValueView(
            key=key,
            version=name,
            shape=tuple(numbers.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            text=number_text(numbers),
            minimum=least,
            mean=mean,
            maximum=most,
            nans=nans,
            infinities=infinities,
            histogram=histogram(numbers, least, most),
            change=change,
            by_writer=self._by_writer(numbers, given),
            before=text,
            delta=delta,
            lies=lies,
            in_place=version.in_place,
            is_picture=is_picture(tuple(numbers.shape), numbers.dtype.kind),
        )

    def _by_writer(self, numbers: np.ndarray[Any, Any], given: ValueVersion | None) -> Change:
        import numpy as np

        if given is None:
            return "new"
        old = as_numbers(self.rows.of(given.value))
        same = old is not None and old.dtype == numbers.dtype and np.array_equal(old, numbers)
        return "same" if same else "changed"


def as_numbers(value: Any) -> np.ndarray[Any, Any] | None:
    """A tensor as an array; ``None`` for what is no tensor of real numbers with values."""
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


def _without_numbers(
    key: str, name: str, value: Any, old: Any, known: bool, lies: tuple[str, ...]
) -> ValueView:
    rows = value if isinstance(value, list) else [value]
    shape = (len(rows),) if isinstance(value, list) else tuple(getattr(value, "shape", ()))
    text, before = _short(value), _short(old) if known else ""
    change: Change = "new" if not known else "same" if text == before else "changed"
    kind = getattr(rows[0], "dtype", None) if rows else None
    dtype = type(value).__name__ if kind is None else str(kind).removeprefix("torch.")
    return ValueView(key, name, shape, dtype, text, change=change, before=before, lies=lies)


def _short(value: Any) -> str:
    data = getattr(value, "data", value) if hasattr(value, "tolist") else value
    text = " ".join(str(data).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _compared(
    now: np.ndarray[Any, Any], old: np.ndarray[Any, Any] | None, known: bool
) -> tuple[Change, str, float | None]:
    """How a value differs from what it was, with the text of that and the largest difference."""
    import numpy as np

    if old is None:
        return ("changed" if known else "new"), "", None
    text = number_text(old)
    if old.shape != now.shape:
        return "changed", text, None
    if old is now or np.array_equal(old, now):
        return "same", text, 0.0
    delta = _largest_difference(now, old)
    return ("same" if delta == 0 else "changed"), text, delta


def _largest_difference(now: np.ndarray[Any, Any], old: np.ndarray[Any, Any]) -> float:
    """How far apart two arrays of a shape are that are not equal; nan beside nan is no distance."""
    import numpy as np

    if now.dtype.kind == "b":
        return float(np.count_nonzero(now != old) > 0)
    if now.dtype.kind == "u" and now.dtype == old.dtype:
        # Images are large, and numbers of eight bytes for each of theirs take long to make.
        return float((np.maximum(now, old) - np.minimum(now, old)).max())
    with np.errstate(all="ignore"):
        if now.dtype == old.dtype and now.dtype.kind == "f" and now.size > _MANY:
            rough = float(np.abs(now - old).max())
            if math.isfinite(rough):
                return rough
        apart = np.abs(now.astype(np.float64) - old.astype(np.float64))
    if now.dtype.kind == "f":
        apart = np.where(np.isnan(now) & np.isnan(old), 0.0, apart)
    return float(apart.max()) if apart.size else 0.0


def statistics(
    numbers: np.ndarray[Any, Any],
) -> tuple[float | None, float | None, float | None, int, int]:
    """Smallest, mean and largest number, and how many are nan and infinite."""
    import numpy as np

    if numbers.size == 0:
        return None, None, None, 0, 0
    if numbers.size == 1:
        return _of_one(float(numbers.reshape(-1)[0]))
    if numbers.dtype.kind != "f":
        return float(numbers.min()), float(numbers.mean()), float(numbers.max()), 0, 0
    with np.errstate(all="ignore"):
        return _of_floats(numbers)


def _of_floats(
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


def _of_one(number: float) -> tuple[float | None, float | None, float | None, int, int]:
    if math.isnan(number):
        return None, None, None, 1, 0
    if math.isinf(number):
        return number, None, number, 0, 1
    return number, number, number, 0, 0


def histogram(
    numbers: np.ndarray[Any, Any], least: float | None, most: float | None
) -> tuple[int, ...]:
    """How many numbers lie in each of equal parts; of very many every n-th is looked at."""
    import numpy as np

    if numbers.size < 3 or least is None or most is None:
        return ()
    if not (math.isfinite(least) and math.isfinite(most)) or least == most:
        return ()
    flat = numbers.reshape(-1)
    flat = flat[:: max(1, flat.size // _MOST_BINNED)]
    if flat.dtype.kind == "f":
        flat = flat[np.isfinite(flat)]
    places = (flat.astype(np.float64) - least) * (BINS / (most - least))
    counts = np.bincount(np.clip(places.astype(np.int64), 0, BINS - 1), minlength=BINS)
    return tuple(counts.tolist())


def number_text(numbers: np.ndarray[Any, Any]) -> str:
    """The numbers on a line, as many as it takes."""
    flat = numbers.reshape(-1)
    shown = [_number(each) for each in flat[:_MOST_SHOWN].tolist()]
    if flat.size == 1:
        return shown[0]
    return f"[{' '.join(shown)}{' …' if flat.size > _MOST_SHOWN else ''}]"


def _number(value: float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f"{value:.4g}"
