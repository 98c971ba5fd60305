"""Live tab: stepping, history, comparison and failing envs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tdx import StepCounter, TransformedEnv, open_dump
from tdx.pipeline import Pipeline, parse_stage
from tdx.pipeline.editing import Draft
from tdx.tui.live.history import Timeline
from tdx.tui.live.live_tab import LIVE_BINDINGS
from tdx.tui.live.plots import PlotPane
from tests.inspection.live.stages import (
    At,
    Ragged,
    pendulum,
    raises,
    writes_nan,
    writes_too_much,
)
from tests.programs import exhaustive
from tests.tui.driving import driven
from tests.tui.idle import resize, until
from tests.tui.playing import Live, playing

COUNTED = "StepCounter(max_steps=5)"


async def steps(app: Live, count: int) -> None:
    """Make a number of steps."""
    await app.press("n", f"text:{count}", "enter")


def is_running(app: Live) -> bool:
    """Return True while the session makes steps by itself."""
    state = app.tab.connection.state
    return state is not None and state.status == "running"


@exhaustive
async def test_session_resets_steps_runs_and_pauses() -> None:
    async with playing(COUNTED) as app:
        assert "step 0" in app.text("#live-head")
        assert app.text("#live-values").count("step_count@1") == 1
        await app.press("s")
        assert "step 1" in app.text("#live-head")
        assert app.tab.connection.state is not None
        assert app.tab.connection.state.last == 1
        values = app.text("#live-values")
        assert "0 StepCounter" in values
        assert "reward@0" in values
        await app.press("r")
        assert app.tab.connection.state.last == 2
        await app.pilot.press("space")
        await until(lambda: is_running(app) and app.player.session.tracer.steps > 10)
        await until(lambda: "pause" in app.text("#live-run"))
        await app.press("space")
        made = app.tab.connection.state.steps
        assert made > 2
        await app.settle()
        assert app.tab.connection.state.steps == made
        await steps(app, 13)
        assert app.player.session.tracer.steps == made + 13
        reading = app.app.workspace.readings[0]
        assert (reading.key, reading.is_changed) == ("step_count", True)
        await app.press("n", "text:many", "enter")
        assert app.player.session.tracer.steps == made + 13


@exhaustive
async def test_steps_of_the_session_are_dumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with playing() as app:
        await app.press("D")
        assert "make a step first" in app.note
        await app.press("s", "s", "D", "enter")
        assert "2 steps to pendulum-live" in app.note
        assert open_dump(tmp_path / "pendulum-live").data.shape == (2,)


@exhaustive
async def test_runs_until_a_condition() -> None:
    async with playing(COUNTED) as app:
        for text, said in (
            ("truncated", "truncated is set"),
            ("step_count >= 3", "step_count is 3, step_count >= 3"),
        ):
            await app.press("w", f"text:{text}", "enter")
            assert app.note == f"■ {said}"
            assert f"until {text}" in app.text("#live-top")
            await app.press("space")
            assert app.note.startswith("■ ")
            assert app.tab.connection.state is not None
            assert app.tab.connection.state.steps > 3
        await app.press("w", "text:no condition", "enter")
        assert app.tab.connection.stop_condition is None
        await app.press("w", "text:rewrad > 1 and done", "enter")
        assert "rewrad" in app.note
        assert "did you mean reward?" in app.note
        await app.press("w", "text:trunkated", "enter")
        assert "unknown stop condition" in app.note
        await app.press("s")
        assert app.note == ""


@exhaustive
async def test_rate_is_changed() -> None:
    async with playing() as app:
        await app.press("+")
        assert "30 steps/s" in app.text("#live-top")
        await app.press("-", "-")
        assert (app.tab.connection.rate, app.player.rate) == (10, 10)
        await app.press(*"++++++++")
        assert "full speed" in app.text("#live-top")


@exhaustive
async def test_action_is_zero_or_manual() -> None:
    async with playing() as app:
        await app.press("i", "text:zero", "enter", "s")
        assert app.player.session.tracer.last is not None
        assert app.player.session.tracer.last.version("action", "inverse").value.item() == 0
        await app.press("i", "text:manual", "enter")
        assert app.app.focused is app.tab.panes.manual
        await app.press("right", "right", "s")
        given = app.player.session.tracer.last.version("action", "inverse").value.item()
        assert given == pytest.approx(0.4)
        assert "0.4" in app.text("#live-manual")
        await app.press("s")
        assert "action@0 0.4" in app.text("#live-values")
        await app.press("end", "s")
        assert app.player.session.tracer.last.version("action", "inverse").value.item() == 2
        await app.press("backspace", "home", "shift+right", "i", "text:random", "enter", "s")
        assert app.player.session.tracer.last.stages[0].name == "random"


@exhaustive
async def test_manual_action_is_set_with_the_mouse() -> None:
    async with playing(env="CartPole-v1") as app:
        await app.press("i", "text:manual", "enter", "s")
        begin, _ = app.tab.panes.manual._track()
        await app.pilot.click("#live-manual", offset=(begin + 5, 1))
        await app.press("s")
        assert app.player.session.tracer.last is not None
        action = app.player.session.tracer.last.version("action", "inverse").value
        assert int(action.reshape(-1)[-1]) == 1


@exhaustive
async def test_action_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "actions.json"
    file.write_text(json.dumps([0.25, 0.5, 0.75]))
    async with playing() as app:
        await app.press("i", f"text:{file}", "enter", "s", "s")
        assert app.player.action_source == f"sequence:{file}"
        assert app.player.session.tracer.last is not None
        assert app.player.session.tracer.last.version("action", "inverse").value.item() == 0.5
        await app.press("i", "text:sequence:nowhere.npy", "enter")
        assert "nowhere.npy" in app.note
        await app.press("i", "text:module:Nothing", "enter", "s")
        assert app.player.session.tracer.steps == 3


@exhaustive
async def test_scrubs_through_the_history() -> None:
    async with playing(COUNTED) as app:
        await steps(app, 12)
        last = app.shown
        await app.press("left", "left")
        assert app.shown == last - 2
        assert "◀ -2" in app.text("#live-time")
        await app.press("shift+left", "right")
        assert app.shown == last - 11
        await app.press("home")
        assert app.shown == 0
        await app.press("right_square_bracket")
        assert app.shown == 6
        await app.press("right_square_bracket", "left_square_bracket", "left_square_bracket")
        assert app.shown == 0
        await app.press("end")
        assert app.tab.connection.state is not None
        assert app.tab.connection.state.follows_latest
        await app.press("left", "s")
        assert app.tab.connection.state.follows_latest


@exhaustive
async def test_scrubs_with_the_mouse() -> None:
    async with playing(COUNTED) as app:
        await steps(app, 12)
        begin, width = app.tab.query_one(Timeline)._track
        await app.pilot.click("#live-time", offset=(begin + width // 2, 0))
        await app.settle()
        assert 5 <= app.shown <= 9
        await app.pilot.click("#live-time", offset=(begin + width + 2, 0))
        await app.settle()
        assert app.shown == 14
        await app.pilot.click("#live-plots", offset=(12, 5))
        await app.settle()
        assert app.shown < 5


@exhaustive
async def test_differences_of_two_steps() -> None:
    async with playing(COUNTED) as app:
        await steps(app, 4)
        await app.press("d")
        assert "3 → 4" in " ".join(app.text("#live-values").split())
        await app.press("home", "right", "m", "end")
        assert "◆" in app.text("#live-time")
        assert "differences to trace 1" in app.text("#live-tab")
        assert "1 → 4" in " ".join(app.text("#live-values").split())
        assert "Δ3" in app.text("#live-values")
        await app.press("d", "left", "left", "left", "m")
        assert app.tab.connection.state is not None
        assert app.tab.connection.state.reference is None


@exhaustive
async def test_shows_all_keys_or_only_written_ones() -> None:
    async with playing(COUNTED, "RewardSum") as app:
        await app.press("s")
        assert app.text("#live-values").count("observation@0") == 1
        await app.press("o")
        assert app.text("#live-values").count("observation@0") == 4
        values = app.tab.panes.values
        values.go_to_line(1)
        await app.press("down", "down", "pagedown", "pageup", "up")
        assert values.cursor == 2


@exhaustive
async def test_selected_stage_is_scrolled_to_the_top() -> None:
    async with playing(*["RewardSum"] * 1, *["DoubleToFloat"] * 12, COUNTED, size=(60, 26)) as app:
        await app.press("s")
        app.app.workspace.select(13)
        await app.settle()
        assert "13 StepCounter" in app.text("#live-values")


async def test_cursor_of_the_values_stays_at_its_key() -> None:
    async with playing(COUNTED) as app:
        await app.press("s")
        values = app.tab.panes.values
        at = [line.label for line in values.value_lines].index("observation@0")
        values.go_to_line(at)
        await app.press("r")
        assert values.value_lines[values.cursor].label == "observation@0"
        assert values.cursor != at, "a reset has no action"


async def test_values_scroll_to_the_selected_stage_when_they_need_a_scroll_bar() -> None:
    chain = ("StepCounter(max_steps=200)", "RewardSum", "RewardClipping(-1, 0)")
    async with playing(*chain, size=(80, 24), whole=True) as app:
        await app.press("1")
        app.app.workspace.select(2)
        await app.press("3", "s")
        assert "2 RewardClipping" in app.text("#live-values")
        # The first step has more lines than the reset: the action is above the env.
        app.app.workspace.select(0)
        await resize(app.pilot, 80, 18)
        await app.press("r", "s")
        shown = app.text("#live-values", lines=True).splitlines()
        assert "0 StepCounter" in shown[0], "the stage is at the top, with what follows it"


@exhaustive
async def test_values_start_at_the_selected_stage_below_the_titles() -> None:
    async with playing(*["DoubleToFloat"] * 20, COUNTED, size=(120, 20)) as app:
        app.app.workspace.select(20)
        await app.press("s")
        shown = app.text("#live-values")
        assert "version" in app.find("#live-values").lines[0][0][0]
        assert "20 StepCounter" in shown


@exhaustive
async def test_plotting_without_values_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    async with playing(COUNTED) as app:
        monkeypatch.setattr(app.tab, "notify", lambda message, **_: said.append(message))
        app.tab.connection.state = None
        app.tab.action_plot()  # As if the key came before the first trace.
        await app.settle()
        assert said == ["there are no values to plot yet: press s to step"]
        assert len(app.app.screen_stack) == 1


@exhaustive
async def test_plots_of_keys() -> None:
    async with playing(COUNTED) as app:
        await steps(app, 4)
        await app.press("c", "text:observation[1]", "enter")
        assert app.tab.panes.plot_names == ("reward", "return", "observation[1]")
        assert "observation[1]" in app.text("#live-plots")
        app.tab.panes.values.focus()
        app.tab.panes.values.go_to_line(
            next(
                n
                for n, each in enumerate(app.tab.panes.values.value_lines)
                if each.key == "step_count"
            )
        )
        await app.press("enter")
        assert "step_count" in app.tab.panes.plot_names
        assert "step_count 4" in app.text("#live-plots")
        await app.press("c", "text:reward", "enter", "b")
        assert "reward" not in app.tab.panes.plot_names
        assert app.tab.panes.window == 1000
        curves = app.tab.query_one(PlotPane).curves
        assert [each.name for each in curves] == list(app.tab.panes.plot_names)


@exhaustive
async def test_episode_is_opened_from_the_table() -> None:
    async with playing(COUNTED) as app:
        await steps(app, 12)
        assert app.text("#live-episodes").count("truncated") == 2
        app.tab.panes.episodes.focus()
        await app.press("down", "enter")
        assert app.shown == 6
        await app.pilot.click("#live-episodes", offset=(5, 4), times=2)
        await app.settle()
        assert app.shown == 0


@exhaustive
async def test_one_env_of_a_batch_is_shown() -> None:
    async with playing(make=lambda pipeline: Ragged((3, 4, 5))) as app:
        await app.press("s")
        assert "reward@0 1" in app.text("#live-values")
        await app.press("full_stop")
        assert "reward@0 10" in app.text("#live-values")
        assert app.tab.connection.state is not None
        assert app.tab.connection.state.row == 1
        await app.press("comma", "comma")
        assert app.tab.connection.state.row is None
        await app.pilot.click("#live-envs", offset=(24, 0))
        await app.settle()
        assert app.tab.connection.state.row == 1
        assert "all 3" in app.text("#live-envs")


@exhaustive
async def test_manual_action_applies_to_the_shown_env(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(pipeline: Pipeline) -> Ragged:
        env = Ragged((9, 9, 9))
        monkeypatch.setattr(env.action_spec, "rand", lambda *_: torch.ones(3, dtype=torch.int64))
        return env

    async with playing(make=make) as app:

        async def taken() -> list[int]:
            await app.press("s")
            assert app.player.session.tracer.last is not None
            value = app.player.session.tracer.last.version("action", "inverse").value
            return [int(each) for each in value]

        await app.press("i", "text:manual", "enter", "right", "right")
        assert "for env 0, the others random" in app.text("#live-manual")
        assert await taken() == [2, 1, 1]
        await app.press("full_stop")
        assert await taken() == [1, 2, 1]
        await app.press("comma", "comma")
        assert "for all 3 envs" in app.text("#live-manual")
        assert await taken() == [2, 2, 2]


@exhaustive
async def test_images_are_drawn_before_and_after_a_stage() -> None:
    from tdx import ToTensorImage

    def make(pipeline: Pipeline) -> TransformedEnv:
        return TransformedEnv(Ragged(), ToTensorImage(in_keys=["pixels"]))

    async with playing(make=make) as app:
        await app.press("s")
        shown = app.text("#live-images")
        assert "Pendulum-v1 8×12×3" in shown
        assert "→ 0 ToTensorImage 3×8×12" in shown
        assert "▀▀▀▀▀▀▀▀▀▀▀▀" in shown


@exhaustive
async def test_panes_alternate_on_a_small_screen() -> None:
    async def press_v() -> list[list[str]]:
        seen: list[list[str]] = []
        for _ in range(5):
            seen.append([name for name, pane in app.tab.panes.by_name.items() if pane.display])
            await app.press("v")
        return seen

    async with playing(COUNTED, size=(48, 15)) as app:
        await app.press("s")
        assert await press_v() == [["values"], ["plots"], ["images"], ["episodes"], ["manual"]]
        await app.pilot.click("#show-episodes")
        await app.settle()
        assert app.tab.panes.front == "episodes"
        assert app.app.focused is app.tab.panes.episodes
        await app.press("v", "v")
        # A pane of a few lines leaves room for the values.
        await resize(app.pilot, 48, 20)
        plots, episodes, manual = (["values", name] for name in ("plots", "episodes", "manual"))
        assert await press_v() == [["values"], plots, ["images"], episodes, manual]


@exhaustive
async def test_nothing_of_the_bars_is_cut_on_a_narrow_screen() -> None:
    from tdx import ToTensorImage

    def make(pipeline: Pipeline) -> TransformedEnv:
        return TransformedEnv(Ragged(), ToTensorImage(in_keys=["pixels"]))

    async with playing(make=make, size=(32, 14)) as app:
        await app.press("s")
        assert app.text("#live-bars") == "▶ run step n reset until … - 20 steps/s + action: random"
        assert app.text("#live-choose") == "values plots images epis. manual"


async def test_episodes_and_position_of_a_batch_are_whole_on_a_narrow_screen() -> None:
    async with playing(make=lambda pipeline: Ragged((3, 40)), size=(32, 18)) as app:
        await steps(app, 4)
        app.tab.show_pane("episodes")
        await app.settle()
        assert "running" in app.text("#live-episodes")
        assert "trace 5 ◉ live" in app.text("#live-time")
        await app.press("left")
        assert "trace 4 ◀ -1" in app.text("#live-time")


async def test_envs_of_a_batch_without_room_are_marked() -> None:
    async with playing(make=lambda pipeline: Ragged((3,) * 12), size=(60, 20)) as app:
        await app.press("s")
        assert app.text("#live-envs").endswith("3 ▁ 1000 …")
        await app.press(*["full_stop"] * 6)
        assert app.text("#live-envs").startswith("all 12 … 4 ▁ 1e+04 5 ")
        assert app.text("#live-envs").endswith(" …")


async def test_first_difference_is_in_view_on_a_small_screen() -> None:
    # The header grows, and takes lines from the values, after the cursor has moved there.
    async with playing("StepCounter", "RewardClipping(-1, 0)", size=(48, 18)) as app:
        await app.press("n", "text:5", "enter")
        count, workspace = len(app.backend.players), app.app.workspace
        workspace.edit("edit", workspace.draft.replace(1, parse_stage("RewardClipping(-9, -5)")))
        await until(lambda: len(app.backend.players) > count)
        await app.settle()
        assert "1 RewardClipping" in app.text("#live-values")
        assert "≠1" in app.text("#live-values")
        assert app.text("#live-replay") == "Y keep u undo B branch"
        assert not app.find("#live-bars").display, "the differences need the room"


@exhaustive
async def test_everything_can_be_clicked() -> None:
    async with playing(COUNTED) as app:
        await app.pilot.click("#live-step")
        await app.settle()
        assert app.player.session.tracer.steps == 1
        await app.pilot.click("#live-reset")
        await app.settle()
        assert app.shown == 2
        await app.pilot.click("#live-faster")
        assert app.tab.connection.rate == 30
        for name in ("live-n", "live-until", "live-source"):
            await app.pilot.click(f"#{name}")
            await app.pilot.pause()
            assert len(app.app.screen_stack) == 2, name
            await app.pilot.press("escape")


@exhaustive
async def test_actions_in_the_palette_drawing_and_search_in_the_whole_app() -> None:
    async with playing(COUNTED, "RewardSum", whole=True, size=(120, 40)) as app:
        commands = app.commands()
        for binding in LIVE_BINDINGS:
            is_active = "match" not in str(binding.id) and binding.id != "live.end_search"
            assert (f"Live: {binding.description}" in commands) is is_active
            assert hasattr(app.tab, f"action_{binding.action.partition('(')[0]}")
        await app.press("f1")
        assert "Values" in app.text(".dialog")
        await app.press("escape")
        await check_drawing_only_in_front(app)
        await check_search(app)


async def check_drawing_only_in_front(app: Live) -> None:
    """Check that nothing is drawn while another tab is in front."""
    assert app.player.panes.cells == 1
    await app.press("1")
    await app.settle()
    assert app.player.panes.cells == 0
    await app.press("3")
    await app.settle()
    assert app.player.panes.cells == 1
    assert app.app.focused is app.tab.panes.values


async def check_search(app: Live) -> None:
    """Check that a search visits each match in keys and stages."""

    def found() -> str:
        return app.tab.panes.values.search_lines()[app.tab.panes.values.cursor]

    await app.press("s", "v", "slash", "text:REWARD", "enter")
    assert app.app.focused is app.tab.panes.values
    seen = [found()]
    for _ in range(3):
        await app.press("n")
        seen.append(found())
    assert seen == ["reward@0", "1 RewardSum", "episode_reward@1", "reward@0"]
    assert "1 of 3 matches" in app.text("LiveTab SearchBar")
    await app.press("N")
    assert found() == "episode_reward@1"
    assert app.player.session.tracer.steps == 1
    await app.press("escape", "n", "text:2", "enter")
    assert app.player.session.tracer.steps == 3


# ---------------------------------------------------------------------- bad input


@exhaustive
async def test_stage_that_raises_is_reported_and_the_history_remains() -> None:
    def make(pipeline: Pipeline) -> TransformedEnv:
        return pendulum(StepCounter(50), At(7, raises))

    async with playing(make=make, whole=True, size=(180, 50)) as app:
        await app.press("space")
        assert "1 At" in app.note
        assert "out of order" in app.note
        assert "in step 7" in app.note
        assert "out of order" in app.text("#live-values")
        await app.press("left")
        assert app.shown == 7
        assert "out of order" not in app.text("#live-values")
        await app.press("f12")
        assert "out of order" in app.text(".dialog")
        await app.press("escape", "r", "s")
        assert app.note == ""
        assert app.player.session.tracer.steps == 8


async def test_values_of_the_selected_stage_stay_in_view_while_the_env_is_stepped() -> None:
    async with playing("StepCounter", "RewardSum", "RewardClipping(-1, 0)", size=(34, 18)) as app:
        app.app.workspace.select(2)
        # A step has more lines above than the reset, those of the action.
        await app.press("s")
        assert "reward@1" in app.text("#live-values")


@exhaustive
async def test_histograms_are_complete_next_to_the_scroll_bar() -> None:
    async with playing(*["RewardSum"] * 12, size=(54, 24)) as app:
        await steps(app, 2)
        values = app.find("#live-values")
        counts = next(v for v in values.view.values if v.key == "observation").histogram
        for width in (54, 57, 58, 59):
            await resize(app.pilot, width, 24)
            values.go_to_stage(-1)
            await app.drawn()
            assert values.show_vertical_scrollbar
            shown = app.text("#live-values", lines=True)
            (line,) = (line for line in shown.splitlines() if "observation@0" in line)
            bars = sum(sign in "▁▂▃▄▅▆▇█" for sign in line)
            assert bars == sum(count > 0 for count in counts), width


@exhaustive
async def test_nan_and_spec_violations_are_flagged() -> None:
    def make(pipeline: Pipeline) -> object:
        return pendulum(At(3, writes_too_much), At(5, writes_nan))

    async with playing(make=make) as app:  # type: ignore[arg-type]
        await app.press("w", "text:nan", "enter")
        assert "reward@1 holds nan, written by 1 At" in app.note
        plots = app.text("#live-plots")
        assert "reward nan" in plots
        assert "return nan" in plots
        assert "✕ reward@1" in app.text("#live-values")
        assert "1 nan" in app.text("#live-values")
        assert "✕ reward@0" not in app.text("#live-values")
        assert app.text("#live-time").count("✕") == 1
        await app.press("exclamation_mark")
        assert app.shown == 4
        assert "✕ observation@1" in app.text("#live-values")
        assert "99" in app.text("#live-values")


@exhaustive
async def test_session_restarts_after_an_edit_and_continues() -> None:
    async with playing(COUNTED) as app:
        await app.pilot.press("space")
        await until(lambda: is_running(app))
        app.app.workspace.select(0)
        draft = app.app.workspace.draft
        app.app.workspace.edit("remove", draft.remove(0))
        while len(app.backend.players) < 2 or app.tab.connection.state is None:
            await app.pilot.pause(0.02)
        assert app.player.is_running
        await app.press("space")
        assert "step_count" not in app.text("#live-values")


@exhaustive
async def test_chain_that_cannot_be_built_is_reported() -> None:
    async with playing("Resize(84, 84)") as app:
        assert app.note.startswith("✕")
        assert "Resize" in app.note
        draft = app.app.workspace.draft
        app.app.workspace.select(0)
        app.app.workspace.edit("remove", draft.remove(0))
        while app.note != "■ restarted after an edit":
            await app.pilot.pause(0.02)
        await app.press("s")
        assert app.player.session.tracer.steps == 1


@exhaustive
async def test_missing_env_is_reported() -> None:
    async with playing(env="Nowhere-v9") as app:
        assert "Nowhere-v9" in app.note
        await app.press("s", "left", "d", "m", "c", "escape")
        assert "Nowhere-v9" in app.note


@exhaustive
async def test_without_an_env_a_hint_is_shown() -> None:
    async with playing(env=None) as app:
        await app.press("space")
        assert app.note == "■ choose an env first: press e"


@exhaustive
async def test_worker_is_killed_by_key_and_restarts() -> None:
    async with playing(COUNTED) as app:
        await steps(app, 3)
        await app.press("ctrl+k")
        assert app.backend.restarts == ["live"]
        assert app.note.startswith("■ worker killed · ← → browse the history")
        assert app.text("#live-head").startswith("■ ended · step 3")
        assert app.text("#live-time").endswith("trace 3 ■ last")
        assert "step_count@1 3" in app.text("#live-values")
        await app.press("left", "left", "d", "m", "c", "escape", "D", "comma")
        assert app.shown == 1
        assert "step_count@1" in app.text("#live-values")
        assert "◀ -2" in app.text("#live-time")
        await app.press("d", "home")
        assert "step_count@1 0" in app.text("#live-values")
        await app.press("end")
        assert "step_count@1 3" in app.text("#live-values")
        assert len(app.backend.players) == 1
        await app.press("s")
        assert len(app.backend.players) == 2
        assert app.player.session.tracer.steps == 1


@exhaustive
async def test_dead_worker_is_reported() -> None:
    async with playing(COUNTED) as app:
        app.backend.end("the worker process ended")
        await until(lambda: app.note.startswith("✕ the worker process ended"))
        assert "restart" in app.note
        assert "ended" in app.text("#live-head")
        await app.press("s")
        assert len(app.backend.players) == 2
        assert app.note == ""


@exhaustive
async def test_first_screen_says_that_the_worker_starts_and_who_acts() -> None:
    pipeline = replace(Pipeline.of("Pendulum-v1", "RewardSum"), policy="zero")
    # This backend never starts a session.
    async with driven(draft=Draft.of(pipeline), size=(80, 24)) as app:
        await app.app._press_keys(["3"])
        shown = app.text("LiveTab")
        assert "starting worker" in shown
        assert "20 steps/s + action: zero" in shown
        assert "all 0" not in shown, "there is no batch"


@exhaustive
async def test_header_does_not_name_a_refused_action_source() -> None:
    async with playing("RewardSum") as app:
        await app.press("i", "text:sb3:none.zip", "enter")
        assert "allow-code" in app.note
        assert "action: random" in app.text("LiveTab")
