"""Comparison of runs: rows are matched by stage, noise is ignored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft
from tdx.tui.profile.columns import choose_columns, choose_mode_columns
from tdx.tui.profile.runs import MAX_RUNS, Comparison, ProfileRun, RunHistory, compare_runs
from tdx.tui.profile.widgets import build_lines, sort_lines
from tests.tui.profile.measured import costs, mode_costs

DRAFT = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter", "InitTracker"))


def run_of(history: RunHistory, draft: Draft, *modes: str) -> ProfileRun:
    return history.add(draft, costs(draft.pipeline(), *modes))


def both(first: Draft, second: Draft) -> Comparison:
    history = RunHistory()
    before, after = run_of(history, first), run_of(history, second)
    found = compare_runs(after, before, "planned")
    assert found is not None
    return found


def stages(comparison: Comparison) -> dict[str, str]:
    return {key[1]: delta.kind for key, delta in comparison.rows.items() if key[0] == "stage"}


def test_removed_stage_is_listed_and_the_others_are_matched() -> None:
    found = both(DRAFT, DRAFT.remove(0))
    assert stages(found) == {"0": "removed", "1": "faster", "2": "faster"}
    assert [row.name for row in found.removed] == ["RewardSum", "RewardSum"]
    assert found.step.us == pytest.approx(-(2.0 + 0.05 + 1.0 + 1.0))
    assert found.step.kind == "faster"


def test_new_moved_and_disabled_stages_are_marked() -> None:
    assert stages(both(DRAFT, DRAFT.duplicate(0)))["3"] == "new"
    assert stages(both(DRAFT, DRAFT.move(0, 2))) == {"0": "slower", "1": "faster", "2": "faster"}
    assert stages(both(DRAFT, DRAFT.toggle(2)))["2"] == "removed"
    assert set(stages(both(DRAFT, DRAFT)).values()) == {"same"}


def test_difference_within_the_noise_is_not_a_change() -> None:
    history = RunHistory()
    quiet = run_of(history, DRAFT)
    loud = mode_costs(DRAFT.pipeline(), "planned", noise=0.9)
    noisy = history.add(DRAFT.remove(0), replace(quiet.costs, modes=(loud,)))
    comparison = compare_runs(noisy, quiet, "planned")
    assert comparison is not None
    assert comparison.step.kind == "same"
    few = [replace(each, error_us=50.0) for each in quiet.costs.modes[0].rows]
    again = history.add(
        DRAFT.move(0, 2), replace(quiet.costs, modes=(replace(loud, rows=tuple(few)),))
    )
    second = compare_runs(again, quiet, "planned")
    assert second is not None
    assert set(stages(second).values()) == {"same"}


def test_run_is_compared_with_the_previous_one_in_its_mode() -> None:
    history = RunHistory()
    first = run_of(history, DRAFT, "eager", "planned")
    second = run_of(history, DRAFT, "planned")
    failed = history.add(DRAFT, costs(DRAFT.pipeline(), "planned"), "it raised")
    third = run_of(history, DRAFT.remove(1), "eager")
    assert history.previous(third, "eager") is first
    assert history.previous(third, "planned") is failed
    assert history.previous(second, "planned") is first
    assert history.previous(first, "planned") is None
    assert compare_runs(third, second, "planned") is None
    assert (first.change, second.change, third.change) == (
        "first run",
        "no changes",
        "remove StepCounter",
    )


def test_number_of_kept_runs_is_limited() -> None:
    history = RunHistory()
    for _ in range(MAX_RUNS + 3):
        run_of(history, DRAFT)
    assert len(history.runs) == MAX_RUNS
    assert history.runs[-1].number == MAX_RUNS + 3


def test_rows_of_two_modes_are_side_by_side() -> None:
    run = run_of(RunHistory(), DRAFT, "eager", "planned")
    lines = build_lines(run, "both", None)
    eager, planned, saved = choose_mode_columns(lines, 80)[1:4]
    line = next(each for each in lines if each.row.label == "1 StepCounter" and each.by_mode)
    lines = [each for each in lines if each.row.label == "1 StepCounter"]
    forward = lines[1]
    assert (eager.text(forward), planned.text(forward)) == ("15.0", "3.00")
    assert saved.text(forward) == "-80 %"
    assert saved.tone(forward) == "faster"
    assert line in lines


def test_columns_depend_on_width_and_measured_data() -> None:
    history = RunHistory()
    first = run_of(history, DRAFT)
    draft = DRAFT.remove(0)
    second = history.add(draft, costs(draft.pipeline(), "planned", gpu=True))
    alone, compared = build_lines(first, "planned", None), build_lines(second, "planned", first)

    def ids(lines: list[object], width: int) -> list[str]:
        return [column.id for column in choose_columns(lines, width)]  # type: ignore[arg-type]

    assert ids([*alone], 40) == ["part", "step", "share"]
    assert ids([*compared], 48) == ["part", "step", "device", "delta"]
    wide = ids([*compared], 200)
    assert wide[:6] == ["part", "step", "device", "kernels", "syncs", "delta"]
    assert {"share", "n", "mean", "p50", "p90", "p95", "p99", "max"} <= set(wide)
    for width in range(30, 200, 7):
        total = sum(column.width + 2 for column in choose_columns(compared, width))
        assert total <= max(width, 44)


def test_rows_are_sorted_by_any_column_in_both_orders() -> None:
    history = RunHistory()
    first = run_of(history, DRAFT)
    lines = build_lines(run_of(history, DRAFT.remove(0)), "planned", first)
    for column in choose_columns(lines, 200):
        there = [column.value(line) for line in sort_lines(lines, column, False)]
        numbers = [each for each in there if isinstance(each, float)]
        assert numbers == sorted(numbers, reverse=column.largest_first)
        back = [column.value(line) for line in sort_lines(lines, column, True)]
        assert [each for each in back if each is not None] == sorted(
            numbers, reverse=not column.largest_first
        )
        assert all(each is None for each in there[len(numbers) :])
