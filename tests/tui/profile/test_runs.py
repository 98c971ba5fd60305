"""Comparison of runs: rows are matched by stage, noise is ignored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft
from tdx.tui.profile.columns import build_sheet, choose_columns
from tdx.tui.profile.messages import CostRow
from tdx.tui.profile.runs import MAX_RUNS, Comparison, ProfileRun, RunHistory, compare_runs
from tdx.tui.profile.widgets import sort_lines
from tests.tui.profile.measured import costs, row

DRAFT = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter", "InitTracker"))


def run_of(history: RunHistory, draft: Draft, *modes: str) -> ProfileRun:
    return history.add(draft, costs(draft.pipeline(), *modes))


def with_rows(history: RunHistory, draft: Draft, *rows: CostRow) -> ProfileRun:
    """Return a run with these stages."""
    measured = costs(draft.pipeline())
    (mode,) = measured.modes
    rest = [row for row in mode.rows if row.work != "stage"]
    mode = replace(mode, rows=(*rest, *rows))
    return history.add(draft, replace(measured, modes=(mode,)))


def both(before: ProfileRun, after: ProfileRun) -> Comparison:
    found = compare_runs(after, "planned", before)
    assert found is not None
    return found


def compared(first: Draft, second: Draft) -> Comparison:
    history = RunHistory()
    return both(run_of(history, first), run_of(history, second))


def stages(comparison: Comparison) -> dict[tuple[int, ...], str]:
    return {key[2]: delta.kind for key, delta in comparison.rows.items() if key[0] == "stage"}


def test_removed_stage_is_listed_and_the_others_are_matched() -> None:
    found = compared(DRAFT, DRAFT.remove(0))
    assert stages(found) == {(0,): "removed", (1,): "faster", (2,): "faster"}
    assert [row.name for row in found.removed.values()] == ["RewardSum"]
    assert found.step.us == pytest.approx(-(2.0 + 1.0 + 1.0))
    assert found.text.plain == "11% less time than #1"


def test_new_moved_and_disabled_stages_are_marked() -> None:
    assert stages(compared(DRAFT, DRAFT.duplicate(0)))[3,] == "new"
    moved = stages(compared(DRAFT, DRAFT.move(0, 2)))
    assert moved == {(0,): "slower", (1,): "faster", (2,): "faster"}
    assert stages(compared(DRAFT, DRAFT.toggle(2)))[2,] == "removed"
    assert set(stages(compared(DRAFT, DRAFT)).values()) == {"same"}


def test_fused_group_is_compared_with_the_sum_of_its_stages() -> None:
    history = RunHistory()
    single = [row("stage", at, name, 4.0) for at, name in enumerate("ABC")]
    group = row("stage", 0, "A + B", 5.0, upto=1)
    apart = with_rows(history, DRAFT, *single)
    fused = with_rows(history, DRAFT, group, single[2])
    delta = both(apart, fused).rows["stage", "", (0, 1)]
    assert (delta.before_us, delta.after_us, delta.kind) == (8.0, 5.0, "faster")
    assert stages(both(apart, fused)) == {(0, 1): "faster", (2,): "same"}
    kinds = stages(both(fused, apart))
    assert kinds.pop((2,)) == "same"
    assert kinds == dict.fromkeys([(0,), (1,), (0, 1)], "regrouped")
    # A group that lost a stage is compared with the group before.
    whole = with_rows(history, DRAFT, row("stage", 0, "A + B + C", 9.0, upto=2))
    shorter = with_rows(history, DRAFT.remove(1), row("stage", 0, "A + C", 5.0, upto=1))
    assert stages(both(whole, shorter)) == {(0, 2): "faster"}


def test_difference_within_the_noise_is_not_a_change() -> None:
    history = RunHistory()
    noisy = row("stage", 0, "A", 4.0, repeats_us=(1.0, 2.0, 4.0, 6.0, 7.0))
    first = with_rows(history, DRAFT, noisy)
    second = with_rows(history, DRAFT, row("stage", 0, "A", 5.0))
    assert stages(both(first, second)) == {(0,): "same"}
    interrupted = row("stage", 0, "A", 80.0, repeats_us=(4.1, 4.1, 380.0, 4.1, 4.1))
    calm = with_rows(history, DRAFT, row("stage", 0, "A", 4.0))
    assert stages(both(calm, with_rows(history, DRAFT, interrupted))) == {(0,): "same"}
    once = with_rows(history, DRAFT, row("stage", 0, "A", 5.0, repeats_us=(5.0,)))
    assert stages(both(once, once)) == {(0,): "unknown"}


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
    assert compare_runs(third, "eager", second) is None
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


def test_columns_depend_on_width_and_measured_data() -> None:
    history = RunHistory()
    first = run_of(history, DRAFT)
    draft = DRAFT.remove(0)
    second = history.add(draft, costs(draft.pipeline(), "planned", gpu=True))
    alone, compared = build_sheet(first, "planned", None), build_sheet(second, "planned", first)
    assert [column.id for column in choose_columns(alone, 40)] == ["part", "step", "share"]
    assert [column.id for column in choose_columns(compared, 28)] == ["part", "step"]
    # The width at 60 columns.
    assert [column.id for column in choose_columns(compared, 30)] == ["part", "step", "delta"]
    shown = choose_columns(compared, 48)
    assert [column.title for column in shown] == ["part", "#1 µs", "#2 µs", "change"]
    wide = [column.id for column in choose_columns(compared, 200)]
    assert wide[:5] == ["part", "before", "step", "delta", "device"]
    assert {"kernels", "syncs", "median", "share", "bar"} <= set(wide)
    for width in range(28, 200, 7):
        assert sum(column.width + 2 for column in choose_columns(compared, width)) <= width


def test_median_is_shown_before_the_earlier_run_if_the_run_was_interrupted() -> None:
    history = RunHistory()
    first = run_of(history, DRAFT)
    interrupted = costs(DRAFT.pipeline(), "planned", preemption="half of the time")
    sheet = build_sheet(history.add(DRAFT, interrupted), "planned", first)
    shown = [column.title for column in choose_columns(sheet, 48)]
    assert shown == ["part", "median", "change", "#2 µs"]
    shown = [column.title for column in choose_columns(sheet, 60)]
    assert shown == ["part", "#1 median", "median", "change", "#2 µs"]


def test_interrupted_runs_are_compared_by_medians() -> None:
    history = RunHistory()
    repeats = (150.0, 151.0, 152.0, 153.0, 154.0)
    first = with_rows(history, DRAFT, row("stage", 0, "A", 100.0, median_us=20.0))
    for median_us, kind, text in (
        (20.1, "same", "the same as #1 within the noise"),
        (10.0, "same", "the same as #1 within the noise"),
        (40.0, "slower", "46% more time than #1, by medians"),
    ):
        interrupted = row("stage", 0, "A", 152.0, median_us=median_us, repeats_us=repeats)
        second = with_rows(history, DRAFT, interrupted)
        (mode,) = second.costs.modes
        mode = replace(mode, preemption="half of the time", repeats_us=repeats)
        second = replace(second, costs=replace(second.costs, modes=(mode,)))
        comparison = both(first, second)
        assert stages(comparison) == {(0,): kind}
        delta = next(delta for key, delta in comparison.rows.items() if key[0] == "stage")
        assert (delta.before_us, delta.after_us) == (20.0, median_us)
        assert comparison.text.plain == text


def test_rows_are_sorted_by_any_column_in_both_orders() -> None:
    history = RunHistory()
    first = run_of(history, DRAFT)
    sheet = build_sheet(run_of(history, DRAFT.remove(0)), "planned", first)
    for column in choose_columns(sheet, 200):
        there = [column.value(line) for line in sort_lines(sheet.lines, column)[:-1]]
        numbers = [each for each in there if isinstance(each, float)]
        assert numbers == sorted(numbers, reverse=column.largest_first)
        lines = sort_lines(sheet.lines, column, is_inverted=True)
        assert lines[-1].row.label == "whole step"
        back = [column.value(line) for line in lines[:-1]]
        assert [each for each in back if each is not None] == sorted(
            numbers, reverse=not column.largest_first
        )
        assert all(each is None for each in there[len(numbers) :])


def test_long_steps_are_in_milliseconds() -> None:
    history = RunHistory()
    run = with_rows(history, DRAFT, row("stage", 0, "A", 18_500.0))
    (mode,) = run.costs.modes
    mode = replace(mode, step_us=20_000.0)
    run = replace(run, costs=replace(run.costs, modes=(mode,)))
    sheet = build_sheet(run, "planned", None)
    step = choose_columns(sheet, 60)[1]
    assert (step.title, step.text(sheet.lines[-1])) == ("ms/step", "20.0")
    assert {line.row.label: step.text(line) for line in sheet.lines}["policy random"] == "<0.001"
