"""Draw the images of the docs: ``python -m tests.tui.pictures``.

``python -m tests.tui.pictures sb3`` draws only those of one entry of :data:`DRAWN`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, parse_stage, write_pipeline
from tdx.pipeline.editing import Draft
from tdx.tui.backend.client import Backend
from tdx.tui.contract.worker import freeze_contract
from tests.tui import idle
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
    """Write an image of the screen, without links to web fonts."""
    IMAGES.mkdir(exist_ok=True)
    drawn = _FONT.sub("", app.app.export_screenshot(title="tdx", simplify=True))
    (IMAGES / f"{name}.svg").write_text("\n".join(map(str.rstrip, drawn.splitlines())) + "\n")


async def until(app: Driver, text: str) -> None:
    """Wait until a text is on the screen or in a notice."""
    for _ in range(3000):
        if text in app.text() or text in app.notices:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"no {text} on:\n{app.text(lines=True)}")


def opened(name: str, pipeline: Pipeline) -> Draft:
    """Write a pipeline to a file, and return the draft that the app opens."""
    Path(name).write_text(write_pipeline(pipeline))
    return Draft.of(PipelineFile.load(name).pipeline)


def sample() -> Draft:
    """Return a chain that works on images."""
    pipeline = Pipeline.of(EnvConfig("CartPole-v1", from_pixels=True), *STAGES)
    return opened("cartpole_pixels.yaml", pipeline)


async def draw_tabs() -> None:
    """Draw the tabs that show the chain and its values."""
    async with driven(draft=sample(), size=SIZE, backend=Backend()) as app:
        await until(app, " keys")
        await app.press("down", "down", "down")
        keep(app, "stage")
        await app.press("2")
        await until(app, "float32")
        keep(app, "specs")


async def draw_live() -> None:
    """Step a chain that clips all rewards to 0, and draw what its stages do."""
    stages = (*STAGES[:3], "CatFrames(4, -3)", "RewardClipping(-1, 0)", *STAGES[4:])
    pipeline = Pipeline.of(EnvConfig("CartPole-v1", from_pixels=True, seed=0), *stages)
    draft = opened("cartpole_pixels.yaml", pipeline)
    async with driven(draft=draft, size=SIZE, backend=Backend()) as app:
        await until(app, " keys")
        await app.press("down", *["down"] * 3)
        await app.pilot.press("3")
        await until(app, "step 0")
        await app.pilot.press("n")
        await app.press("text:60", "enter")
        await until(app, "step 60")
        await until(app, "at a bound")
        await asyncio.sleep(0.5)
        keep(app, "live")


async def draw_profile() -> None:
    """Draw a measurement, and the log after it."""
    async with driven(draft=sample(), size=SIZE, backend=Backend()) as app:
        await until(app, " keys")
        await app.press("down", "down", "down", "4")
        await until(app, "Press r to measure")
        app.find("#profile-run").focus()
        await app.pilot.press("z")
        await until(app, "r measure")
        app.find("#profile-steps").value = "200"
        await app.pilot.press("r")
        await until(app, "whole step")
        while app.find("ProfileTab").measurement.is_running:
            await asyncio.sleep(0.1)  # changes are tried
        app.find("CostTable").focus()
        await app.press("home", "down")
        await asyncio.sleep(0.5)
        keep(app, "profile")
        await app.pilot.press("escape", "k")
        await until(app, "checked with steps")
        await app.press("a", "text:cf 4 1", "enter", "escape")
        await until(app, "✕ 1")
        await app.press("5")
        await until(app, "warnings")
        await asyncio.sleep(8)  # the notices disappear
        keep(app, "log")


async def draw_stack(name: str, stage: int) -> None:
    """Check and step an env of another library, and draw the values of its stages.

    Args:
        name: Name of the picture, and start of the name of the sample.
        stage: Stage to select.
    """
    draft = Draft.of(Pipeline.of(EnvConfig(f"sample_pipelines/{name}_pendulum.py:make", seed=0)))
    async with driven(draft=draft, size=SIZE, backend=Backend(), allow_code=True) as app:
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


async def draw_finding() -> None:
    """Check frames that are stacked along their width, and draw the finding."""
    stages = (*STAGES[:3], "CatFrames(4, -1)", *STAGES[4:])
    pipeline = Pipeline.of(EnvConfig("CartPole-v1", from_pixels=True, seed=0), *stages)
    draft = opened("cartpole_frames.yaml", pipeline)
    async with driven(draft=draft, size=SIZE, backend=Backend()) as app:
        await until(app, " keys")
        await app.press("down", *["down"] * 3)
        await app.pilot.press("k")
        await until(app, "checked with steps")
        await asyncio.sleep(8)  # the notices disappear
        keep(app, "finding")


async def draw_contract() -> None:
    """Compare a chain with the contract of another one."""
    frames = "CatFrames(3, -1, in_keys=['observation'])"
    norm = "ObservationNorm(0.0, {}, in_keys=['observation'])"
    trained = Pipeline.of("Pendulum-v1", norm.format(0.5), frames, "RewardSum", "ActionScaling")
    chain = trained.with_stages(parse_stage(norm.format(0.4)), *trained.transforms[1:3])
    freeze_contract(trained, "trained")
    async with driven(draft=opened("pendulum.yaml", chain), size=SIZE, backend=Backend()) as app:
        await until(app, " keys")
        await app.press("C", "text:trained", "enter")
        await until(app, "first difference")
        await app.settle()
        keep(app, "contract")


DRAWN: dict[str, Callable[[], Coroutine[None, None, None]]] = {
    "tabs": draw_tabs,
    "live": draw_live,
    "profile": draw_profile,
    "sb3": partial(draw_stack, "sb3", 5),
    "torchrl": partial(draw_stack, "torchrl", 1),
    "finding": draw_finding,
    "contract": draw_contract,
}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("sample_pipelines").symlink_to(SAMPLES)
        for each in sys.argv[1:] or DRAWN:
            idle.run(DRAWN[each]())
