"""Percentiles (compared with NumPy), weights and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdx.errors import ArgumentError
from tdx.profiling.result import compute_noise, compute_percentiles, compute_statistics

times = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=50)


@given(times, st.sampled_from([1, 25, 50, 75, 90, 95, 99, 100]))
def test_percentiles_match_numpy(values: list[float], wanted: float) -> None:
    given_times = np.array(values)
    found = compute_percentiles(given_times, (wanted,))
    assert found == [float(np.percentile(given_times, wanted, method="inverted_cdf"))]


@given(times, st.data())
def test_weights_match_repeated_values(values: list[float], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=len(values), max_size=len(values)))
    weighted = compute_percentiles(np.array(values), (25, 50, 99), np.array(counts))
    assert weighted == compute_percentiles(np.repeat(values, counts), (25, 50, 99))


def test_statistics_of_known_numbers() -> None:
    found = compute_statistics(np.arange(1.0, 101.0))
    assert (found.n, found.mean, found.p50, found.p90, found.p99, found.max, found.iqr) == (
        100,
        50.5,
        50.0,
        90.0,
        99.0,
        100.0,
        50.0,
    )


def test_statistics_without_times_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no call was timed"):
        compute_statistics(np.array([]))


@pytest.mark.parametrize(
    ("repeats", "judgement"),
    [
        ([10.0], "unknown"),
        ([10.0, 10.1, 10.2], "quiet"),
        ([10.0, 11.0], "fair"),
        ([10.0, 30.0], "noisy"),
    ],
)
def test_noise_is_judged_by_the_repeats(repeats: list[float], judgement: str) -> None:
    assert compute_noise(repeats).judgement == judgement


def test_noise_message_suggests_a_remedy() -> None:
    assert "close other programs" in compute_noise([10.0, 30.0]).message
