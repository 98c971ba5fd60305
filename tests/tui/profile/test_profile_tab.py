"""The profile tab by keys and mouse, with constant profiles."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.widgets import Button, Input

from tdx.inspection.overview import Problem
from tdx.pipeline import PipelineFile
from tdx.pipeline.editing import Draft
from tdx.tui.chain_status import ENV
from tdx.tui.profile import measurement
from tdx.tui.profile.widgets import CostTable
from tests.programs import exhaustive
from tests.tui.driving import driven
from tests.tui.profile.measured import Profiler, StandIn, costs, profiling
from tests.tui.snapshots import check_snapshots

CHAIN = ("RewardSum", "StepCounter", "InitTracker")


async def cut(app: Profiler, place: int = 0) -> None:
    """Remove a stage."""
    app.workspace.edit("remove", app.workspace.draft.remove(place))
    await app.settle()


@exhaustive
async def test_second_measurement_shows_the_saved_time() -> None:
    async with profiling(*CHAIN) as app:
        assert "what each part of a rollout costs" in app.text("#profile-summary")
        await app.press("r")
        assert "#1 first run" in app.text("#profile-summary")
        assert "noise: the repeats are within ±2.0%" in app.text("#profile-summary")
        assert app.titles[:4] == ["part", "µs/step↓", "median", "share"]
        assert app.column("part") == [
            *("env Pendulum-v1", "2 InitTracker", "1 StepCounter", "0 RewardSum"),
            *("tdx itself", "policy random", "whole step"),
        ]
        assert app.column("share")[0] == "31.2%"
        assert app.workspace.costs == {ENV: "25.0 µs", 0: "2.00 µs", 1: "3.00 µs", 2: "4.00 µs"}
        await cut(app)
        assert "edited: remove RewardSum" in app.text("#profile-summary")
        assert app.workspace.costs == {}, "the times of another chain"
        await app.press("r")
        assert "31.3 µs per step, 31.9k frames/s, planned: 11% less time than #1" in app.text(
            "#profile-summary"
        )
        assert app.titles[:4] == ["part", "#1 µs", "#2 µs↓", "change"]
        rows = {cells[0]: cells[1:4] for cells in app.rows}
        assert rows["0 StepCounter"] == ["3.00", "2.00", "-33%"]
        assert rows["env Pendulum-v1"] == ["25.0", "25.0", "≈"]
        assert rows["0 RewardSum"] == ["2.00", "", "gone"]
        assert rows["whole step"] == ["35.3", "31.3", "-11%"]
        assert app.workspace.costs == {ENV: "25.0 µs", 0: "2.00 µs", 1: "3.00 µs"}
        assert app.text("#profile-runs").index("#2") < app.text("#profile-runs").index("#1")


@exhaustive
async def test_sort_by_header_and_by_keys() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r")
        assert "µs/step↓" in app.titles
        await app.press("i")
        assert app.column("part")[-2:] == ["env Pendulum-v1", "whole step"]
        await app.press("s")
        assert "median↓" in app.titles
        table = app.app.query_one(CostTable)
        await app.pilot.click(CostTable, offset=(3, 0))
        await app.settle()
        in_order = app.column("part")
        assert in_order[:3] == ["policy random", "env Pendulum-v1", "0 RewardSum"]
        assert table.sort_by == "part"
        await app.pilot.click(CostTable, offset=(3, 0))
        await app.settle()
        assert app.column("part") == [*in_order[-2::-1], "whole step"]


@exhaustive
async def test_cursor_stays_on_its_row() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r")
        app.app.query_one(CostTable).focus()
        assert "env Pendulum-v1 step per call, n 5,000" in app.text("#profile-histogram")
        assert "p99 50.0 µs max 500 µs" in app.text("#profile-histogram")
        assert "GPU" not in app.text("#profile-histogram")
        assert "█" in app.text("#profile-histogram")
        await app.press("down")
        assert "2 InitTracker forward" in app.text("#profile-histogram")
        assert "per step also: reset 0.050 µs" in app.text("#profile-histogram")
        await app.press("s", "i")
        assert "2 InitTracker forward" in app.text("#profile-histogram")
        await app.press("ctrl+end")
        assert "whole step µs per step in each repeat" in app.text("#profile-histogram")


@exhaustive
async def test_request_has_modes_settings_and_memory() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("m", "m", "M", "n")
        assert app.app.focused is app.app.query_one("#profile-steps")
        app.app.query_one("#profile-steps", Input).value = "50"
        app.app.query_one("#profile-repeats", Input).value = "3"
        await app.press("enter")
        asked = app.backend.asked[0]
        assert (asked.modes, asked.steps, asked.repeats) == (("eager", "planned"), 50, 3)
        assert (asked.extras, asked.warmup) == (frozenset(["memory"]), 5)
        assert [each.rstrip("↑") for each in app.titles][:4] == [
            "part",
            "eager µs",
            "planned µs↓",
            "change",
        ]
        assert "less time than eager" in app.text("#profile-summary")
        await app.pilot.click("#profile-mode")
        await app.press("m")
        assert "µs/step↓" in app.titles


@exhaustive
async def test_run_and_stop_by_mouse_with_progress() -> None:
    async with profiling(*CHAIN) as app:
        app.backend.waits = True
        await app.pilot.click("#profile-run")
        await app.settle()
        assert "planned: time …" in app.text("#profile-progress")
        assert str(app.app.query_one("#profile-run", Button).label) == "Stop"
        await app.press("r")
        assert len(app.backend.asked) == 1
        button = app.app.query_one("#profile-run", Button)
        while button.has_class("-active"):  # Textual ignores a click on a pressed button.
            await asyncio.sleep(0.02)
        await app.pilot.click("#profile-run")
        await app.settle()
        assert app.backend.cancelled == 1
        assert "cancelling …" in app.text("#profile-progress")
        app.backend.end(costs(app.workspace.draft.pipeline()))
        await app.settle()
        assert "cancelled: partial results" in app.text("#profile-summary")
        assert len(app.rows) == 7


@exhaustive
async def test_unresponsive_worker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "CANCEL_TIMEOUT", 0.05)
    async with profiling(*CHAIN) as app:
        app.backend.waits = True
        app.backend.partly = costs(app.workspace.draft.pipeline())
        await app.press("r", "c")
        while not app.backend.restarted:
            await app.pilot.pause(0.02)
        await app.settle()
        assert app.backend.restarted == ["profile"]
        assert "cancelled" in app.text("#profile-summary")
        assert len(app.rows) == 7
        app.backend.waits, app.backend.partly = False, None
        await app.press("r")
        assert "no changes" in app.text("#profile-summary")


@exhaustive
async def test_error_is_shown_with_the_rows_measured_before_it() -> None:
    async with profiling(*CHAIN) as app:
        found = costs(app.workspace.draft.pipeline())
        app.backend.answer = Problem("TDX000", "the worker process ended", "it starts again")
        for partly, rows in ((None, 0), (found, 7)):
            app.backend.partly = partly
            await app.press("r")
            assert "✕ the worker process ended (it starts again)" in app.text("#profile-summary")
            assert len(app.rows) == rows
            assert app.workspace.journal.entries[-1].severity == "error"
        app.backend.answer = costs(app.workspace.draft.pipeline(), error="step 7: it is broken")
        await app.press("r")
        assert "✕ step 7: it is broken" in app.text("#profile-summary")
        assert len(app.rows) == 7


@exhaustive
async def test_runs_are_browsed_and_compared() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r")
        await cut(app, 2)
        await app.press("r")
        await cut(app, 1)
        await app.press("r", "left_square_bracket", "left_square_bracket")
        assert "#1 first run" in app.text("#profile-summary")
        await app.press("b", "right_square_bracket", "right_square_bracket")
        assert "less time than #1" in app.text("#profile-summary")
        assert "◆#1" in app.text("#profile-runs")
        await app.pilot.click("#profile-runs", offset=(4, 2))
        await app.settle()
        assert "#2 remove InitTracker" in app.text("#profile-summary")


@exhaustive
async def test_accelerator_has_columns_and_a_note_about_waiting() -> None:
    async with profiling(*CHAIN) as app:
        app.backend.gpu = True
        await app.press("r")
        assert {"span µs", "busy µs", "kernels", "syncs"} <= set(app.titles)
        assert "host µs/step↓" in app.titles
        app.app.query_one(CostTable).focus()
        await app.press("down")
        assert "hidden syncs: the host waits for the GPU in 2 InitTracker" in app.text(
            "#profile-summary"
        )
        text = app.text("#profile-histogram")
        assert (
            "waits for the GPU 2 × per step in cudaStreamSynchronize at to_host.py:12: 1.20 µs"
            in text
        )
        assert "bound by a wait: the host waits 1.2 of 2 µs" in text
        assert (
            "GPU per step: span 1.50 µs, busy 0.75 µs in 3 kernels, launch delay 4.50 µs, "
            "idle 0.25 µs (0.15 nothing launched, 0.10 between kernels), waits for the host" in text
        )
        assert "cuda:0: A card, driver 570, 1,500 of 1,980 MHz" in app.text("#profile-summary")
        await app.press("s")
        assert "span µs↓" in app.titles


@exhaustive
async def test_missing_pipeline_is_reported() -> None:
    async with profiling(env=False) as app:
        await app.press("r")
        assert app.backend.asked == []
        assert "choose an env first: press e" in app.messages


@pytest.mark.usefixtures("fixed_catalog")
@exhaustive
async def test_the_tab_matches_snapshots(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    draft = Draft.of(PipelineFile.load(root / "sample_pipelines" / "pendulum.yaml").pipeline)
    backend = StandIn(looks=True)
    async with driven(draft=draft, backend=backend) as app:
        await app.app.screen.show_tab("profile")  # type: ignore[attr-defined]
        await app.settle()
        app.find("#profile-run").focus()
        await app.press("down", "r")
        app.app.workspace.edit("off", app.app.workspace.draft.toggle(1), place=1)
        await app.settle()
        app.find("CostTable").focus()
        await app.press("r", "down", "down")
        app.app.clear_notifications()
        await check_snapshots(app, "profile", tmp_path)
        await app.press("f1")
        assert "time of each part in the mean step" in app.text()


@exhaustive
async def test_run_is_reported_while_another_tab_is_in_front() -> None:
    async with driven("RewardSum", backend=StandIn(looks=True), size=(80, 24)) as app:
        assert not app.app.screen.query("ProfileTab"), "the tab was never opened"
        await app.press("ctrl+p", "text:profile measure", "enter")
        assert "#1 first run: 28.3 µs per step" in [n.message for n in app.app._notifications]


async def test_interrupted_measurement_says_where_its_medians_are() -> None:
    async with profiling(*CHAIN, size=(26, 16)) as app:
        pipeline = app.workspace.draft.pipeline()
        app.backend.answer = costs(pipeline, preemption="half of the time")
        await app.press("r")
        assert "preempted: z shows medians" in app.text("#profile-summary")
        assert "median" not in app.titles
        await app.press("r")  # which the summary compares, in a line more
        assert "preempted: z shows medians" in app.text("#profile-summary")
        await app.resize(56, 16)
        assert "preempted: compare medians" in app.text("#profile-summary")
        assert "median" in app.titles


async def test_narrow_tab_shows_all_extra_passes() -> None:
    async with profiling(*CHAIN, size=(26, 16)) as app:
        await app.press("o")
        assert "○memory ●ops ○marginal" in app.text("#profile-bar")


@exhaustive
async def test_colors_follow_the_theme() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r")
        table = app.app.query_one(CostTable)

        def colors() -> list[object]:
            return [cell.style for n in range(table.row_count) for cell in table.get_row_at(n)]

        before = colors()
        app.app.theme = "textual-light"
        await app.settle()
        assert colors() != before
