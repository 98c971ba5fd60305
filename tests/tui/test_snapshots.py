"""How the screens look, in three sizes and three themes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdx.pipeline import PipelineFile
from tdx.pipeline.editing import Draft
from tdx.tui.screens.bars import StatusBar
from tests.tui.driving import Driver, driven
from tests.tui.goldens import VERSIONS, check_golden, drawn_with

ROOT = Path(__file__).parents[2]
SIZES = [(80, 24), (120, 40), (200, 60)]
THEMES = ("tdx-dark", "tdx-light", "ansi-dark")
SCREENS: dict[str, tuple[str, ...]] = {
    "stage": ("down", "down", "down"),
    "specs": ("2", "end", "up"),
    "failing": ("down", "enter", "text:7", "tab", "tab", "end", "text:x", "escape"),
    "catalog": ("a", "text:norm"),
    "help": ("down", "f1"),
}

pytestmark = pytest.mark.skipif(
    VERSIONS.exists() and VERSIONS.read_text() != drawn_with(),
    reason="the screens kept were drawn by other versions of Textual and Rich",
)


async def all_the_same(app: Driver, name: str, folder: Path) -> list[str]:
    """What differs from the screens that are kept, in any theme and size."""
    wrong = []
    for line in app.app.screen_stack[0].query(StatusBar):
        line._since = None  # how long something takes is another time each time
    for theme in THEMES:
        app.app.theme = theme
        for width, height in SIZES:
            await app.pilot.resize_terminal(width, height)
            await app.settle()
            said = check_golden(f"{name}-{width}x{height}-{theme}", app.picture(), folder)
            wrong += [said] if said else []
    return wrong


@pytest.mark.parametrize("screen", SCREENS)
async def test_screen_looks_as_it_did(screen: str, tmp_path: Path) -> None:
    file = PipelineFile.load(ROOT / "sample_pipelines" / "pendulum.yaml")
    async with driven(draft=Draft.of(file.pipeline)) as app:
        await app.press(*SCREENS[screen])
        assert await all_the_same(app, screen, tmp_path) == []


async def test_first_screen_looks_as_it_did(tmp_path: Path) -> None:
    async with driven(env=None) as app:
        assert await all_the_same(app, "welcome", tmp_path) == []
