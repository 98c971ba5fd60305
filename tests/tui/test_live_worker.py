"""The live tab with a real worker process: an env that hangs, and a worker that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft
from tdx.tui.app import TdxApp
from tdx.tui.backend.client import ProcessBackend
from tdx.tui.live.live_tab import LiveTab

HANGS = "tests.tui.hanging:HangsAtStep3"


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.02)


async def test_app_survives_a_hanging_env_and_a_killed_worker() -> None:
    app = TdxApp(Draft.of(Pipeline.of(HANGS)), allow_code=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        await until(lambda: bool(app.screen.query(LiveTab)))
        tab = app.query_one(LiveTab)
        await until(lambda: tab.session.state is not None)
        await pilot.press("space")
        await until(lambda: tab.session.state is not None and tab.session.state.steps == 3)
        await until(lambda: tab.session.connection.overdue() > 1)
        await until(lambda: "Ctrl+K kills the worker" in str(tab.query_one("#live-note").render()))
        await pilot.press("left", "left", "v", "v")
        assert tab.panes.front == "images"
        assert tab.session.state is not None
        assert tab.panes.values.view is not None
        assert tab.panes.values.view.index == tab.session.state.shown < 3

        backend = app.backend
        assert isinstance(backend, ProcessBackend)
        hung = backend.pids()["live"]
        await pilot.press("ctrl+k")
        assert "live" not in backend.pids()
        note = str(tab.query_one("#live-note").render())
        assert "worker killed in step 3" in note
        seen = tab.session.state.shown
        await pilot.press("end")
        assert tab.panes.values.view.index > seen
        await pilot.press("s")
        await until(lambda: tab.session.state is not None and tab.session.state.steps == 1)
        assert backend.pids()["live"] != hung

        os.kill(backend.pids()["live"], signal.SIGKILL)
        await until(lambda: not tab.session.connection.is_open)
        assert "ended" in str(tab.query_one("#live-note").render())
        await pilot.press("r")
        await until(lambda: tab.session.state is not None and tab.session.state.last == 0)
