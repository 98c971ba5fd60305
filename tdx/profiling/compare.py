"""Compare two profiles row by row, check limits on growth, and find the growth that can be seen.

Limits are written ``p95:10%``, ``mean:1ms`` or ``RewardSum.p99:20us``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import permutations
from typing import ClassVar, TypedDict

import numpy as np

from tdx.core.meter import Lane
from tdx.foundation.errors import ArgumentError, UnknownNameError, did_you_mean
from tdx.foundation.serialization import Entries, Entry, Result, rounded
from tdx.profiling.plain import MIN_SHARE, are_apart, mean_shift, without_slowest
from tdx.profiling.result import Mode, ModeProfile, Profile, Row, Statistics, compute_spread

FIGURES = ("mean", "p50", "p90", "p95", "p99", "max")
_UNITS = {"%": 0.01, "ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_AMOUNT = re.compile(r"\s*\+?(\d+(?:\.\d+)?|\.\d+)\s*(\D*)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit on the growth of a figure of some rows.

    Args:
        figure: ``mean``, ``p50``, ``p90``, ``p95``, ``p99`` or ``max``.
        most: Maximum growth: a share, from 0, or a time in µs.
        is_share: Whether ``most`` is a share of the earlier value.
        row: Class name or index of a stage, or label of a row. ``None``: all rows.
        text: Text of the limit.
    """

    figure: str
    most: float
    is_share: bool
    row: str | None
    text: str

    def allows(self, before_us: float, after_us: float) -> bool:
        """True if a figure may grow from one value to the other."""
        grown = after_us - before_us
        return grown <= (self.most * before_us if self.is_share else self.most)

    def applies_to(self, label: str) -> bool:
        """True if the limit applies to a row with this label."""
        return self.row is None or self.row in (label, *label.split(" "))


def parse_limits(texts: Sequence[str]) -> tuple[Limit, ...]:
    """Parse limits ``FIGURE:AMOUNT`` or ``ROW.FIGURE:AMOUNT``; commas separate several of a text.

    An amount is a share in ``%`` or a time in ``ns``, ``us``, ``ms`` or ``s``.

    Raises:
        ArgumentError: A text does not have that form.
        UnknownNameError: A figure or unit is unknown.
    """
    limits: list[Limit] = []
    for text in filter(None, (part.strip() for given in texts for part in given.split(","))):
        what, colon, amount = text.rpartition(":")
        if not colon:
            raise ArgumentError(
                f"invalid limit {text!r}", hint="write for example p95:10% or mean:1ms"
            )
        row, _, figure = what.strip().rpartition(".")
        if figure not in FIGURES:
            hint = did_you_mean(figure, FIGURES, f"figures: {', '.join(FIGURES)}")
            raise UnknownNameError(f"unknown figure {figure!r} in {text!r}", hint=hint)
        match = _AMOUNT.fullmatch(amount)
        if match is None:
            raise ArgumentError(
                f"invalid amount {amount!r} in {text!r}", hint="write for example 10% or 1ms"
            )
        number, unit = float(match[1]), match[2].strip()
        if unit not in _UNITS:
            hint = did_you_mean(unit, _UNITS, f"units: {', '.join(_UNITS)}")
            raise UnknownNameError(f"unknown unit {unit!r} in {text!r}", hint=hint)
        limits.append(Limit(figure, number * _UNITS[unit], unit == "%", row or None, text))
    return tuple(limits)


TOTAL_LABEL = "step"
"""Label of the whole step, next to the labels of rows."""
TOTAL_KEY: tuple[str, Lane] = (TOTAL_LABEL, "step")
RowKey = tuple[str, Lane]


class RowKeyEntries(TypedDict):
    """JSON entries that identify a row."""

    label: str
    lane: Lane


def _finite_ratio(ratio: float) -> float | None:
    return rounded(ratio) if math.isfinite(ratio) else None


def _name_rows(keys: Sequence[RowKey]) -> list[RowKeyEntries]:
    return [{"label": label, "lane": lane} for label, lane in keys]


@dataclass(frozen=True, slots=True)
class FigureChange(Result):
    """Change of one figure of one row between two profiles.

    Args:
        mode: Mode of the rollout.
        label: Label of the row, as :attr:`~tdx.core.meter.Part.label`; ``step`` for the whole step.
        lane: Lane of the row.
        figure: ``mean``, ``p50``, ...
        before_us: Value in the first profile.
        after_us: Value in the second profile.
        noise: Relative spread between the repeats; the larger one of both profiles.
        is_significant: True if the repeats of both profiles differ, and the change is not tiny.
    """

    json_entries: ClassVar[Entries] = (
        *("mode", "label", "lane", "figure"),
        *(Entry(name, convert=rounded) for name in ("before_us", "after_us")),
        *(Entry("ratio", convert=_finite_ratio), Entry("noise", convert=rounded)),
        Entry("significant", "is_significant"),
    )

    mode: Mode
    label: str
    lane: Lane
    figure: str
    before_us: float
    after_us: float
    noise: float
    is_significant: bool

    @property
    def ratio(self) -> float:
        """Ratio of the second to the first value; infinite if the first is 0."""
        if self.before_us:
            return self.after_us / self.before_us
        return float("inf") if self.after_us else 1.0


