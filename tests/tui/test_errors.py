"""Errors: chain, header, live tab, details and log agree and name the user's line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdx.inspection.live.views import StageNumbers
from tdx.pipeline import Pipeline, build_checked_env
from tdx.pipeline.editing import Draft
from tdx.tui.compose.chain_pane import ChainList
from tdx.tui.profile.messages import CostRow, Costs, ModeCosts
from tdx.tui.profile.runs import RunHistory
from tests.programs import exhaustive
from tests.tui.driving import Driver, driven
from tests.tui.playing import Live, playing

ENV = """
import gymnasium as gym
import numpy as np

class Arm(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    is_broken = {broken!r}

    def __init__(self):
        self._check("init")

    def reset(self, seed=None, options=None):
        return np.zeros(3, np.float32), {{}}

    def step(self, action):
        self._check("step")
        return np.zeros(3, np.float32), 0.0, False, False, {{}}

    def _check(self, place):
        if place == self.is_broken:
            raise ValueError("the gripper is stuck")
"""
RAISED = 1 + ENV.split("\n").index('            raise ValueError("the gripper is stuck")')


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Return a function that writes a module with an env and returns its class."""
    import importlib
    import sys

    broken = getattr(request, "param", "step")
    name = f"arm_{broken}"
    (tmp_path / f"{name}.py").write_text(ENV.format(broken=broken))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module(name).Arm
    sys.modules.pop(name, None)


def make(pipeline: Pipeline) -> Any:
    """Create the env of a pipeline that may import code."""
    return build_checked_env(pipeline, allow_code=True)


def unwrapped(text: str) -> str:
    """Return text without the spaces and borders at which long paths are wrapped."""
    return text.replace(" ", "").replace("│", "")


async def logged(app: Driver) -> str:
    """Return all errors in the log."""
    entries = app.app.workspace.journal.entries
    return "\n".join(each.full_text for each in entries if each.severity == "error")


@exhaustive
async def test_step_error_is_consistent_until_it_is_fixed(arm: Any) -> None:
    async with playing("RewardSum", env="arm_step:Arm", make=make, whole=True) as app:
        await app.press("s")
        line = f"arm_step.py:{RAISED}"
        message = "step raised ValueError: the gripper is stuck"
        assert message in app.note
        assert line in unwrapped(app.note)
        assert "__cause__" not in app.note
        assert "step raised ValueError" in app.text("#chain")
        assert "✕ 1" in app.text("#status")
        assert message in await logged(app)
        assert line in await logged(app)
        assert 'raise ValueError("the gripper is stuck")' in await logged(app)
        for keys in (["f12"], ["escape", "escape", "1", "f12"]):
            await app.press(*keys)
            assert message in app.text(".dialog")
            assert line in unwrapped(app.text(".dialog"))
            assert "Traceback" in app.text(".dialog")
            assert "F12" not in app.text(".dialog"), "it is what F12 shows"
        await app.press("escape")
        arm.is_broken = ""
        await app.press("3", "r", "s")
        assert app.note == ""
        assert app.app.workspace.errors.all() == ()
        assert "step raised" not in app.text("#chain")
        assert "✕" not in app.text("#status")
        entries = app.app.workspace.journal.entries
        assert entries[-1].text == "env arm_step:Arm works again"
        await app.press("f12")
        assert "No problems" in app.text(".dialog")


@exhaustive
async def test_edit_that_restarts_the_session_clears_its_error(arm: Any) -> None:
    async with playing("RewardSum", env="arm_step:Arm", make=make, whole=True) as app:
        await app.press("s", "escape", "down", "d")
        await restarted(app)
        assert app.app.workspace.errors.all() == ()


@pytest.mark.parametrize("arm", ["init"], indirect=True)
@exhaustive
async def test_env_that_cannot_be_created_shows_its_traceback_and_unknown_stages(
    arm: Any,
) -> None:
    async with driven("RewardSum", "StepCounter", env="arm_init:Arm", allow_code=True) as app:
        rows = app.find(ChainList).rows
        assert [row.badge for row in rows if row.kind == "stage"] == ["unknown", "unknown"]
        assert "? 0 RewardSum" in app.text("#chain")
        # Long paths are wrapped at any character.
        panel = app.text("StageTab ProblemPanel").replace(" ", "")
        assert f"arm_init.py:{RAISED}" in panel
        assert f"arm_init.py:{RAISED}" in await logged(app)
        assert "Traceback" in await logged(app)
        arm.is_broken = ""
        await app.press("space")
        app.app.workspace.refresh()
        await app.settle()
        rows = app.find(ChainList).rows
        assert [row.badge for row in rows if row.kind == "stage"] == ["", ""]


@exhaustive
async def test_step_error_marks_its_stage() -> None:
    chain = ("StepCounter", "RewardSum", "tests.tui.bad_envs:FailsLate(at=9)")
    async with playing(*chain, make=make, whole=True) as app:
        await app.press("escape", "down", "space", "3")
        await restarted(app)
        await app.press("n", "ctrl+u", "text:20", "enter")
        assert "2 FailsLate" in app.note
        (error,) = app.app.workspace.errors.all()
        assert app.app.workspace.name_of(error.number) == "stage 2 tests.tui.bad_envs:FailsLate"
        assert "✕ 2" in app.text("#chain")


async def restarted(app: Live) -> None:
    """Wait for the session that an edit starts."""
    while len(app.backend.players) < 2:
        await app.pilot.pause(0.02)
    await app.settle()


@exhaustive
async def test_disabled_stages_do_not_change_stage_numbers() -> None:
    async with playing("StepCounter", "RewardSum", "InitTracker", whole=True) as app:
        await app.press("escape", "down", "space", "3")
        await restarted(app)
        await app.press("s")
        assert "1 RewardSum" in app.text("#live-values")
        assert "2 InitTracker" in app.text("#live-values")
        assert "0 RewardSum" not in app.text()
        assert "○ 0 StepCounter" in app.text("#chain")
        await app.press("w", "text:spec", "escape", "escape", "down", "down")
        assert app.tab.panes.values.cursor > 0


def test_stage_inside_the_env_has_no_number() -> None:
    numbers = StageNumbers((0, 3), inner=1)
    assert [numbers.title(at, "A") for at in range(3)] == ["A", "0 A", "3 A"]


def test_profile_rows_have_the_stage_numbers() -> None:
    row = CostRow("stage", 1, 2, "RewardSum", 1.0, 1.0, 1.0)
    draft = Draft.of(Pipeline.of("Pendulum-v1", "A", "B", "C", "D")).toggle(1)
    mode = ModeCosts("planned", (row,), 1.0, (), 1.0, 1, 0.0, "quiet", "")
    run = RunHistory().add(draft, Costs((mode,)))
    assert run.costs.modes[0].rows[0].label == "2-3 RewardSum"
