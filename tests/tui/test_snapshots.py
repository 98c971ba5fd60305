"""Snapshots: each screen once, in further sizes where it differs in kind, and each palette."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdx import GrayScale, ToTensorImage, TransformedEnv
from tdx.pipeline import Pipeline, PipelineFile
from tdx.pipeline.editing import Draft
from tests.inspection.live.stages import Ragged
from tests.programs import exhaustive
from tests.tui.driving import driven
from tests.tui.playing import playing
from tests.tui.snapshots import NARROW, SIZE, WIDE, check_snapshots

pytestmark = pytest.mark.usefixtures("fixed_catalog")

ROOT = Path(__file__).parents[2]
STAGE = ("down", "down", "down")


def sample_draft() -> Draft:
    return Draft.of(PipelineFile.load(ROOT / "sample_pipelines" / "pendulum.yaml").pipeline)


@exhaustive
async def test_panes_and_palettes_match_snapshots(tmp_path: Path) -> None:
    async with driven(draft=sample_draft()) as app:
        await app.press(*STAGE)
        await check_snapshots(app, "stage", tmp_path, sizes=(NARROW, SIZE, WIDE))
        await check_snapshots(app, "stage", tmp_path, themes=("tdx-light", "ansi-dark"))
        await app.press("end", "up", "2")
        await check_snapshots(app, "specs", tmp_path)


@exhaustive
async def test_live_tab_matches_snapshots(tmp_path: Path) -> None:
    async with playing("RewardSum", "StepCounter(max_steps=30)", whole=True) as app:
        await app.press("n", "text:70", "enter")
        await check_snapshots(app, "live", tmp_path, sizes=(NARROW, SIZE))


@exhaustive
async def test_batch_with_images_matches_snapshots(tmp_path: Path) -> None:
    def make(pipeline: Pipeline) -> TransformedEnv:
        env = TransformedEnv(Ragged((3, 5, 4)), ToTensorImage(in_keys=["pixels"]))
        env.append_transform(GrayScale(in_keys=["pixels"]))
        return env

    async with playing(make=make, whole=True) as app:
        for keys in (("n", "text:17", "enter"), ("i", "text:manual", "enter"), ("right",), ("s",)):
            await app.press(*keys)
        await app.press("left")
        await check_snapshots(app, "live-batch", tmp_path)
