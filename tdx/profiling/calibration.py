"""The smallest change of each part that profiles of this machine can show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

from tdx.foundation.errors import ArgumentError
from tdx.foundation.serialization import Entries, Result
from tdx.profiling.compare import (
    TOTAL_LABEL,
    compare_profiles,
    statistics_per_repeat,
    without_slowest,
)
from tdx.profiling.interleaved import MIN_SHARE
from tdx.profiling.result import Mode, ModeProfile, Profile

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
    changes = tuple(change for found in modes for change in _list_changes(found))
    repeats = first.settings.repeats
    return Calibration(first.subject, len(profiles), repeats, changes, false_growth)


def _list_changes(modes: Sequence[ModeProfile]) -> Iterator[DetectableChange]:
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
