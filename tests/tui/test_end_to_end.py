"""Compose, step, profile and save a chain in the whole program."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tdx.pipeline import Pipeline
from tdx.pipeline.file.pipeline_file import PipelineFile
from tests.processes import PATIENCE, all_ended, family
from tests.programs import exhaustive
from tests.tui.browser import chromium
from tests.tui.tmux import terminal

SAVED = Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter")
ROOT = Path(__file__).parents[2]


@pytest.mark.programs
@exhaustive
def test_by_keys_alone_in_a_terminal(tmp_path: Path) -> None:
    with terminal(folder=tmp_path, then="echo ended: $?; sleep 100") as tdx:
        tdx.sees("Welcome to tdx")
        tdx.press("e")
        tdx.sees("Choose an env")
        tdx.type("Pendulum-v1")
        tdx.sees("Pendulum-v1  ")
        tdx.press("Enter")
        tdx.sees("◆ Pendulum-v1", gone="Choose an env")
        for number, name in enumerate(("RewardSum", "StepCounter")):
            tdx.press("a")
            tdx.sees("esc back")
            tdx.type(name)
            tdx.press("Enter")
            tdx.sees(f"{number} {name}")
            tdx.sees("add …")
            tdx.press("Escape")
            tdx.sees("a add", gone="esc back")
        tdx.sees(" keys ")
        tdx.press("3")
        tdx.sees("paused · step 0")
        tdx.press("s")
        tdx.sees("paused · step 1", "step_count@1")
        tdx.press("s", "s")
        tdx.sees("paused · step 3")
        tdx.press("Left", "B")  # branch one step earlier
        tdx.sees("branch at step 2", "paused · step 2")
        tdx.press("Escape")
        tdx.sees("d remove")
        tdx.press("d")  # an edit replays the rollout, and u undoes both
        tdx.sees("repeated 2 steps", gone="1 StepCounter")
        tdx.press("u")
        tdx.sees("1 StepCounter", "episode_reward@1", "paused · step 2")
        tdx.press("4")
        tdx.sees("Press r to measure", "r measure")
        tdx.press("r")
        tdx.sees("µs/step", "StepCounter")
        tdx.press("C-s")
        tdx.sees("Save as", "pendulum.yaml")
        tdx.press("C-u")
        tdx.sees("path …")
        tdx.type("mine.yaml")
        tdx.press("Enter")
        tdx.sees(" mine.yaml", gone="Save as")
        assert PipelineFile.load(tmp_path / "mine.yaml").pipeline == SAVED
        kin = family(tdx.pid)[1:]
        assert len(kin) > 2
        tdx.press("C-q")
        tdx.sees("ended: 0")
        assert all_ended(kin)


@asynccontextmanager
async def served(folder: Path, *arguments: str) -> AsyncIterator[tuple[str, list[int]]]:
    """Run ``tdx serve``; yield its address and processes, and end it with Ctrl-C."""
    server = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tdx.__main__",
        ),
        *("serve", "--port", "0", *arguments),
        stdout=PIPE,
        stderr=PIPE,
        cwd=folder,
    )
    try:
        assert server.stdout is not None
        address = (await asyncio.wait_for(server.stdout.readline(), PATIENCE)).decode().strip()
        kin = [server.pid]
        yield address, kin
        kin += family(server.pid)
        server.send_signal(2)
        said = await asyncio.wait_for(server.communicate(), PATIENCE)
        assert (server.returncode, *said) == (0, b"", b"press Ctrl-C to stop\n")
        assert all_ended(kin)
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()


@exhaustive
async def test_by_mouse_in_a_browser(tmp_path: Path) -> None:
    async with chromium() as page, served(tmp_path) as (address, kin):
        await page.open(address)
        await page.click_for("choose an env …", "Choose an env")
        await page.sees("Choose an env", gone="inspecting")
        await page.type("Pendulum-v1")
        await page.sees("1 of")
        await page.click("Pendulum-v1  ", nth=-1)
        await page.sees("◆ Pendulum-v1", gone="Choose an env")
        await page.press("a")
        await page.type("RewardSum")
        await page.sees("─ 1 ─╯")
        await page.press("Enter")
        await page.sees("0 RewardSum", "add …", gone="─ 1 ─╯")
        await page.press("Escape")
        await page.sees(" keys ")
        await page.click_for("3 Live", "paused · step 0")
        await page.click("step   n")
        await page.sees("paused · step 1")
        assert (await page.picture()).startswith(b"\x89PNG")
        await page.press("Escape")
        await page.click_for("^s save", "Save as", "pendulum.yaml", dx=3)
        await page.press("Enter")
        await page.sees(" pendulum.yaml", gone="Save as")
        assert PipelineFile.load(tmp_path / "pendulum.yaml").pipeline == SAVED.with_stages(
            *SAVED.transforms[:1]
        )
        kin += family(kin[0])
        assert all(urlsplit(each).hostname == "127.0.0.1" for each in page.requests)
        assert not page.complaints
