"""Compare two profiles row by row and check limits on growth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from tdx.errors import ArgumentError, UnknownNameError, did_you_mean
from tdx.profiling.result import Mode, ModeProfile, Profile, Row, Statistics

FIGURES = ("mean", "p50", "p90", "p95", "p99", "max")
_UNITS = {"%": 0.01, "ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_AMOUNT = re.compile(r"\s*\+?(\d+(?:\.\d+)?|\.\d+)\s*(\D*)\s*")


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
    return tuple(_parse_limit(text) for text in given if text)


def _parse_limit(text: str) -> Limit:
    what, colon, amount = text.rpartition(":")
    if not colon:
        raise ArgumentError(f"{text!r} is no limit", hint="for example p95:10% or mean:1ms")
    row, _, figure = what.strip().rpartition(".")
    if figure not in FIGURES:
        hint = did_you_mean(figure, FIGURES, f"there is {', '.join(FIGURES)}")
        raise UnknownNameError(f"there is no figure {figure!r} in {text!r}", hint=hint)
    read = _AMOUNT.fullmatch(amount)
    if read is None:
        raise ArgumentError(f"{amount!r} is no amount in {text!r}", hint="for example 10% or 1ms")
    number, unit = float(read[1]), read[2].strip()
    if unit not in _UNITS:
        hint = did_you_mean(unit, _UNITS, f"there is {', '.join(_UNITS)}")
        raise UnknownNameError(f"there is no unit {unit!r} in {text!r}", hint=hint)
    return Limit(figure, number * _UNITS[unit], unit == "%", row or None, text)


TOTAL_LABEL = "step"
"""The label of the whole step, beside those of the rows."""
RowKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of one row in two profiles.

    Args:
        mode: how it was run.
        label: whose, as :attr:`~tdx.core.meter.Part.label`; ``step`` for the whole.
        lane: which of its calls.
        figure: ``mean``, ``p50``, ...
        before_us: in the first profile.
        after_us: in the second.
        noise: how far it was off between the repeats of either, as a share; the larger of both.
    """

    mode: Mode
    label: str
    lane: str
    figure: str
    before_us: float
    after_us: float
    noise: float

    @property
    def ratio(self) -> float:
        """How many times as long it takes; infinite where it took no time before."""
        if self.before_us:
            return self.after_us / self.before_us
        return float("inf") if self.after_us else 1.0

    @property
    def is_significant(self) -> bool:
        """Whether it is further off than the repeats are from each other."""
        return abs(self.after_us - self.before_us) > self.noise * self.before_us


@dataclass(frozen=True, slots=True)
class LimitViolation:
    """A change that a limit does not allow.

    Args:
        limit: which one.
        change: of what.
    """

    limit: Limit
    change: FigureChange

    @property
    def message(self) -> str:
        """What a person reads: ``2 CatFrames forward: p95 3.1 µs → 4.9 µs, +58 % (p95:10%)``."""
        change = self.change
        return (
            f"{change.label} {change.lane}: {change.figure} {change.before_us:.3g} µs → "
            f"{change.after_us:.3g} µs, {change.ratio - 1:+.0%}, noise ±{change.noise:.0%} "
            f"({self.limit.text})"
        )


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """Two profiles beside each other.

    Args:
        changes: every figure of every row that is in both.
        gone: rows that only the first has, as label and lane.
        new: rows that only the second has.
        differences: what else is not the same, each a sentence; they were compared by force.
        failures: what no limit allows.
    """

    changes: tuple[FigureChange, ...]
    gone: tuple[RowKey, ...]
    new: tuple[RowKey, ...]
    differences: tuple[str, ...]
    failures: tuple[LimitViolation, ...]

    @property
    def failing(self) -> tuple[str, ...]:
        """The labels of the rows that have become too slow, each once."""
        return tuple(dict.fromkeys(failure.change.label for failure in self.failures))


