"""The command of the app that exports the chain as an artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft
from tests.programs import exhaustive
from tests.tui.driving import driven


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@exhaustive
async def test_the_palette_exports_the_chain_and_asks_before_it_replaces_one() -> None:
    export = ("ctrl+p", "text:export the chain", "enter", "text:pt2", "enter", "enter")
    async with driven("StepCounter") as app:
        await app.press(*export)
        await app.settle()
        assert "wrote pendulum_pt2 (1 stage), verified" in app.notices
        before = Path("pendulum_pt2/artifact.json").stat().st_ino
        await app.press(*export, "k")
        assert Path("pendulum_pt2/artifact.json").stat().st_ino == before


@exhaustive
async def test_what_cannot_be_exported_is_a_notice() -> None:
    async with driven("Timer") as app:
        await app.press("ctrl+p", "text:export the chain", "enter", "text:pt2", "enter", "enter")
        await app.settle()
        assert any("it reads a clock" in notice for notice in app.notices)
        assert not Path("pendulum_pt2").exists()


@pytest.mark.parametrize("draft", [Draft(), Draft.of(Pipeline.of("Pendulum-v1"))])
@exhaustive
async def test_without_stages_there_is_nothing_to_export(draft: Draft) -> None:
    async with driven(draft=draft) as app:
        await app.press("ctrl+p", "text:export the chain")
        assert "Export the chain" not in app.text()
