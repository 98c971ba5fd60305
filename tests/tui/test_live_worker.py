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


async def until(met: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so."""
    for _ in range(int(seconds / 0.02)):
        if met():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to pass")


async def test_env_that_hangs_and_worker_that_is_killed_leave_the_app_alive() -> None:
    app = TdxApp(Draft.of(Pipeline.of(HANGS)), allow_code=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        tab = app.query_one(LiveTab)
        await until(lambda: tab.state is not None)
        await pilot.press("space")
        await until(lambda: tab.state is not None and tab.state.steps == 3)
        await until(lambda: tab.link.overdue() > 1)
        await until(lambda: "Ctrl+K ends it" in str(tab.query_one("#live-note").render()))
        await pilot.press("left", "left", "v", "v")
        assert tab.front == "pictures"
        assert tab.state is not None
        assert tab.values.view is not None
        assert tab.values.view.index == tab.state.shown < 3

        backend = app.backend
        assert isinstance(backend, ProcessBackend)
        hung = backend.pids()["live"]
        await pilot.press("ctrl+k")
        assert "live" not in backend.pids()
        note = str(tab.query_one("#live-note").render())
        assert "the worker was ended in step 3" in note
        seen = tab.state.shown
        await pilot.press("end")
        assert tab.values.view.index > seen
        await pilot.press("s")
        await until(lambda: tab.state is not None and tab.state.steps == 1)
        assert backend.pids()["live"] != hung

        os.kill(backend.pids()["live"], signal.SIGKILL)
        await until(lambda: not tab.link.is_open)
        assert "ended" in str(tab.query_one("#live-note").render())
        await pilot.press("r")
        await until(lambda: tab.state is not None and tab.state.last == 0)
