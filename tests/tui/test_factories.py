"""Tabs with the env of a factory: available commands, and reasons for the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tdx.inspection.live.stack_env import StackEnv
from tdx.pipeline import Pipeline
from tdx.stacks.building import build_stack
from tdx.tui.backend.requests import CheckChain
from tdx.tui.compose.form_row import FormRow
from tdx.tui.live.messages import RunSteps, SetPanes
from tdx.tui.live.requests import RunSession
from tdx.tui.live.worker import LivePlayer
from tdx.tui.profile.requests import FindAdvice, MeasurePipeline
from tdx.tui.profile.worker import find_advice, measure_pipeline
from tdx.tui.screens.bars import HintState
from tests.programs import exhaustive
from tests.tui import wrapped_env
from tests.tui.driving import driven, job
from tests.tui.playing import playing
from tests.tui.test_stacks import do

MODULE = wrapped_env.__name__
MAKE = f"{MODULE}:make"
TORCHRL = f"{MODULE}:make_torchrl"
SB3 = f"{MODULE}:make_vec_normalize"


# TorchRL


@exhaustive
async def test_stages_of_other_libraries_are_read_only() -> None:
    async with driven(env=TORCHRL, allow_code=True) as app:
        # Transforms of torchrl are read only stages with specs and lineage.
        assert app.names == ["RewardScaling", "StepCounter"]
        assert "2 stages · torchrl" in app.text("ChainPane")
        await app.press("down")
        stage = app.text("StageTab")
        assert "RewardScaling" in stage
        assert "torchrl/envs/transforms/" in stage
        assert "in_keys ['reward']" in stage
        assert "Read-only: the stages are Python code" in stage
        await app.press("down", "2")
        assert "+ step_count [1] int64 ≥ 0" in app.text("SpecsTab")
        assert "observation@0 by env → output" in app.text("#lineage")
        await app.press("1", "escape", "home", "down", "space", "d")
        assert set(app.notices) == {f"the stages are Python code of {TORCHRL}: edit them there"}
        assert app.names == ["RewardScaling", "StepCounter"]

        # Settings for native chains are hidden.
        await app.open(env=SB3, size=(140, 45))
        form = app.text("StageTab")
        assert "A stable-baselines3 env with" in form
        assert "VecNormalize returns other observations than its space declares" in form
        assert [row.field.name for row in app.app.screen.query(FormRow)] == ["kwargs", "seed"]


def test_check_with_steps_supports_torchrl_transforms() -> None:
    request = CheckChain(Pipeline.of(TORCHRL), allow_code=True, steps=True)
    assert request.answer(job()) == ()


def test_torchrl_steps_have_the_stage_numbers_of_the_chain() -> None:
    pipeline, topics = Pipeline.of(TORCHRL), dict[str, Any]()
    stack = build_stack(pipeline, True)
    for numbers in ((), (0, 1)):
        request = RunSession(pipeline, True, rate=None, numbers=numbers)
        player = LivePlayer(stack.target, request, topics.__setitem__)
        do(player, SetPanes(cells=5), RunSteps(steps=2))
        places = [place.title for place in topics["trace"].places if place.kind == "stage"]
        assert places == ["0 RewardScaling", "1 StepCounter"]
    stack.close()


def test_the_profile_of_torchrl_has_modes_and_a_row_for_each_transform() -> None:
    request = MeasurePipeline(
        Pipeline.of(TORCHRL), ("eager",), steps=5, repeats=1, warmup=1, allow_code=True
    )
    (mode,) = measure_pipeline(request, job()).modes
    assert mode.error is None
    stages = {row.label for row in mode.rows if row.work == "stage"}
    assert stages == {"0 RewardScaling", "1 StepCounter"}


# Settings of the env


# Profile


@exhaustive
async def test_the_profile_tab_offers_what_applies() -> None:
    async with driven(env=MAKE, allow_code=True, size=(160, 30)) as app:
        for env, has_modes in ((MAKE, False), (TORCHRL, True)):
            await app.open(env=env)
            await app.press("4")
            shown = app.text("ProfileTab")
            for name in ("planned", "operators", "marginal"):
                assert (name in shown) is has_modes, name
            assert ("observed in random steps" in shown) is not has_modes
            assert "advice" not in shown
            assert "press Ctrl+L to import it again" in shown
            keys = app.text("KeyBar")
            assert "r measure" in keys
            assert ("m mode" in keys, "o operators" in keys) == (has_modes,) * 2
            assert "v advice" not in keys
            await app.press("f1")
            shown = app.text(".dialog")
            assert "r measure" in shown
            assert "advice" not in shown
            await app.press("escape", "v")
            assert app.notices == [
                f"no changes to try: the stages are Python code of {env}: edit them there"
            ]
            app.notices.clear()
            await app.press("m", "o")
            reason = "modes and extra passes need a chain of tdx; this is a gymnasium env"
            assert (app.notices == [reason, reason]) is not has_modes


@exhaustive
async def test_stages_of_a_factory_complete_the_first_hint(tmp_path: Path) -> None:
    hints = HintState(tmp_path / "hints.json")
    async with driven(env=MAKE, allow_code=True, hints=hints):
        assert "stages" in hints.done


def test_suggestions_for_a_factory_run_nothing() -> None:
    request = FindAdvice(
        Pipeline.of(f"{MODULE}:fail"), ("planned",), steps=5, repeats=1, warmup=1, allow_code=True
    )
    assert "which tdx does not edit" in str(find_advice(request, job()).error)


# Copying and reloading


@exhaustive
async def test_app_offers_what_applies_to_a_factory() -> None:
    async with driven(env=MAKE, allow_code=True) as app:
        # Copied command includes allow code and ctrl c names the key that quits.
        await app.press("ctrl+c")
        assert app.notices == ["press ^q to quit"]
        await app.press("y")
        assert "Python" not in app.text()
        await app.press("enter")
        assert app.app.clipboard == f"tdx inspect spec {MAKE} --allow-code"

        # The palette lists what applies.
        await app.open(env=MAKE)
        await app.press("4", "ctrl+p", "text:measure")
        while "Profile: measure" not in (shown := app.text()):
            await asyncio.sleep(0.02)
        assert "Profile: memory" not in shown
        await app.press("escape")

        # The profile tab returns to all settings with a chain.
        await app.open(env=MAKE)
        await app.press("4")
        assert "advice" not in app.text("ProfileTab")
        await app.press("a", "text:StepCounter", "enter", "escape", "4")
        assert "advice" in app.text("ProfileTab")

        # The key bar of the chain lists no edits of wrappers.
        await app.open(env=MAKE, size=(160, 30))
        keys = app.text("KeyBar")
        assert "edit" in keys
        assert "on/off" not in keys
        await app.press("down")
        keys = app.text("KeyBar")
        assert [each for each in ("edit", "on/off", "remove", "move") if each in keys] == []
        assert "a add" in keys
        await app.press("a", "text:StepCounter", "enter", "escape")
        app.find("#chain").focus()
        await app.press("down")
        keys = app.text("KeyBar")
        assert [each for each in ("edit", "on/off", "remove", "move") if each not in keys] == []

        # A measured stack shows no note about options.
        await app.open(env=MAKE, size=(100, 45))
        await app.press("4", "n")
        app.find("#profile-steps").value = "10"
        await app.press("enter")
        while app.app.screen.query_one("#profile-progress").display:
            await asyncio.sleep(0.02)
        await app.settle()
        shown = app.text("ProfileTab")
        assert "#1 first run" in shown
        assert "3 NormalizeObservation" in shown
        assert "--t" not in shown
        assert "edited" not in shown


@exhaustive
async def test_reloading_imports_the_code_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1', {})\n"
    file = tmp_path / "reloaded_env.py"
    file.write_text(text.format(""))
    async with driven(env=f"{file}:make", allow_code=True) as app:
        assert app.names == ["PassiveEnvChecker", "OrderEnforcing", "TimeLimit"]
        file.write_text(text.format("disable_env_checker=True"))
        # A new worker process has not imported it.
        monkeypatch.delitem(__import__("sys").modules, "reloaded_env")
        await app.press("ctrl+l")
        assert app.notices == [f"{file}:make is imported again"]
        assert app.names == ["OrderEnforcing", "TimeLimit"]


@exhaustive
async def test_reloading_restarts_the_live_session() -> None:
    def make(pipeline: Pipeline) -> Any:
        return StackEnv(build_stack(pipeline, True))

    async with playing(env=MAKE, make=make) as live:
        await live.press("s", "s")
        live.app.workspace.reload_code()
        await live.settle()
        assert live.note == "■ restarted with the new code"
        assert live.shown == 0


# Live


@exhaustive
async def test_values_start_at_the_selected_stage() -> None:
    def make(pipeline: Pipeline) -> Any:
        return StackEnv(build_stack(pipeline, True))

    async with playing(env=MAKE, make=make, size=(100, 24)) as live:
        live.tab.panes.values.go_to_stage(3)
        await live.press("s")
        values = live.tab.panes.values
        assert "3 NormalizeObservation" in str(values.search_lines()[values.cursor])


# Errors


@exhaustive
async def test_a_step_that_raises_names_the_line_and_keeps_the_history() -> None:
    def make(pipeline: Pipeline) -> Any:
        return StackEnv(build_stack(pipeline, True))

    async with playing(env=f"{MODULE}:make_failing", make=make) as live:
        await live.press("n", "text:10", "enter")
        assert "sensor lost" in live.note
        assert live.tab.connection.state is not None
        assert live.tab.connection.state.steps == 3
        (error,) = live.app.workspace.errors.all()
        assert "wrapped_env.py:" in str(error.problem.origin)
        await live.press("left")
        assert live.shown < live.tab.connection.state.last
