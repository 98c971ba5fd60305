"""The numbers in a trace by the names that a person gives them: keys, and elements of keys."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdx.inspection.live.numbers import Rows, as_numbers
from tdx.keys import format_key

if TYPE_CHECKING:
    from tdx.core.tracing import StepTrace

_ELEMENT = re.compile(r"(?P<key>.+)\[(?P<place>\d+)\]")
_MOST_NAMED = 8


def number_of(trace: StepTrace, name: str, row: int | None) -> float:
    """The number under a name; the mean of several, nan where there is none.

    Args:
        trace: the trace.
        name: a key with dots, or an element of one: ``"observation[0]"``.
        row: of one env of a batch only.
    """
    element = _ELEMENT.fullmatch(name)
    parts = tuple((element["key"] if element else name).split("."))
    value = trace.env_tensordict.get(parts, None)
    if value is None and trace.phase == "step":
        value = trace.tensordict.get(parts, None)
    numbers = as_numbers(Rows(tuple(trace.tensordict.batch_size), row).of(value))
    if numbers is None or numbers.size == 0:
        return math.nan
    if element:
        place = int(element["place"])
        return float(numbers.reshape(-1)[place]) if place < numbers.size else math.nan
    return float(numbers.reshape(-1)[0] if numbers.size == 1 else numbers.mean())


def names_of(trace: StepTrace, row: int | None) -> Iterator[str]:
    """Every name that :func:`number_of` knows in a trace, some of them twice."""
    rows = Rows(tuple(trace.tensordict.batch_size), row)
    for level in (trace.env_tensordict, trace.tensordict):
        for key in level.keys(True, True):
            parts = (key,) if isinstance(key, str) else tuple(key)
            numbers = as_numbers(rows.of(level.get(key))) if parts[0] != "next" else None
            if numbers is not None and numbers.size:
                name = format_key(key)
                yield name
                if 1 < numbers.size <= _MOST_NAMED:
                    yield from (f"{name}[{n}]" for n in range(numbers.size))
