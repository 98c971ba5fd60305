"""Draw the images of the docs: ``python -m tests.tui.pictures``."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from pathlib import Path

from tdx.pipeline import EnvConfig, Pipeline
from tdx.pipeline.editing import Draft
from tdx.tui.backend.client import ProcessBackend
from tests.tui.driving import Driver, driven

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SAMPLES = Path(__file__).parents[2] / "sample_pipelines"
SIZE = (120, 40)
STAGES = (
    *('ToTensorImage(in_keys=["pixels"])', 'GrayScale(in_keys=["pixels"])'),
    *('Resize(84, 84, in_keys=["pixels"])', "RewardScaling(0.0, 0.1)", "RewardSum"),
    "StepCounter(max_steps=200)",
)
_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def keep(app: Driver, name: str) -> None:
    """Write a picture of the screen, without the fonts that it would load from elsewhere."""
    IMAGES.mkdir(exist_ok=True)
    drawn = _FONT.sub("", app.app.export_screenshot(title="tdx", simplify=True))
    (IMAGES / f"{name}.svg").write_text("\n".join(map(str.rstrip, drawn.splitlines())) + "\n")


async def until(app: Driver, text: str) -> None:
    """Wait until a text is on the screen."""
    for _ in range(600):
        if text in app.text():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"no {text} on:\n{app.text(lines=True)}")


async def draw() -> None:
    """Go through the app and draw each tab."""
    env = EnvConfig("CartPole-v1", from_pixels=True)
    draft = Draft.of(Pipeline.of(env, *STAGES))
    async with driven(draft=draft, size=SIZE, backend=ProcessBackend()) as app:
        await until(app, " keys")
        await app.press("down", "down", "down")
        keep(app, "stage")
        await app.press("2")
        await until(app, "float32")
        keep(app, "specs")
        await app.pilot.press("3")
        await until(app, "step 0")
        await app.pilot.press("z", "space")
        await asyncio.sleep(4)
        await app.pilot.press("space")
        await until(app, "paused")
        await asyncio.sleep(0.5)
        keep(app, "live")
        await app.pilot.press("z", "escape", "4")
        await until(app, "Press r to measure")
        app.find("#profile-run").focus()
        await until(app, "r measure")
        await app.pilot.press("r")
        await until(app, "µs/step share")
        await asyncio.sleep(0.5)
        keep(app, "profile")
        await app.pilot.press("escape", "5")
        await until(app, "warnings")
        await asyncio.sleep(0.5)
        keep(app, "log")


async def draw_stack(name: str, stage: int) -> None:
    """Check and step an env of another library, and draw the values of a stage.

    Args:
        name: Name of the picture, and start of the name of the sample.
        stage: Stage to select.
    """
    draft = Draft.of(Pipeline.of(EnvConfig(f"sample_pipelines/{name}_pendulum.py:make", seed=0)))
    async with driven(draft=draft, size=SIZE, backend=ProcessBackend(), allow_code=True) as app:
        await until(app, " keys")
        await app.press("down", *["down"] * stage)
        await app.pilot.press("k")
        await until(app, "checked with steps")
        await app.pilot.press("3")
        await until(app, "step 0")
        await app.pilot.press("n")
        await app.press("text:70", "enter")
        await until(app, "step 70")
        await asyncio.sleep(8)  # the notices disappear
        keep(app, name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("sample_pipelines").symlink_to(SAMPLES)
        asyncio.run(draw())
        asyncio.run(draw_stack("sb3", 5))
        asyncio.run(draw_stack("torchrl", 2))
