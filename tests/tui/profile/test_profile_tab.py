"""The profile tab by keys and by mouse, with costs that are always the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Button, Input

from tdx.inspection.overview import Problem
from tdx.pipeline import PipelineFile
from tdx.pipeline.editing import Draft
from tdx.tui.profile import measuring
from tdx.tui.profile.cost_table import CostTable
from tdx.tui.profile.profile_tab import ProfileTab
from tests.tui.driving import driven
from tests.tui.profile.measured import Profiler, StandIn, costs, profiling
from tests.tui.test_snapshots import all_the_same

CHAIN = ("RewardSum", "StepCounter", "InitTracker")


async def cut(app: Profiler, place: int = 0) -> None:
    """Take a stage out."""
    app.workspace.edit("remove", app.workspace.draft.removed(place))
    await app.settle()


async def test_measure_edit_measure_shows_what_was_saved() -> None:
    async with profiling(*CHAIN) as app:
        assert "What does each part" in app.text("#profile-summary")
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


async def test_the_row_under_the_cursor_is_drawn_and_stays_under_it() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r")
        app.app.query_one(CostTable).focus()
        await app.press("down")
        assert "env Pendulum-v1 step µs a call, n 5,000" in app.text("#profile-histogram")
        assert "p99 50.0" in app.text("#profile-histogram")
        assert "GPU" not in app.text("#profile-histogram")
        assert "█" in app.text("#profile-histogram")
        await app.press("s", "s")
        assert "env Pendulum-v1 step" in app.text("#profile-histogram")


async def test_modes_settings_and_memory_are_asked_for() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("m", "m", "m", "M", "n")
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
        await app.pilot.click("#profile-run")
        await app.settle()
        assert app.backend.cancelled == 1
        assert "cancelling …" in app.text("#profile-progress")
        app.backend.end(costs(app.workspace.draft.pipeline()))
        await app.settle()
        assert "cancelled: this is what was measured until then" in app.text("#profile-summary")
        assert len(app.rows) == 9


async def test_a_worker_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PATIENCE", 0.05)
    async with profiling(*CHAIN) as app:
        app.backend.waits = True
        app.backend.partly = costs(app.workspace.draft.pipeline())
        await app.press("r", "c")
        await app.pilot.pause(0.15)
        await app.settle()
        assert app.backend.restarted == ["profile"]
        assert "cancelled" in app.text("#profile-summary")
        assert len(app.rows) == 9
        app.backend.waits, app.backend.partly = False, None
        await app.press("r")
        assert "as before" in app.text("#profile-summary")


async def test_what_went_wrong_is_said_with_the_rows_so_far() -> None:
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


async def test_go_through_the_runs_and_compare_with_any() -> None:
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


async def test_an_accelerator_has_its_own_column_and_says_what_it_waits_for() -> None:
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
        assert "waits for the GPU 2 × a step at to_host.py:12" in text
        assert "GPU 1.50 in 3.0 kernels, waits for the host" in text


async def test_nothing_to_measure_is_said() -> None:
    async with profiling(env=False) as app:
        await app.press("r")
        assert app.backend.asked == []
        assert "choose an env first" in app.messages


async def test_the_tab_looks_as_it_did(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    draft = Draft.of(PipelineFile.load(root / "sample_pipelines" / "pendulum.yaml").pipeline)
    backend = StandIn(looks=True)
    async with driven(draft=draft, backend=backend) as app:
        app.app.screen.show_tab("profile")  # type: ignore[attr-defined]
        await app.settle()
        app.find("#profile-run").focus()
        await app.press("down", "r")
        app.app.workspace.edit("off", app.app.workspace.draft.toggled(1), place=1)
        await app.settle()
        app.find("CostTable").focus()
        await app.press("r", "s", "down", "down")
        app.app.clear_notifications()
        assert await all_the_same(app, "profile", tmp_path) == []
        await app.press("f1")
        assert "adds to a mean step" in app.text()


async def test_a_run_is_told_to_someone_who_looks_elsewhere() -> None:
    async with driven("RewardSum", backend=StandIn(looks=True), size=(80, 24)) as app:
        app.find("ProfileTab").action_measure()
        await app.settle()
        assert "#1 first run: 28.4 µs/step" in [n.message for n in app.app._notifications]


async def test_colours_follow_the_theme() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("r", "s")
        table = app.app.query_one(CostTable)

        def colours() -> list[object]:
            return [cell.style for n in range(table.row_count) for cell in table.get_row_at(n)]

        before = colours()
        app.app.theme = "textual-light"
        await app.settle()
        assert colours() != before


async def test_a_part_is_found_by_its_name() -> None:
    async with profiling(*CHAIN) as app:
        tab = app.app.query_one(ProfileTab)
        tab.begin_search()
        await app.settle()
        assert "nothing is measured yet; r measures" in app.messages
        await app.press("r")
        app.app.screen.set_focus(app.app.query_one(CostTable))
        tab.begin_search()
        await app.type("for step")
        assert "1 StepCounter forward" in app.text("#profile-histogram")
        assert "1 match" in app.text("SearchLine")
        await app.type("forward")
        await app.press("enter", "n")
        assert "2 InitTracker forward" in app.text("#profile-histogram")
        assert "3 of 3 matches" in app.text("SearchLine")
        await app.press("n", "N", "N")
        assert "1 StepCounter forward" in app.text("#profile-histogram")
        await app.press("escape", "n")
        assert app.app.focused is app.app.query_one("#profile-steps")


async def test_operators_and_what_the_chain_saves_stand_with_the_part() -> None:
    async with profiling(*CHAIN, size=(120, 36)) as app:
        await app.press("o")
        await app.pilot.click("#profile-marginal-too")
        assert "r measures torch's operators in each part too" in app.messages
        app.app.clear_notifications()
        await app.press("r")
        app.app.query_one(CostTable).focus()
        await app.press("down", "down", "down")
        assert app.backend.asked[0].extras == frozenset(["operators", "marginal"])
        said = app.text("#profile-part")
        assert "0 RewardSum forward" in said
        assert "without 0 RewardSum the chain saves 2.50 µs a step, ± 0.20" in said
        assert "1.20 ████████ 2 × add" in said
        assert "mul" in said
        assert app.column("marginal")[3] == "2.50"
        await app.pilot.resize_terminal(48, 17)
        await app.settle()
        assert "add 1.20 × 2 · mul 0.30 × 0.25" in app.text("#profile-operators")
        await app.press("o", "M", "r")
        assert app.backend.asked[1].extras == frozenset(["memory", "marginal"])


async def test_three_modes_stand_side_by_side() -> None:
    async with profiling(*CHAIN) as app:
        for _ in range(4):
            await app.press("m")
        await app.press("r")
        assert app.backend.asked[0].modes == ("eager", "planned", "compiled")
        assert app.titles[:6] == ["part↑", "eager", "planned", "saves", "compiled", "saves"]
        line = dict(zip(app.column("part"), app.rows, strict=True))["1 StepCounter ↓"]
        assert line[1:6] == ["15.0", "3.00", "-80 %", "1.50", "-90 %"]
        assert "compiled 31.0 (-57 %) µs/step" in app.text("#profile-summary")
        await app.press("m", "m", "m")
        assert "compiled · " in app.text("#profile-summary")


async def test_advice_is_shown_and_makes_an_edit_that_can_be_undone() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("v")
        assert app.app.screen.query("#advice")
        said = app.text("#advice")
        assert "2 changes tried beside the chain as it is, 1 worth it" in said
        assert "-20 % remove StepCounter because nobody reads what it writes" in said
        assert "≈ compile=True" in said
        assert "not tried: put Resize first: other values come out" in said
        await app.press("down", "enter")
        assert "that is no edit of the chain: it is done where it is run" in app.messages
        await app.press("up", "enter")
        stages = app.workspace.draft.stages
        assert [each.config.name for each in stages] == ["RewardSum", "InitTracker"]
        assert [each.number for each in stages] == [0, 2]
        app.workspace.undo()
        await app.settle()
        await app.press("v")
        assert "1 worth it" in app.text("#advice")
        assert app.backend.advised == 1
        await app.press("r")
        assert app.backend.advised == 2
        await app.press("escape")
        app.backend.advice_error = "the env is broken"
        await cut(app)
        await app.pilot.click("#profile-advice")
        await app.settle()
        assert "✕ the env is broken" in app.text("#advice")
