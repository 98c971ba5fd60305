"""The live tab with a real worker process: an env that hangs, and a worker that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from tdx.pipeline import EnvConfig, Pipeline
from tdx.pipeline.editing import Draft
from tdx.tui.app import TdxApp
from tdx.tui.backend.client import Backend
from tdx.tui.live.live_tab import LiveTab
from tests.programs import exhaustive
from tests.tui.idle import until

pytestmark = pytest.mark.usefixtures("shared_warm_program")
HANGS = EnvConfig("tests.tui.bad_envs:FailsAt")
STICKS = replace(HANGS, kwargs={"how": "stick"})


def note_of(tab: LiveTab) -> str:
    """Return the message of the header."""
    return str(tab.query_one("#live-note").render())


@asynccontextmanager
async def opened(env: EnvConfig) -> AsyncIterator[tuple[Pilot[None], LiveTab]]:
    """Run the app with an env, at full speed, until its first reset."""
    app = TdxApp(Draft.of(Pipeline.of(env)), allow_code=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        await until(lambda: bool(app.screen.query(LiveTab)))
        tab = app.query_one(LiveTab)
        await until(lambda: tab.connection.state is not None and tab.connection.state.last == 0)
        while tab.connection.rate is not None:
            await pilot.press("plus")
        yield pilot, tab


@exhaustive
async def test_step_is_named_even_if_no_python_code_can_run_in_the_worker() -> None:
    async with opened(STICKS) as (pilot, tab):
        await pilot.press("space")
        await until(lambda: "env.step of step 4: " in note_of(tab))
        await pilot.press("ctrl+k")
        assert "worker killed in env.step of step 4" in note_of(tab)


@exhaustive
async def test_app_survives_a_hanging_env_and_a_killed_worker() -> None:
    async with opened(HANGS) as (pilot, tab):
        await pilot.press("space")
        await until(lambda: tab.connection.overdue() > 1)
        await until(lambda: "Ctrl+K kills the worker" in note_of(tab))
        await until(lambda: "env.step of step 4: " in note_of(tab))
        # The three steps took less time than passes between two views.
        await until(lambda: len(tab.connection.cache) == 4)
        await pilot.press("left", "left", "v", "v")
        assert tab.panes.front == "images"
        assert tab.connection.state is not None
        assert tab.panes.values.view is not None
        assert tab.panes.values.view.index == tab.connection.state.shown < 3

        backend = pilot.app.backend  # type: ignore[attr-defined]
        assert isinstance(backend, Backend)
        hung = backend.pids()["live"]
        await pilot.press("ctrl+k")
        assert "live" not in backend.pids()
        assert "worker killed in env.step of step 4" in note_of(tab)
        # The completed steps are kept.
        assert "are lost" not in note_of(tab)
        assert tab.connection.state.steps == tab.connection.state.last == 3
        await pilot.press("end")
        assert tab.panes.values.view.index == 3
        for index in (2, 1, 0):
            await pilot.press("left")
            assert tab.panes.values.view.index == index
        await pilot.press("s")
        await until(lambda: tab.connection.state is not None and tab.connection.state.steps == 1)
        assert backend.pids()["live"] != hung

        os.kill(backend.pids()["live"], signal.SIGKILL)
        await until(lambda: not tab.connection.is_open)
        assert "killed by SIGKILL" in note_of(tab)
        await pilot.press("r")
        await until(lambda: tab.connection.state is not None and tab.connection.state.last == 0)
