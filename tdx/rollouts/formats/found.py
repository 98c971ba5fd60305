"""A column of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Found:
    """A column of a file.

    Args:
        dtype: NumPy's dtype.
        shape: Shape of the whole column, time first.
    """

    dtype: Any
    shape: tuple[int, ...]
