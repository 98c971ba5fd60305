"""Dumps from the app: dialog, worker, cancellation and refusal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tdx import open_dump, record_shards
from tdx.foundation.errors import ArgumentError
from tdx.pipeline import Pipeline
from tdx.tui.backend.client import Ticket
from tdx.tui.backend.messages import Job
from tdx.tui.backend.requests import DumpProgress, DumpRollout, FollowDump
from tests.programs import exhaustive
from tests.tui.files.filing import Filer, filing
from tests.tui.idle import until


async def made(app: Filer) -> None:
    """Wait for the end of the dump."""
    await until(lambda: not app.app.files.dump_job.is_running)
    await app.settle()


@exhaustive
async def test_dump_is_configured_written_and_not_overwritten(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.press("D")
        assert app.text("#dump-path") == "pendulum-dump"
        await app.press("tab", "ctrl+u", "text:70", "tab", "tab", "text:3", "enter")
        await made(app)
        folder = file.parent / "pendulum-dump"
        assert "Dumped: " in app.notices
        assert "70 of 70 steps" in app.notices
        dump = open_dump(folder)
        assert (dump.manifest.steps, dump.manifest.seed) == (70, 3)
        await app.press("escape", "D", "enter")
        await made(app)
        assert "Not dumped" in app.notices
        assert "force" in app.notices
        await app.press("escape", "D")
        await app.pilot.click("#dump-force")
        app.app.screen.query_one("#dump-steps").value = "30"  # type: ignore[attr-defined]
        await app.pilot.click("#dump-start")
        await made(app)
        manifest = open_dump(folder).manifest
        assert (manifest.steps, manifest.complete) == (30, True)


@exhaustive
async def test_missing_input_is_reported(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.press("D", "ctrl+u", "enter")
        assert "enter a folder" in app.text("#dump-note")
        await app.press("text:x", "tab", "ctrl+u", "enter")
        assert "number of steps or episodes" in app.text("#dump-note")
        assert not app.app.files.dump_job.is_running
    async with filing(tmp_path) as app:
        await app.press("D")
        assert "no pipeline yet; press e to choose an env" in app.notices


async def test_quitting_during_a_dump_asks_for_confirmation(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        app.app.files.dump_job._ticket = Ticket(0, asyncio.get_running_loop().create_future())
        await app.press("ctrl+q")
        assert "A dump is running" in app.text()
        await app.press("s")
        assert app.app.is_running
        await app.press("ctrl+q", "q")
        assert not app.app.is_running


@exhaustive
def test_cancelling_a_dump_keeps_its_finished_chunks(tmp_path: Path) -> None:
    updates: list[DumpProgress] = []
    pipeline = Pipeline.of("Pendulum-v1", "RewardSum")

    def receive(topic: str, value: object) -> None:
        assert isinstance(value, DumpProgress)
        updates.append(value)
        job.cancel()

    job = Job(receive, {})
    done = DumpRollout(pipeline, str(tmp_path / "d"), steps=100_000, seed=0).answer(job)
    assert not done.complete
    steps = open_dump(tmp_path / "d").manifest.steps
    assert 0 < steps < 100_000
    assert done.progress.share == steps / 100_000
    assert done.progress.text.startswith(f"{steps:,} of 100,000 steps, ")
    assert updates[0].text.endswith("episodes")
    with pytest.raises(ArgumentError, match="force"):
        DumpRollout(pipeline, str(tmp_path / "d"), episodes=1).answer(Job(lambda *_: None, {}))


@exhaustive
async def test_progress_of_a_folder_of_shards_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    pipeline = Pipeline.of("Pendulum-v1")
    record_shards(pipeline, folder, shards=2, shard=1, steps=20, seed=0)
    (folder / "shards" / "00000.failed").write_text("the belt slipped\n")
    states: list[DumpProgress] = []

    def receive(topic: str, value: object) -> None:
        assert isinstance(value, DumpProgress)
        states.append(value)
        job.cancel()

    job = Job(receive, {})
    assert FollowDump(str(folder)).answer(job) == states[0]
    assert states[0].text == "1 of 2 shards  0 running  1 failed  10 of 20 steps"
    assert states[0].share == 0.5
    record_shards(pipeline, folder, shards=2, shard=0, steps=20, seed=0)
    async with filing(tmp_path) as app:
        await app.press("ctrl+o")
        app.app.screen.query_one("#path-input").value = str(folder)  # type: ignore[attr-defined]
        await until(lambda: "Enter shows its progress" in app.text("#path-note"))
        await app.press("enter")
        progress = "complete 2 of 2 shards 0 running 0 failed 20 of 20 steps"
        await until(lambda: progress in app.text("#watch-note"))
        await app.press("escape")
        (folder / "manifest.json").write_text("{")
        app.app.files.watch_dump(str(folder))
        await app.settle()
        await until(lambda: "is not valid JSON" in app.text("#watch-note"))
