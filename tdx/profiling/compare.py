"""Two profiles beside each other, row by row: what has become slower, and by more than noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from tdx.errors import ArgumentError, did_you_mean
from tdx.profiling.limits import FIGURES, Limit
from tdx.profiling.result import Mode, ModeProfile, Profile, Row
from tdx.profiling.statistics import Statistics

TOTAL = "step"
"""The label of the whole step, beside those of the rows."""
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Change:
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
class Failure:
    """A change that a limit does not allow.

    Args:
        limit: which one.
        change: of what.
    """

    limit: Limit
    change: Change

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
class Comparison:
    """Two profiles beside each other.

    Args:
        changes: every figure of every row that is in both.
        gone: rows that only the first has, as label and lane.
        new: rows that only the second has.
        differences: what else is not the same, each a sentence; they were compared by force.
        failures: what no limit allows.
    """

    changes: tuple[Change, ...]
    gone: tuple[Key, ...]
    new: tuple[Key, ...]
    differences: tuple[str, ...]
    failures: tuple[Failure, ...]

    @property
    def failing(self) -> tuple[str, ...]:
        """The labels of the rows that have become too slow, each once."""
        return tuple(dict.fromkeys(failure.change.label for failure in self.failures))


def compare(
    before: Profile, after: Profile, limits: Sequence[Limit] = (), *, force: bool = False
) -> Comparison:
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
    differences = tuple(differences_of(before, after))
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
            f"the profiles have no mode in common: {_modes(before)} and {_modes(after)}",
            hint="measure both with the same --mode",
        )
    changes = [change for pair in pairs for change in _changes(*pair)]
    known = [{row.key for row in mode.rows} for pair in pairs for mode in pair]
    old, now = set().union(*known[::2]), set().union(*known[1::2])
    _check_limits(limits, changes)
    return Comparison(
        tuple(changes),
        tuple(sorted(old - now)),
        tuple(sorted(now - old)),
        differences,
        tuple(_failures(limits, changes)),
    )


def _modes(profile: Profile) -> str:
    return ", ".join(mode.mode for mode in profile.modes) or "none"


def differences_of(before: Profile, after: Profile) -> Iterator[str]:
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
    one, other = _modes(before), _modes(after)
    if one != other:
        yield f"modes: {one} and {other}"


def _changes(before: ModeProfile, after: ModeProfile) -> Iterator[Change]:
    rows = {row.key: row for row in after.rows}
    for row in before.rows:
        if row.key in rows:
            yield from _row_changes(before.mode, row, rows[row.key])
    steps = before.step_us, after.step_us
    if all(steps):
        noise = max(before.noise.spread, after.noise.spread)
        yield Change(before.mode, TOTAL, TOTAL, "mean", *steps, noise)


def _row_changes(mode: Mode, before: Row, after: Row) -> Iterator[Change]:
    for figure in FIGURES:
        one, other = getattr(before.statistics, figure), getattr(after.statistics, figure)
        noise = max(noise_floor(before, figure), noise_floor(after, figure))
        yield Change(mode, *before.key, figure, one, other, noise)


def noise_floor(row: Row, figure: str) -> float:
    """How far a figure is off between the repeats: half their range by their median; 0 for one.

    Args:
        row: measured in some repeats.
        figure: ``mean``, ``p50``, ...
    """
    each = [getattr(found, figure) for found in _by_repeat(row)]
    middle = float(np.median(each))
    return (max(each) - min(each)) / 2 / middle if middle else 0.0


def _by_repeat(row: Row) -> list[Statistics]:
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


def _check_limits(limits: Sequence[Limit], changes: Sequence[Change]) -> None:
    known = {name for change in changes for name in change.label.split(" ")}
    for limit in limits:
        if not any(limit.concerns(change.label) for change in changes):
            raise ArgumentError(
                f"no row is called {limit.row!r}, which {limit.text} is about",
                hint=did_you_mean(limit.row or "", known, f"there is {', '.join(sorted(known))}"),
            )


def _failures(limits: Sequence[Limit], changes: Sequence[Change]) -> Iterator[Failure]:
    for limit in limits:
        for change in changes:
            if limit.figure == change.figure and limit.concerns(change.label):
                allowed = limit.allows(change.before_us, change.after_us)
                if not allowed and change.is_significant:
                    yield Failure(limit, change)
