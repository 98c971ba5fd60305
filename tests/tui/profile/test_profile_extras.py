"""Profile tab apart from times: search, operators, modes, suggestions."""

from __future__ import annotations

from tdx.tui.profile.advice import AdviceList
from tdx.tui.profile.profile_tab import ProfileTab
from tdx.tui.profile.widgets import CostTable
from tests.programs import exhaustive
from tests.tui.profile.measured import profiling
from tests.tui.profile.test_profile_tab import CHAIN, cut


@exhaustive
async def test_row_is_found_by_name() -> None:
    async with profiling(*CHAIN) as app:
        tab = app.app.query_one(ProfileTab)
        tab.start_search()
        await app.settle()
        assert "no measurement yet; press r" in app.messages
        await app.press("r")
        app.app.screen.set_focus(app.app.query_one(CostTable))
        tab.start_search()
        await app.type("count")
        assert "1 StepCounter forward" in app.text("#profile-histogram")
        assert "1 match" in app.text("ProfileTab SearchBar")
        await app.type("r")
        await app.press("enter", "n")
        assert "0 RewardSum forward" in app.text("#profile-histogram")
        await app.press("N")
        assert "1 StepCounter forward" in app.text("#profile-histogram")
        await app.press("escape", "n")
        assert app.app.focused is app.app.query_one("#profile-steps")


@exhaustive
async def test_details_of_a_row_list_operators_and_marginal_cost() -> None:
    async with profiling(*CHAIN, size=(120, 36)) as app:
        await app.press("o")
        await app.pilot.click("#profile-marginal-too")
        assert "r also measures torch operators in each part" in app.messages
        app.app.clear_notifications()
        await app.press("r")
        app.app.query_one(CostTable).focus()
        await app.press("down", "down", "down")
        assert app.backend.asked[0].extras == frozenset(["operators", "marginal"])
        said = app.text("#profile-part")
        assert "0 RewardSum forward" in said
        assert "without 0 RewardSum the chain saves 2.50 µs per step ± 0.20 µs" in said
        assert "1.20 ████████ 2 × add" in said
        assert "mul" in said
        assert app.column("marginal")[3] == "2.50"
        await app.resize(48, 17)
        assert "add 1.20 × 2 · mul 0.30 × 0.25" in app.text("#profile-operators")
        await app.press("o", "M", "r")
        assert app.backend.asked[1].extras == frozenset(["memory", "marginal"])


@exhaustive
async def test_modes_are_shown_side_by_side() -> None:
    async with profiling(*CHAIN) as app:
        await app.press("m", "m", "r")
        assert app.backend.asked[0].modes == ("eager", "planned")
        assert app.titles[:4] == ["part", "eager µs", "planned µs↓", "change"]
        line = dict(zip(app.column("part"), app.rows, strict=True))["1 StepCounter"]
        assert line[1:4] == ["15.0", "3.00", "-80%"]
        await app.press("m", "m")
        assert "frames/s, eager" in app.text("#profile-summary")


@exhaustive
async def test_suggestion_is_applied_and_undone() -> None:
    async with profiling(*CHAIN, size=(120, 36)) as app:

        def title() -> str:
            return str(app.app.query_one(AdviceList).border_title)

        await app.press("r")  # changes are tried after a measurement
        assert title() == "what would help: 2 changes tried, 1 saved time"
        said = app.text("#profile-advice-list")
        assert "-20% remove StepCounter 50.0 → 40.0 ± 1.00 µs per step; same values" in said
        assert "no gain: freeze the statistics" in said
        assert "not tried: put Resize first: other values come out" in said
        await app.press("v", "end", "enter")
        assert "this is not an edit of the chain; make it where the chain is run" in app.messages
        await app.press("home", "enter")
        stages = app.workspace.draft.stages
        assert [each.config.name for each in stages] == ["RewardSum", "InitTracker"]
        assert [each.number for each in stages] == [0, 2]
        assert title().endswith("in another chain; v tries again")
        app.workspace.undo()
        await app.settle()
        assert title() == "what would help: 2 changes tried, 1 saved time"
        assert app.backend.advised == 1
        await app.press("v")
        assert app.backend.advised == 2
        app.backend.advice_error = "the env is broken"
        await cut(app)
        await app.pilot.click("#profile-advice")
        await app.settle()
        assert title() == "what would help: ✕ the env is broken"


@exhaustive
async def test_measuring_again_and_edits_interrupt_the_search_for_advice() -> None:
    async with profiling(*CHAIN, size=(120, 36)) as app:
        app.backend.waits_for_advice = True
        await app.press("r")
        title = app.app.query_one(AdviceList)
        assert title.border_title == "what would help: changes are being tried …"
        assert "whole step" in app.column("part")
        await app.press("v")
        assert "changes are being tried; press c to cancel" in app.messages
        await app.press("r")
        assert (len(app.backend.asked), app.backend.cancelled) == (2, 1)
        app.backend.released.clear()
        await cut(app)
        assert app.backend.cancelled == 2
        assert app.backend.released == ["profile"]
        assert title.border_title == "what would help: v tries changes"
