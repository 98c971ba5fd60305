"""How much slower something may become: ``p95:10%``, ``mean:1ms``, ``RewardSum.p99:20us``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tdx.errors import ArgumentError, UnknownNameError, did_you_mean

FIGURES = ("mean", "p50", "p90", "p95", "p99", "max")
_UNITS = {"%": 0.01, "ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_NUMBER = re.compile(r"\s*\+?(\d+(?:\.\d+)?|\.\d+)\s*(\D*)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """How much a figure of some rows may grow.

    Args:
        figure: which: ``mean``, ``p50``, ``p90``, ``p95``, ``p99`` or ``max``.
        most: the share, from 0, or the time in µs.
        is_share: whether it is a share of what it was.
        row: whose: a stage's class name, its place, or the label of a row; all by default.
        text: as it was given.
    """

    figure: str
    most: float
    is_share: bool
    row: str | None
    text: str

    def allows(self, before_us: float, after_us: float) -> bool:
        """Whether a figure may grow from one to the other."""
        grown = after_us - before_us
        return grown <= (self.most * before_us if self.is_share else self.most)

    def concerns(self, label: str) -> bool:
        """Whether a row of this label is held to it."""
        return self.row is None or self.row in (label, *label.split(" "))


def parse_limits(texts: Sequence[str]) -> tuple[Limit, ...]:
    """Limits from their texts; one text may hold several, with commas between.

    Args:
        texts: each ``FIGURE:AMOUNT`` or ``ROW.FIGURE:AMOUNT``; an amount is a share in ``%`` or a
            time in ``ns``, ``us``, ``ms`` or ``s``.

    Raises:
        ArgumentError: one of them is not of that form.
        UnknownNameError: there is no such figure or unit.

    Example:
        >>> [(limit.row, limit.figure, limit.most) for limit in parse_limits(
        ...     ["p95:10%, CatFrames.mean:2ms"])]
        [(None, 'p95', 0.1), ('CatFrames', 'mean', 2000.0)]
    """
    given = [each.strip() for text in texts for each in text.split(",")]
    return tuple(_limit(text) for text in given if text)


def _limit(text: str) -> Limit:
    what, colon, amount = text.rpartition(":")
    if not colon:
        raise ArgumentError(f"{text!r} is no limit", hint="for example p95:10% or mean:1ms")
    row, _, figure = what.strip().rpartition(".")
    if figure not in FIGURES:
        hint = did_you_mean(figure, FIGURES, f"there is {', '.join(FIGURES)}")
        raise UnknownNameError(f"there is no figure {figure!r} in {text!r}", hint=hint)
    read = _NUMBER.fullmatch(amount)
    if read is None:
        raise ArgumentError(f"{amount!r} is no amount in {text!r}", hint="for example 10% or 1ms")
    number, unit = float(read[1]), read[2].strip()
    if unit not in _UNITS:
        hint = did_you_mean(unit, _UNITS, f"there is {', '.join(_UNITS)}")
        raise UnknownNameError(f"there is no unit {unit!r} in {text!r}", hint=hint)
    return Limit(figure, number * _UNITS[unit], unit == "%", row or None, text)
