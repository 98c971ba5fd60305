"""How the live tab looks, in three sizes and three themes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdx import GrayScale, ToTensorImage, TransformedEnv
from tdx.pipeline import Pipeline
from tests.inspection.live.stages import Ragged
from tests.tui.goldens import VERSIONS, drawn_with
from tests.tui.playing import playing
from tests.tui.test_snapshots import all_the_same

pytestmark = pytest.mark.skipif(
    VERSIONS.exists() and VERSIONS.read_text() != drawn_with(),
    reason="the screens kept were drawn by other versions of Textual and Rich",
)


async def test_live_tab_looks_as_it_did(tmp_path: Path) -> None:
    async with playing("RewardSum", "StepCounter(max_steps=30)", whole=True) as app:
        await app.press("n", "text:70", "enter")
        assert await all_the_same(app, "live", tmp_path) == []


async def test_batch_with_pixels_looks_as_it_did(tmp_path: Path) -> None:
    def make(pipeline: Pipeline) -> TransformedEnv:
        env = TransformedEnv(Ragged((3, 5, 4)), ToTensorImage(in_keys=["pixels"]))
        env.append_transform(GrayScale(in_keys=["pixels"]))
        return env

    async with playing(make=make, whole=True) as app:
        await app.press("n", "text:17", "enter", "i", "text:manual", "enter", "right", "s", "left")
        assert await all_the_same(app, "live-batch", tmp_path) == []