def compare_profiles(
    before: Profile, after: Profile, limits: Sequence[Limit] = (), *, force: bool = False
) -> ProfileComparison:
    """Hold a profile against an earlier one.

    Args:
        before: the baseline.
        after: what is held against it.
        limits: what may not grow, and by how much; growth within the noise of the repeats of
            either profile breaks none.
        force: whether to compare what was not measured alike.

    Raises:
        ArgumentError: pipeline, machine, versions or settings differ, or they have no mode in
            common; or a limit concerns no row.
    """
    differences = tuple(find_differences(before, after))
    if differences and not force:
        more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
        raise ArgumentError(
            f"these profiles were not measured alike: {differences[0]}{more}",
            hint="measure the baseline anew, or compare by force: --force",
        )
    modes = {mode.mode: mode for mode in after.modes}
    pairs = [(mode, modes[mode.mode]) for mode in before.modes if mode.mode in modes]
    if not pairs:
        raise ArgumentError(
            f"the profiles have no mode in common: {_format_modes(before)} and {_format_modes(after)}",
            hint="measure both with the same --mode",
        )
    changes = [change for pair in pairs for change in _list_changes(*pair)]
    known = [{row.key for row in mode.rows} for pair in pairs for mode in pair]
    old, now = set().union(*known[::2]), set().union(*known[1::2])
    _check_limits(limits, changes)
    return ProfileComparison(
        tuple(changes),
        tuple(sorted(old - now)),
        tuple(sorted(now - old)),
        differences,
        tuple(_find_violations(limits, changes)),
    )


def _format_modes(profile: Profile) -> str:
    return ", ".join(mode.mode for mode in profile.modes) or "none"


def find_differences(before: Profile, after: Profile) -> Iterator[str]:
    """Why two profiles can tell little about each other, each reason a sentence."""
    if before.subject != after.subject:
        yield f"pipeline: {before.subject} and {after.subject}"
    if before.stages != after.stages:
        yield f"stages: {', '.join(before.stages)} and {', '.join(after.stages)}"
    for field in fields(before.settings):
        one, other = getattr(before.settings, field.name), getattr(after.settings, field.name)
        if one != other:
            yield f"{field.name}: {one} and {other}"
    yield from before.machine.differences(after.machine)
    one, other = _format_modes(before), _format_modes(after)
    if one != other:
        yield f"modes: {one} and {other}"


def _list_changes(before: ModeProfile, after: ModeProfile) -> Iterator[FigureChange]:
    rows = {row.key: row for row in after.rows}
    for row in before.rows:
        if row.key in rows:
            yield from _list_row_changes(before.mode, row, rows[row.key])
    steps = before.step_us, after.step_us
    if all(steps):
        noise = max(before.noise.spread, after.noise.spread)
        yield FigureChange(before.mode, TOTAL_LABEL, TOTAL_LABEL, "mean", *steps, noise)


def _list_row_changes(mode: Mode, before: Row, after: Row) -> Iterator[FigureChange]:
    for figure in FIGURES:
        one, other = getattr(before.statistics, figure), getattr(after.statistics, figure)
        noise = max(compute_noise_floor(before, figure), compute_noise_floor(after, figure))
        yield FigureChange(mode, *before.key, figure, one, other, noise)


def compute_noise_floor(row: Row, figure: str) -> float:
    """How far a figure is off between the repeats: half their range by their median; 0 for one.

    Args:
        row: measured in some repeats.
        figure: ``mean``, ``p50``, ...
    """
    each = [getattr(found, figure) for found in _statistics_per_repeat(row)]
    middle = float(np.median(each))
    return (max(each) - min(each)) / 2 / middle if middle else 0.0


def _statistics_per_repeat(row: Row) -> list[Statistics]:
    found = []
    for repeat in np.unique(row.repeats):
        mine = row.repeats == repeat
        part = Row(
            row.part,
            row.times_ns[mine],
            row.starts_ns[mine],
            row.spans_ns[mine],
            row.steps[mine],
            row.repeats[mine],
        )
        found.append(part.statistics)
    return found


def _check_limits(limits: Sequence[Limit], changes: Sequence[FigureChange]) -> None:
    known = {name for change in changes for name in change.label.split(" ")}
    for limit in limits:
        if not any(limit.concerns(change.label) for change in changes):
            raise ArgumentError(
                f"no row is called {limit.row!r}, which {limit.text} is about",
                hint=did_you_mean(limit.row or "", known, f"there is {', '.join(sorted(known))}"),
            )


def _find_violations(
    limits: Sequence[Limit], changes: Sequence[FigureChange]
) -> Iterator[LimitViolation]:
    for limit in limits:
        for change in changes:
            if limit.figure == change.figure and limit.concerns(change.label):
                allowed = limit.allows(change.before_us, change.after_us)
                if not allowed and change.is_significant:
                    yield LimitViolation(limit, change)
