"""Comparison of profiles: limits, the noise floor, and profiles that are not comparable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tdx.foundation.errors import ArgumentError, TdxError, UnknownNameError
from tdx.profiling.compare import (
    TOTAL_LABEL,
    calibrate,
    compare_profiles,
    parse_limits,
)
from tdx.profiling.plain import are_apart
from tdx.profiling.result import ModeProfile, Profile, Row
from tests.profiling.sample_profile import MACHINE, mode_profile, sample_profile
from tests.programs import exhaustive


def slower(mode: ModeProfile, name: str, times: float) -> ModeProfile:
    """Return a profile in which one part takes ``times`` times as long."""

    def grown(row: Row) -> Row:
        if row.part.name != name:
            return row
        return replace(row, times_ns=np.round(row.times_ns * times).astype(np.int64))

    return replace(mode, rows=tuple(grown(row) for row in mode.rows))


def with_mode(mode: ModeProfile) -> Profile:
    return sample_profile(mode)


def test_profile_has_no_differences_from_itself() -> None:
    found = compare_profiles(sample_profile(), sample_profile(), parse_limits(["max:0%"]))
    assert not any([found.failures, found.differences, found.removed, found.new])
    assert {change.ratio for change in found.changes} == {1.0}
    assert TOTAL_LABEL in {change.label for change in found.changes}


@pytest.mark.parametrize(
    ("limits", "failing"),
    [
        ("p95:10%", ["0 RewardSum"]),
        ("p95:60%", []),
        ("mean:5%,max:10%", ["0 RewardSum"]),
        ("mean:1us", ["0 RewardSum"]),
        ("mean:1ms", []),
        ("RewardSum.p50:10%", ["0 RewardSum"]),
        ("ActionScaling.p95:10%", []),
        ("0.p90:10%", ["0 RewardSum"]),
        # Only two of the three repeats have a slow call.
        ("0.p99:10%", []),
    ],
)
def test_violated_limit_names_the_stage(limits: str, failing: list[str]) -> None:
    after = with_mode(slower(mode_profile(), "RewardSum", 1.5))
    found = compare_profiles(sample_profile(), after, parse_limits([limits]))
    assert list(found.failing) == failing
    for failure in found.failures:
        assert failure.message.startswith("0 RewardSum forward: ")
        assert "+50%" in failure.message


def test_growth_within_the_noise_violates_no_limit() -> None:
    before = mode_profile()
    (row,) = [each for each in before.rows if each.part.name == "RewardSum"]
    factors = np.array([1.0, 1.3, 1.1])[row.repeats]
    noisy = replace(row, times_ns=(row.times_ns * factors).astype(np.int64))
    rows = tuple(noisy if each is row else each for each in before.rows)
    after = with_mode(replace(before, rows=rows))
    within = compare_profiles(sample_profile(), after, parse_limits(["p50:1%"]))
    assert within.failing == ()
    assert any(change.ratio > 1.05 for change in within.changes if change.figure == "p50")
    large = with_mode(slower(replace(before, rows=rows), "RewardSum", 1.5))
    assert compare_profiles(sample_profile(), large, parse_limits(["p50:10%"])).failing == (
        "0 RewardSum",
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0, 1.1, 1.2], [1.3, 1.4, 1.5], True),
        ([1.3, 1.4, 1.5], [1.0, 1.1, 1.2], True),
        ([1.0, 1.1, 1.3], [1.2, 1.4, 1.5], False),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], False),
        # A repeat that was disturbed by another program is ignored.
        ([1.0, 1.0, 1.0, 1.0, 5.0], [1.2, 1.2, 1.2, 1.2, 1.2], True),
        ([1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 5.0], False),
    ],
)
def test_significance_depends_on_the_ranks_of_repeats(
    before: list[float], after: list[float], expected: bool
) -> None:
    assert are_apart(before, after) is expected


def test_change_of_less_than_one_percent_of_a_step_is_not_significant() -> None:
    after = with_mode(slower(mode_profile(), "RewardSum", 1.02))
    found = compare_profiles(sample_profile(), after, parse_limits(["mean:1%"]))
    assert found.failing == ()
    assert not any(change.is_significant for change in found.changes)
    after = with_mode(slower(mode_profile(), "Pendulum-v1", 1.03))
    assert compare_profiles(sample_profile(), after, parse_limits(["p50:1%"])).failing == (
        "env Pendulum-v1",
    )


def measured(random: np.random.Generator, factor: float = 1.0) -> Profile:
    """Return a profile with five repeats, noise and outliers, as on a busy machine.

    Args:
        random: Generator of the noise.
        factor: Factor of the times of the stage RewardSum.
    """
    mode = mode_profile()
    shifts = random.normal(1.0, 0.015, (5, len(mode.rows)))
    shifts += (random.random((5, 1)) < 0.05) * 1.0
    rows, total = [], np.zeros(5, np.int64)
    for index, row in enumerate(mode.rows):
        first = row.repeats == 0
        own = factor if row.part.name == "RewardSum" else 1.0
        noisy = [row.times_ns[first] * shift * own for shift in shifts[:, index]]
        grown = replace(
            row,
            times_ns=np.concatenate(noisy).astype(np.int64),
            starts_ns=np.tile(row.starts_ns[first], 5),
            spans_ns=np.tile(row.spans_ns[first], 5),
            steps=np.tile(row.steps[first], 5),
            repeats=np.repeat(np.arange(5), int(first.sum())),
        )
        rows.append(grown)
        total += np.bincount(grown.repeats, weights=grown.times_ns).astype(np.int64)
    steps = np.full(5, mode.steps[0])
    return with_mode(replace(mode, rows=tuple(rows), total_ns=total, steps=steps, frames=steps))


@exhaustive
def test_slower_stages_are_detected_with_few_false_positives() -> None:
    random, limits = np.random.default_rng(0), parse_limits(["p50:10%"])
    pairs = [compare_profiles(measured(random), measured(random), limits) for _ in range(20)]
    assert sum(bool(pair.failures) for pair in pairs) <= 1
    slower_pairs = [
        compare_profiles(measured(random), measured(random, 1.15), limits) for _ in range(10)
    ]
    assert [pair.failing for pair in slower_pairs] == [("0 RewardSum",)] * 10


def test_calibration_estimates_the_smallest_detectable_change() -> None:
    random = np.random.default_rng(1)
    found = calibrate([measured(random) for _ in range(4)])
    smallest = {change.label: change.growth for change in found.changes}
    assert (found.runs, found.false_growth) == (4, 0)
    assert found.limit == "p50:5%"
    assert 0.02 < smallest["0 RewardSum"] < 0.15
    for factor, is_found in ((1 + smallest["0 RewardSum"] * 1.2, True), (1.0, False)):
        after = calibrate([measured(random), measured(random, factor)])
        assert (after.false_growth > 0.02) is is_found
    with pytest.raises(ArgumentError, match="two profiles or more"):
        calibrate([sample_profile()])


def test_calibration_ignores_growth_from_zero() -> None:
    mode = mode_profile()
    (row,) = [each for each in mode.rows if each.part.name == "RewardSum"]
    rare = replace(row, times_ns=np.where(np.arange(len(row.times_ns)) % 3, 0, row.times_ns))
    rows = tuple(rare if each is row else each for each in mode.rows)
    free = with_mode(replace(mode, rows=rows))
    (change,) = [
        each
        for each in compare_profiles(free, sample_profile()).changes
        if (each.label, each.figure) == ("0 RewardSum", "p50")
    ]
    assert change.is_significant
    assert change.ratio == float("inf")
    assert calibrate([free, sample_profile()]).limit == "p50:5%"


def test_rows_of_only_one_profile_are_listed() -> None:
    short = mode_profile()
    found = compare_profiles(sample_profile(), with_mode(replace(short, rows=short.rows[:-1])))
    assert found.removed == (("unattributed", "step"),)
    assert found.new == ()


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (replace(sample_profile(), subject="CartPole-v1"), "pipeline: Pend"),
        (replace(sample_profile(), stages=("RewardSum",)), "stages: RewardSum, ActionScaling and"),
        (
            replace(sample_profile(), machine=replace(MACHINE, processor="other")),
            "processor: Example",
        ),
        (
            replace(sample_profile(), machine=replace(MACHINE, packages={"tdx": "2"})),
            "tdx: 1.0 and 2",
        ),
        (
            replace(sample_profile(), settings=replace(sample_profile().settings, num_envs=9)),
            "num_envs: 4 and 9",
        ),
        (
            sample_profile(mode_profile("eager"), mode_profile("planned")),
            "modes: eager and eager, pl",
        ),
    ],
    ids=["pipeline", "stages", "machine", "versions", "settings", "modes"],
)
def test_different_settings_are_compared_only_with_force(other: Profile, expected: str) -> None:
    with pytest.raises(TdxError, match=expected):
        compare_profiles(sample_profile(), other)
    found = compare_profiles(sample_profile(), other, force=True)
    assert found.differences[0].startswith(expected[:8])
    assert found.changes


def test_profiles_without_a_common_mode_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no mode in common: eager and planned"):
        compare_profiles(sample_profile(), sample_profile(mode_profile("planned")), force=True)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("p59:10%", UnknownNameError, "did you mean p99 or p95"),
        ("p95:10 parsecs", UnknownNameError, "units: %, ns"),
        ("p95", ArgumentError, "for example p95:10%"),
        ("p95:much", ArgumentError, "for example 10%"),
        ("p95:", ArgumentError, "for example 10%"),
    ],
)
def test_invalid_limits_are_refused(text: str, kind: type[TdxError], expected: str) -> None:
    with pytest.raises(kind) as raised:
        parse_limits([text])
    assert expected in str(raised.value)


def test_limit_on_an_unknown_row_is_refused() -> None:
    with pytest.raises(ArgumentError, match="did you mean RewardSum"):
        compare_profiles(sample_profile(), sample_profile(), parse_limits(["RewardSun.p95:10%"]))
