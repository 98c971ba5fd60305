"""Percentiles (compared with NumPy) and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdx.foundation.errors import ArgumentError
from tdx.profiling.result import compute_noise, compute_statistics
from tests.profiling.sample_profile import mode_profile

times = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=50)


@given(times)
def test_percentiles_match_numpy(values: list[float]) -> None:
    found = compute_statistics(np.array(values))
    for wanted in (50, 90, 95, 99):
        expected = np.percentile(np.array(values), wanted, method="inverted_cdf")
        assert getattr(found, f"p{wanted}") == float(expected)


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


def test_row_has_one_population_and_its_mean_follows_from_the_calls_for_each_step() -> None:
    mode = mode_profile("planned", many=True)
    for row in mode.rows:
        assert row.statistics.n == len(row.times_ns)
        assert row.statistics.mean == pytest.approx(row.times_ns.mean() / 1000)
        assert row.statistics.max == row.times_ns.max() / 1000
        per_step = row.statistics.mean / mode.steps_per_call(row)
        assert per_step == pytest.approx(mode.step_share_us(row))
    chunked = next(row for row in mode.rows if row.part.name == "RewardSum")
    assert (chunked.statistics.n, mode.steps_per_call(chunked)) == (6, 20)