@dataclass(frozen=True, slots=True)
class LimitViolation(Result):
    """A change that a limit does not allow."""

    json_entries: ClassVar[Entries] = (
        *(Entry("limit", "limit.text"), "message", Entry("change", inline=True)),
    )

    limit: Limit
    change: FigureChange

    @property
    def message(self) -> str:
        """Message for the user: ``2 CatFrames forward: p95 3.1 µs → 4.9 µs, +58 % (p95:10%)``."""
        change = self.change
        return (
            f"{change.label} {change.lane}: {change.figure} {change.before_us:.3g} µs → "
            f"{change.after_us:.3g} µs, {change.ratio - 1:+.0%}, noise ±{change.noise:.0%} "
            f"({self.limit.text})"
        )


@dataclass(frozen=True, slots=True)
class ProfileComparison(Result):
    """Comparison of two profiles.

    Args:
        changes: Every figure of every row that both profiles have.
        removed: Label and lane of rows that only the first profile has.
        new: Label and lane of rows that only the second profile has.
        differences: Differences in settings that ``force`` ignored, each a sentence.
        limits: Limits on growth.
        failures: Violated limits.
        baseline: Name of the first profile, if it is a baseline.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("baseline", omit_none=True), "failed", "failures", "differences"),
        *(Entry("gone", "removed", _name_rows), Entry("new", convert=_name_rows), "changes"),
    )

    changes: tuple[FigureChange, ...]
    removed: tuple[RowKey, ...]
    new: tuple[RowKey, ...]
    differences: tuple[str, ...]
    limits: tuple[Limit, ...]
    failures: tuple[LimitViolation, ...]
    baseline: str | None = None

    @property
    def failed(self) -> bool:
        """True if a limit is exceeded."""
        return bool(self.failures)

    @property
    def failing(self) -> tuple[str, ...]:
        """Labels of the rows that violate a limit, each once."""
        return tuple(dict.fromkeys(failure.change.label for failure in self.failures))


def compare_profiles(
    before: Profile, after: Profile, limits: Sequence[Limit] = (), *, force: bool = False
) -> ProfileComparison:
    """Compare a profile with an earlier one; with ``force``, also one with different settings.

    Growth that is not significant violates no limit.

    Raises:
        ArgumentError: Pipeline, machine, versions or settings differ, the profiles have no mode in
            common, or a limit applies to no row.
    """
    differences = tuple(find_differences(before, after))
    if differences and not force:
        more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
        raise ArgumentError(
            f"the profiles are not comparable: {differences[0]}{more}",
            hint="measure the baseline again, or use --force to compare anyway",
        )
    modes = {mode.mode: mode for mode in after.modes}
    pairs = [(mode, modes[mode.mode]) for mode in before.modes if mode.mode in modes]
    if not pairs:
        raise ArgumentError(
            "the profiles have no mode in common: "
            f"{_format_modes(before)} and {_format_modes(after)}",
            hint="measure both with the same --mode",
        )
    changes = [change for pair in pairs for change in _list_changes(*pair)]
    known = [{row.key for row in mode.rows} for pair in pairs for mode in pair]
    old, now = set().union(*known[::2]), set().union(*known[1::2])
    names = {name for change in changes for name in change.label.split(" ")}
    for limit in limits:
        if not any(limit.applies_to(change.label) for change in changes):
            raise ArgumentError(
                f"unknown row {limit.row!r} in the limit {limit.text}",
                hint=did_you_mean(limit.row or "", names, f"rows: {', '.join(sorted(names))}"),
            )
    violations = tuple(
        LimitViolation(limit, change)
        for limit in limits
        for change in changes
        if limit.figure == change.figure
        and limit.applies_to(change.label)
        and change.is_significant
        and not limit.allows(change.before_us, change.after_us)
    )
    return ProfileComparison(
        tuple(changes),
        tuple(sorted(old - now)),
        tuple(sorted(now - old)),
        differences,
        tuple(limits),
        violations,
    )


def _format_modes(profile: Profile) -> str:
    return ", ".join(mode.mode for mode in profile.modes) or "none"


def find_differences(before: Profile, after: Profile) -> Iterator[str]:
    """Yield the differences that make two profiles incomparable, each as a sentence."""
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
    # The fastest repeat: interruptions would hide changes of small parts.
    least_us = MIN_SHARE * min(before.repeat_us, default=0.0)
    for row in before.rows:
        later = rows.get(row.key)
        if later is None:
            continue
        if row.covered_steps != later.covered_steps:
            # Calls of longer chunks take longer without being slower.
            times = later.times_ns * (row.covered_steps / later.covered_steps)
            later = replace(later, times_ns=times.round().astype(np.int64))
        figures = row.statistics, later.statistics
        repeats = statistics_per_repeat(row), statistics_per_repeat(later)
        # How often the row's time counts in a step: a reset counts in few of them.
        weight = before.step_share_us(row) / figures[0].mean if figures[0].mean else 0.0
        for figure in FIGURES:
            one, other = [getattr(side, figure) for side in figures]
            series = [[getattr(repeat, figure) for repeat in side] for side in repeats]
            noise = max(map(compute_spread, series))
            # One interrupted repeat does not make a tiny difference large.
            is_significant = are_apart(*series) and abs(mean_shift(*series)) * weight >= least_us
            yield FigureChange(before.mode, *row.key, figure, one, other, noise, is_significant)
    one, other = before.step_us, after.step_us
    if one and other:
        noise = max(before.noise.spread, after.noise.spread)
        is_significant = abs(other - one) >= MIN_SHARE * one and are_apart(
            before.repeat_us, after.repeat_us
        )
        yield FigureChange(before.mode, *TOTAL_KEY, "mean", one, other, noise, is_significant)


def statistics_per_repeat(row: Row) -> list[Statistics]:
    """Return the statistics of each repeat in which a row was measured."""
    repeats = []
    for repeat in np.unique(row.repeats):
        mine = row.repeats == repeat
        columns = (row.times_ns, row.starts_ns, row.spans_ns, row.steps, row.repeats)
        part = Row(row.part, *(column[mine] for column in columns))
        repeats.append(part.statistics)
    return repeats


CALIBRATION_RUNS = 4
FIGURE = "p50"
_LEAST_LIMIT = 5


@dataclass(frozen=True, slots=True)
class DetectableChange(Result):
    """The smallest growth of a part that a comparison of two profiles shows.

    Args:
        mode: Mode of the rollout.
        label: Label of the row; ``step`` for the whole step.
        lane: Lane of the row.
        time_us: Median of the row, or mean of the whole step, in µs.
        share: Share of the whole step, from 0 to 1.
        growth: Growth as a share of ``time_us``, from 0.
    """

    mode: Mode
    label: str
    lane: str
    time_us: float
    share: float
    growth: float


@dataclass(frozen=True, slots=True)
class Calibration(Result):
    """What profiles of a pipeline can show on this machine.

    Args:
        subject: The pipeline.
        runs: Number of profiles of the same code.
        repeats: Repeats of each profile.
        changes: The smallest growth of each row, and of the whole step.
        false_growth: Largest growth between two of these profiles that looked significant.
    """

    json_entries: ClassVar[Entries] = (
        *("subject", "runs", "repeats", "changes", "false_growth", "limit"),
    )

    subject: str
    runs: int
    repeats: int
    changes: tuple[DetectableChange, ...]
    false_growth: float

    @property
    def limit(self) -> str:
        """A limit for ``--fail-if`` that equal code did not violate here."""
        return f"{FIGURE}:{max(math.ceil(100 * self.false_growth), _LEAST_LIMIT)}%"


def calibrate(profiles: Sequence[Profile]) -> Calibration:
    """Compare profiles of the same pipeline, machine and settings with each other.

    Raises:
        ArgumentError: There is only one, or they have different settings.
    """
    if len(profiles) < 2:
        raise ArgumentError("a calibration needs two profiles or more", hint="measure it again")
    first = profiles[0]
    modes = [
        [mode for profile in profiles for mode in profile.modes if mode.mode == own.mode]
        for own in first.modes
    ]
    false_growth = 0.0
    for before, after in permutations(profiles, 2):
        for change in compare_profiles(before, after).changes:
            is_shown = change.figure == FIGURE or change.label == TOTAL_LABEL
            # A growth from zero has no ratio.
            if is_shown and change.is_significant and change.before_us:
                false_growth = max(false_growth, change.ratio - 1)
    changes = tuple(change for found in modes for change in _list_detectable(found))
    repeats = first.settings.repeats
    return Calibration(first.subject, len(profiles), repeats, changes, false_growth)


def _list_detectable(modes: Sequence[ModeProfile]) -> Iterator[DetectableChange]:
    first, step_us = modes[0], modes[0].step_us
    for row in first.rows:
        same = [other for mode in modes for other in mode.rows if other.key == row.key]
        middle = row.statistics.p50
        if len(same) < len(modes) or not middle:
            continue
        share, calls = first.share(row), first.step_share_us(row) / row.statistics.mean
        least = MIN_SHARE * min(first.repeat_us) / (calls * middle) if calls else math.inf
        runs = [[repeat.p50 for repeat in statistics_per_repeat(other)] for other in same]
        growth = max(_growth_beyond(runs), least)
        yield DetectableChange(first.mode, row.part.label, row.part.lane, middle, share, growth)
    growth = max(_growth_beyond([mode.repeat_us for mode in modes]), MIN_SHARE)
    yield DetectableChange(first.mode, TOTAL_LABEL, TOTAL_LABEL, step_us, 1.0, growth)


def _growth_beyond(runs: Sequence[Sequence[float]]) -> float:
    """Return the growth after which all repeats of any run are slower than those of any other."""
    kept = [without_slowest(run) for run in runs]
    pairs = permutations(kept, 2)
    return max(max(before) / min(after) - 1 if min(after) else 0.0 for before, after in pairs)
