"""What many timings of the same thing say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tdx.errors import ArgumentError

Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Times in µs of one call each, or of one step each where a call stands for many.

    Args:
        n: how many calls were timed.
        mean: the mean.
        p50: the median.
        p90: nine in ten are at most this.
        p95: the same for 95 %.
        p99: the same for 99 %.
        max: the largest.
        iqr: from the first to the third quartile.
    """

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    iqr: float


def statistics_of(times: Numbers, weights: Counts | None = None) -> Statistics:
    """Statistics of times ``[n]``.

    Args:
        times: in µs.
        weights: how often each counts, ``[n]``; once by default.

    Raises:
        ArgumentError: there is none.

    Example:
        >>> import numpy as np
        >>> statistics_of(np.array([1.0, 2.0, 9.0])).p50
        2.0
    """
    if not len(times):
        raise ArgumentError("no call was timed", hint="make more steps")
    quartiles = percentiles(times, (25, 50, 75, 90, 95, 99), weights)
    low, p50, high, p90, p95, p99 = quartiles
    mean = float(np.average(times, weights=weights))
    return Statistics(len(times), mean, p50, p90, p95, p99, float(times.max()), high - low)


def percentiles(
    times: Numbers, wanted: tuple[float, ...], weights: Counts | None = None
) -> list[float]:
    """The smallest times that so many per cent of all are at most, each in 0 to 100.

    Args:
        times: ``[n]``.
        wanted: which percentiles.
        weights: how often each time counts, ``[n]``; once by default.
    """
    order = np.argsort(times, kind="stable")
    counted = np.ones(len(times), np.int64) if weights is None else weights[order]
    reached = np.cumsum(counted)
    places = np.searchsorted(reached, np.array(wanted) / 100 * reached[-1], side="left")
    return [float(each) for each in times[order][np.minimum(places, len(times) - 1)]]


Judgement = Literal["unknown", "quiet", "fair", "noisy"]
QUIET, FAIR = 0.03, 0.10


@dataclass(frozen=True, slots=True)
class Noise:
    """How far the repeats of a measurement are apart.

    Args:
        spread: half the distance between the fastest and the slowest repeat, by their median.
        judgement: ``quiet`` below 3 %, ``fair`` below 10 %, ``noisy`` above, ``unknown`` for a
            single repeat.
    """

    spread: float
    judgement: Judgement

    @property
    def message(self) -> str:
        """What a person should know of it."""
        if self.judgement == "unknown":
            return "one repeat says nothing of the noise; use more"
        told = f"the repeats are within ±{self.spread:.1%} of each other"
        if self.judgement == "noisy":
            return f"{told}: close other programs, or measure longer"
        return told


def noise_of(per_repeat: list[float]) -> Noise:
    """The noise between the repeats of a measurement.

    Args:
        per_repeat: the time of a step in each.

    Example:
        >>> noise_of([10.0, 10.2, 10.1]).judgement
        'quiet'
    """
    if len(per_repeat) < 2:
        return Noise(0.0, "unknown")
    middle = float(np.median(per_repeat))
    spread = (max(per_repeat) - min(per_repeat)) / 2 / middle if middle else 0.0
    quiet: Judgement = "quiet" if spread < QUIET else "fair" if spread < FAIR else "noisy"
    return Noise(spread, quiet)
