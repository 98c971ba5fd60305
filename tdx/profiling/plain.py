"""What the command line and the app share with a profile, without torch or NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

RolloutMode = Literal["eager", "planned"]
MODES: tuple[RolloutMode, ...] = ("eager", "planned")
PassName = Literal["memory", "operators", "device"]
PASSES: tuple[PassName, ...] = ("memory", "operators", "device")

MIN_SHARE = 0.01
"""Smaller differences, as a share of a step, are never significant."""


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """One torch operator in one part.

    Args:
        name: Name, ``aten::add``.
        calls: Calls per step.
        time_us: Own time per step in the operator pass, which slows all operators down.
    """

    name: str
    calls: float
    time_us: float


def without_slowest(values: Sequence[float]) -> list[float]:
    """Return the values of all repeats in order, without the slowest fifth.

    Another program can only slow a repeat down.
    """
    return sorted(values)[: len(values) - len(values) // 5]


def mean_shift(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the difference of the means of the repeats, without the slowest fifth of both."""
    return fmean(without_slowest(after)) - fmean(without_slowest(before))


def are_apart(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return True if all repeats of one measurement are faster than those of the other.

    The slowest fifth of both does not count. Equal code rarely orders all repeats, while the range
    of the repeats says little about a shift of their middle.
    """
    one, other = without_slowest(before), without_slowest(after)
    return bool(one and other) and (max(one) < min(other) or max(other) < min(one))
