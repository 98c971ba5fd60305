"""Apps that are closed during their start exit silently and leave no crash file."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft
from tdx.tui.app import TdxApp
from tdx.tui.screens.bars import HintState
from tdx.tui.serving.serve import DRIVER
from tests.programs import exhaustive, sampled
from tests.tui.inline_backend import InlineBackend

TURNS = [0, 1, 2, 3, 5, 8, 12, 40, 160]
"""Turns of the loop after which the app is closed."""


@sampled(2)
@pytest.mark.parametrize("turns", TURNS)
async def test_app_closed_during_its_start_exits_cleanly(
    turns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum"))
    app = TdxApp(draft, backend=InlineBackend(), hints=HintState(tmp_path / "hints.json"))

    async def close() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        app.exit()

    closing = asyncio.create_task(close())
    await app.run_async(headless=True, size=(120, 40))
    await closing
    assert app.return_code == 0
    assert app._exception is None
    assert capsys.readouterr() == ("", "")


@exhaustive
async def test_page_closed_before_the_app_starts_leaves_no_crash_file(
    tmp_path: Path,
) -> None:
    reading, writing = os.pipe()
    app = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tdx", "tui", "--env", "Pendulum-v1"),
        stdin=PIPE,
        stdout=writing,
        stderr=DEVNULL,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TEXTUAL_DRIVER": DRIVER, "XDG_STATE_HOME": str(tmp_path)},
    )
    os.close(reading)
    os.close(writing)
    assert app.stdin is not None
    app.stdin.close()
    await asyncio.wait_for(app.wait(), 120)
    assert not [*tmp_path.rglob("crash.txt")]
