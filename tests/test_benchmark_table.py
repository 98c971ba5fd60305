"""The table of benchmarks: figures, verdicts and empty columns."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tests.benchmarks import cuda_table
from tests.benchmarks.bars import (
    BUILD,
    COLUMNS,
    INSPECT,
    PIXELS,
    PLAIN_STEP,
    PROFILED,
    Bar,
    Goal,
    Times,
    results_table,
)
from tests.benchmarks.growth import LENGTH, STEPS, growth_table
from tests.profiling.sample_profile import mode_profile, on_device, sample_profile


def printed(measured: dict[Bar, Times]) -> list[str]:
    """Return the lines of the table."""
    text = StringIO()
    Console(file=text, width=160, no_color=True).print(results_table(measured))
    return text.getvalue().splitlines()


@pytest.mark.parametrize(
    ("goal", "times", "figure", "met"),
    [
        (Goal(2.0), {"tdx": [1.5e-3]}, 1.5, True),
        (Goal(2.0), {"tdx": [2.5e-3]}, 2.5, False),
        (Goal(5.0, "TorchRL", faster=True), {"tdx": [2.0], "TorchRL": [12.0]}, 6.0, True),
        (Goal(5.0, "TorchRL", faster=True), {"tdx": [3.0], "TorchRL": [12.0]}, 4.0, False),
        (Goal(1.2, "bare"), {"tdx": [11.0], "bare": [10.0]}, 1.1, True),
        (Goal(1.2, "bare"), {"tdx": [13.0], "bare": [10.0]}, 1.3, False),
        (Goal(5.0, "TorchRL", faster=True), {"tdx": [2.0]}, None, None),
    ],
)
def test_figure_and_verdict_of_a_goal(
    goal: Goal, times: Times, figure: float | None, met: bool | None
) -> None:
    milliseconds = 1e-3
    found = [*goal.figures(times, milliseconds), None][0]
    assert found == pytest.approx(figure)
    assert (None if found is None else goal.is_met(found)) is met


def test_table_shows_the_median_and_spread_of_all_rounds() -> None:
    # Both are twice as slow in the second round.
    times: Times = {"tdx": [11e-6, 24e-6, 13e-6], "bare": [10e-6, 20e-6, 10e-6]}
    assert Goal(1.2, "bare").figures(times, 1e-6) == pytest.approx([1.1, 1.2, 1.3])
    (row,) = [line for line in printed({PROFILED: times}) if PROFILED.work in line]
    assert "10 µs (not profiled)" in row
    assert "13 µs" in row
    assert "1.2 ×" in row
    assert "1.15 to 1.25" in row


def test_table_shows_times_bars_and_verdicts() -> None:
    lines = printed({PLAIN_STEP: {"tdx": [20e-6], "TorchRL": [100e-6]}, BUILD: {"tdx": [1.5e-3]}})
    (step,) = [line for line in lines if "no transform" in line]
    (build,) = [line for line in lines if "output_spec" in line]
    assert "100 µs" in step
    assert "≥ 5.5 × TorchRL" in step
    assert "5 ×" in step
    assert "missed" in step
    assert "1.5 ms" in build
    assert "ok" in build


def test_bare_time_is_subtracted() -> None:
    taken: Times = {"tdx": [300e-6], "TorchRL": [900e-6], "bare": [200e-6]}
    counted = PIXELS.counted(taken)
    medians = {who: values[0] for who, values in counted.items()}
    assert medians == pytest.approx({"tdx": 100e-6, "TorchRL": 700e-6, "bare": 200e-6})
    assert PIXELS.counted({"tdx": [300e-6]}) == {}
    assert BUILD.counted(taken) is taken
    lines = [line for line in printed({PIXELS: taken}) if "Pong" in line]
    assert all("200 µs (env alone)" in line for line in lines)
    assert "100 µs" in lines[0]
    assert "7 ×" in lines[1]
    assert ["ok" in line for line in lines] == [False, True]


def test_time_is_compared_in_the_unit_of_the_bar() -> None:
    (build,) = [line for line in printed({BUILD: {"tdx": [2.5e-3]}}) if "output_spec" in line]
    assert "2.5 ms" in build
    assert "missed" in build


def test_columns_of_unmeasured_contestants_are_empty() -> None:
    (row,) = [line for line in printed({INSPECT: {"tdx": [1.0]}}) if INSPECT.work in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    empty = [""] * (len(COLUMNS) - 1)
    assert cells == ["P8", INSPECT.work, *empty, "1 s", "≤ 1.1 × bare", "", "", ""]


def test_table_contains_only_measured_rows() -> None:
    assert not [line for line in printed({BUILD: {"tdx": [1.0]}}) if INSPECT.work in line]


def test_growth_table_shows_sizes_and_the_fitted_line() -> None:
    measured: dict[Bar, Times] = {
        LENGTH.at(size): {"tdx": [(10 + 2 * size) * 1e-6]} for size in LENGTH.sizes
    }
    table = growth_table(LENGTH, measured)
    assert table is not None
    planned = list(table.columns[-1].cells)
    assert planned[:2] == ["12", "14"]
    assert planned[-1] == "10 + 2 a stage"
    assert set(table.columns[1].cells) == {""}


def test_growth_with_the_steps_is_fitted_to_whole_rollouts() -> None:
    measured: dict[Bar, Times] = {
        STEPS.at(size): {"tdx": [(500 / size + 9) * 1e-6]} for size in STEPS.sizes
    }
    assert STEPS.line("tdx", measured) == "500 + 9 a step"


def test_unmeasured_growth_has_no_table() -> None:
    assert growth_table(LENGTH, {}) is None


def test_description_of_a_stretch_goal() -> None:
    assert Goal(1.2, "bare", stretch=True).describe("µs") == "≤ 1.2 × bare (stretch)"


def test_cuda_table_contains_the_figures_of_a_profile() -> None:
    table = cuda_table.markdown(sample_profile(on_device(mode_profile()))).splitlines()
    (stage,) = (line for line in table if line.startswith("| 0 RewardSum | forward"))
    assert "| 2.00 |" in stage
    assert "reward_sum.py:40 1.00" in stage
    assert {line.count("|") for line in table if line.startswith("|")} == {len(cuda_table.HEAD) + 1}
    assert table[-1] == "The operator pass slows everything down."


def test_envs_of_the_cuda_table_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_table, "PIXEL_BATCHES", (2,))
    monkeypatch.setattr(cuda_table, "NATIVE_BATCH", 3)
    shapes = [make().rollout(2).shape for _, make in cuda_table.cases("cpu")]
    assert [tuple(shape) for shape in shapes] == [(2, 2), (3, 2), (3, 2)]
