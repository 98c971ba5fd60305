"""Files and profile in the whole app: palette, keymap, quitting."""

from __future__ import annotations

from pathlib import Path

from tdx.pipeline import PipelineFile
from tdx.pipeline.editing import Draft
from tdx.tui.app import TdxApp
from tdx.tui.preferences import Preferences
from tdx.tui.screens.commands import CommandPalette
from tdx.tui.screens.main import MainScreen
from tests.programs import exhaustive
from tests.tui.files.filing import storage_in
from tests.tui.idle import resize, until
from tests.tui.inline_backend import InlineBackend

WANTED = {"save", "save_as", "open", "recent", "new", "reload", "restore", "dump"}
PROFILE = {"measure", "cancel", "sort", "invert", "mode", "settings", "memory", "base"}


@exhaustive
async def test_palette_keymap_and_quitting(file: Path, tmp_path: Path) -> None:
    draft = Draft.of(PipelineFile.load(file).pipeline)
    keys = {"file.save": "f5", "profile.measure": "f6"}
    app = TdxApp(
        draft,
        backend=InlineBackend(looks=False),
        preferences=Preferences(keymap=keys),
        storage=storage_in(tmp_path),
    )
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        main = app.screen_stack[0]
        assert isinstance(main, MainScreen)
        ids = {binding.id for group in app.binding_groups() for binding in group}
        assert {f"file.{name}" for name in WANTED} <= ids
        assert {f"profile.{name}" for name in PROFILE} <= ids
        assert {"dump.cancel", "dump.back"} <= ids
        assert not [each for each in app._notifications if each.title.endswith("Settings")]
        # Notices cover neither sliders nor hints, which are at the bottom.
        await pilot.press("3")
        app.notify("a notice that takes more than one line in a small terminal", timeout=1e6)
        await until(lambda: bool(main.query("Toast")))
        for size in ((60, 20), (80, 24), (100, 30)):
            await resize(pilot, *size)
            toast = main.query_one("Toast").region
            assert toast.area
            for lower in ("Timeline", "#hints", "#keys"):
                assert not toast.overlaps(main.query_one(lower).region)
        app.clear_notifications()
        await pilot.press("1", "escape")
        await pilot.press("down", "c", "f5")
        await until(lambda: file.read_text().count("RewardSum") == 2)
        await pilot.press("ctrl+p")
        await until(lambda: isinstance(app.screen, CommandPalette))
        await pilot.press(*"saveas", "enter")
        await until(lambda: bool(app.screen.query("#path-input")))
        await pilot.press("escape")
        await until(lambda: app.screen is main)
        await pilot.press("d", "ctrl+q")
        await until(lambda: bool(app.screen.query("#ask-keep")))
        await pilot.press("k")
        await until(lambda: not app.is_running)
    assert app.return_value is None
    assert len(list((tmp_path / "sessions").glob("*.json"))) == 1
