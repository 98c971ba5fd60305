"""The profile tab by keys and mouse, with constant profiles."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.widgets import Button, Input

from tdx.inspection.overview import Problem
from tdx.pipeline import PipelineFile
from tdx.pipeline.editing import Draft
from tdx.tui.profile import measurement
from tdx.tui.profile.widgets import CostTable
from tests.tui.driving import driven
from tests.tui.profile.measured import Profiler, StandIn, costs, profiling
from tests.tui.snapshots import check_snapshots

CHAIN = ("RewardSum", "StepCounter", "InitTracker")


async def cut(app: Profiler, place: int = 0) -> None:
    """Remove a stage."""
    app.workspace.edit("remove", app.workspace.draft.remove(place))
    await app.settle()


async def test_second_measurement_shows_the_saved_time() -> None:
    async with profiling(*CHAIN) as app:
        assert "what each part of a rollout costs" in app.text("#profile-summary")
        await app.press("r")
        assert "#1 first run" in app.text("#profile-summary")
        assert "±2.0% quiet" in app.text("#profile-summary")
        assert "change" not in app.titles
        await cut(app)
        assert "edited: remove RewardSum" in app.text("#profile-summary")
        await app.press("r")
        assert "-4.05 µs" in app.text("#profile-summary")
        changes = dict(zip(app.column("part"), app.column("change"), strict=True))
        assert changes["0 StepCounter ↓"] == "-1.00"
        assert changes["env Pendulum-v1"] == "≈"
        assert changes["0 RewardSum ↓"] == "-2.00"
        assert app.text("#profile-runs").index("#2") < app.text("#profile-runs").index("#1")


async def test_sort_by_header_and_by_keys() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r")
        in_order = app.column("part")
        await app.press("s")
        assert app.column("part")[0] == "env Pendulum-v1"
        assert "µs/step↓" in app.titles
        await app.press("i")
        assert app.column("part")[-1] == "env Pendulum-v1"
        table = app.app.query_one(CostTable)
        await app.pilot.click(CostTable, offset=(3, 0))
        await app.settle()
        assert app.column("part") == in_order
        assert table.sort_by == "part"
        await app.pilot.click(CostTable, offset=(3, 0))
        await app.settle()
        assert app.column("part") == in_order[::-1]


async def test_cursor_stays_on_its_row() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r")
        app.app.query_one(CostTable).focus()
        await app.press("down")
        assert "env Pendulum-v1 step µs per call, n 5,000" in app.text("#profile-histogram")
        assert "p99 50.0" in app.text("#profile-histogram")
        assert "GPU" not in app.text("#profile-histogram")
        assert "█" in app.text("#profile-histogram")
        await app.press("s", "s")
        assert "env Pendulum-v1 step" in app.text("#profile-histogram")


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
            "eager",
            "planned",
            "saves",
        ]
        assert "eager " in app.text("#profile-summary")
        await app.pilot.click("#profile-mode")
        await app.press("m")
        assert "µs/step" in app.titles


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
        assert len(app.rows) == 9


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
        assert len(app.rows) == 9
        app.backend.waits, app.backend.partly = False, None
        await app.press("r")
        assert "no changes" in app.text("#profile-summary")


async def test_error_is_shown_with_the_rows_measured_before_it() -> None:
    async with profiling(*CHAIN) as app:
        found = costs(app.workspace.draft.pipeline())
        app.backend.answer = Problem("TDX000", "the worker process ended", "it starts again")
        for partly, rows in ((None, 0), (found, 9)):
            app.backend.partly = partly
            await app.press("r")
            assert "✕ the worker process ended (it starts again)" in app.text("#profile-summary")
            assert len(app.rows) == rows
            assert app.workspace.journal.entries[-1].severity == "error"
        app.backend.answer = costs(app.workspace.draft.pipeline(), error="step 7: it is broken")
        await app.press("r")
        assert "✕ step 7: it is broken" in app.text("#profile-summary")
        assert len(app.rows) == 9


async def test_runs_are_browsed_and_compared() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r")
        await cut(app, 2)
        await app.press("r")
        await cut(app, 1)
        await app.press("r", "left_square_bracket", "left_square_bracket")
        assert "#1 first run" in app.text("#profile-summary")
        await app.press("b", "right_square_bracket", "right_square_bracket")
        assert "to #1" in app.text("#profile-summary")
        assert "◆#1" in app.text("#profile-runs")
        await app.pilot.click("#profile-runs", offset=(4, 2))
        await app.settle()
        assert "#2 remove InitTracker" in app.text("#profile-summary")


async def test_accelerator_has_columns_and_a_note_about_waiting() -> None:
    async with profiling(*CHAIN) as app:
        app.backend.gpu = True
        await app.press("r", "s")
        assert {"GPU µs", "kernels", "syncs"} <= set(app.titles)
        assert "CPU µs↓" in app.titles
        app.app.query_one(CostTable).focus()
        await app.press("down")
        assert "hidden syncs: the host waits for the GPU in 0 RewardSum" in app.text(
            "#profile-summary"
        )
        text = app.text("#profile-histogram")
        assert "waits for the GPU 2 × per step at to_host.py:12" in text
        assert "GPU 1.50 in 3.0 kernels, waits for the host" in text


async def test_missing_pipeline_is_reported() -> None:
    async with profiling(env=False) as app:
        await app.press("r")
        assert app.backend.asked == []
        assert "choose an env first: press e" in app.messages


@pytest.mark.usefixtures("fixed_catalog")
async def test_the_tab_matches_snapshots(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    draft = Draft.of(PipelineFile.load(root / "sample_pipelines" / "pendulum.yaml").pipeline)
    backend = StandIn(looks=True)
    async with driven(draft=draft, backend=backend) as app:
        app.app.screen.show_tab("profile")  # type: ignore[attr-defined]
        await app.settle()
        app.find("#profile-run").focus()
        await app.press("down", "r")
        app.app.workspace.edit("off", app.app.workspace.draft.toggle(1), place=1)
        await app.settle()
        app.find("CostTable").focus()
        await app.press("r", "s", "down", "down")
        app.app.clear_notifications()
        await check_snapshots(app, "profile", tmp_path)
        await app.press("f1")
        assert "share of a part in the mean step" in app.text()


async def test_run_is_reported_while_another_tab_is_in_front() -> None:
    async with driven("RewardSum", backend=StandIn(looks=True), size=(80, 24)) as app:
        app.find("ProfileTab").action_measure()
        await app.settle()
        assert "#1 first run: 28.4 µs/step" in [n.message for n in app.app._notifications]


async def test_colors_follow_the_theme() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r", "s")
        table = app.app.query_one(CostTable)

        def colors() -> list[object]:
            return [cell.style for n in range(table.row_count) for cell in table.get_row_at(n)]

        before = colors()
        app.app.theme = "textual-light"
        await app.settle()
        assert colors() != before
