"""Key line, first-run hints, user themes and ``NO_COLOR``."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.style import Style
from textual.widgets import Input

from tdx.tui.preferences import Preferences, load_preferences
from tdx.tui.screens.bars import HintState
from tests.programs import exhaustive
from tests.tui.driving import Driver, driven
from tests.tui.idle import resize, until

KEY_LINES = {
    60: "⏎ edit space on/off d remove ^p commands ? help",
    80: "⏎ edit space on/off d remove ⇧↑⇧↓ move │ a add e env ^p commands ? help",
    120: "⏎ edit space on/off d remove ⇧↑⇧↓ move │ a add e env uU undo/redo │ ^s save"
    " ^p commands ? help",
}
"""Text of the key line by the width of the terminal."""


@exhaustive
async def test_key_line_fits_and_its_keys_can_be_clicked() -> None:
    async with driven("RewardSum", "StepCounter", size=(60, 24)) as app:
        for width, text in KEY_LINES.items():
            await resize(app.pilot, width, 24)
            await app.settle()
            assert app.text("#keys") == text
        await app.press("down")
        shown = app.text("#keys", lines=True)
        await app.pilot.click("#keys", offset=(shown.index("remove") + 1, 0))
        await app.settle()
        assert app.stages == ["StepCounter"]
        await app.pilot.click("#keys", offset=(shown.index("uU"), 0))
        await app.settle()
        assert app.stages == ["RewardSum", "StepCounter"]
        await app.pilot.click("#keys", offset=(shown.index("uU") + 1, 0))
        await app.settle()
        assert app.stages == ["StepCounter"]


@exhaustive
async def test_hints_advance_and_are_shown_once(tmp_path: Path) -> None:
    path = tmp_path / "hints.json"
    async with driven(env=None, hints=HintState(path)) as app:
        assert "first steps 0/5 ▸ e choose an env" in app.text("#hints")
        await app.press("p", "text:pendulum", "enter")
        assert "first steps 2/5 ▸ 2 inspect the specs" in app.text("#hints")
        await app.press("2")
        assert "3 step the env" in app.text("#hints")
        await app.press("h")
        assert not app.find("#hints").display
    async with driven(hints=HintState(path)) as app:
        assert not app.find("#hints").display
        await app.press("h")
        assert "3 step the env" in app.text("#hints")


@exhaustive
async def test_hint_has_its_key_although_a_field_has_the_focus(tmp_path: Path) -> None:
    async with driven(hints=HintState(tmp_path / "hints.json")) as app:
        assert "▸ a add a transform" in app.text("#hints")
        await app.press("a", "text:rewardsum", "enter")
        assert isinstance(app.app.focused, Input)
        assert "▸ 2 inspect the specs" in app.text("#hints")
        assert "h hides this" in app.text("#hints")


@pytest.mark.parametrize("text", ["{", "3", '{"done": 3}', '{"hidden": 1}'])
def test_hints_are_shown_if_their_file_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "hints.json").write_text(text)
    book = HintState(tmp_path / "hints.json")
    assert book.next is not None
    assert not book.is_hidden


@exhaustive
async def test_hints_end_after_the_last_one(tmp_path: Path) -> None:
    async with driven("RewardSum", hints=HintState(tmp_path / "hints.json")) as app:
        await app.press("2", "3", "4")
        assert "Done. " in app.text("#hints")
    assert HintState(tmp_path / "hints.json").is_hidden


THEMES = """
theme = "mine"
[themes.mine]
primary = "#123456"
background = "black"
dark = true
text_alpha = 0.9
variables = {border-blurred = "#333333"}
[themes.no_primary]
dark = true
[themes.misspelt]
primary = "#123456"
backgrund = "#000000"
[themes.no_colour]
primary = "blueish"
[themes.no_flag]
primary = "red"
dark = "yes"
"""


@exhaustive
async def test_theme_is_previewed_and_selected_by_name() -> None:
    async with driven() as app:
        # The theme under the cursor is shown, and the one in use is marked.
        await app.press("t")
        assert "● tdx-dark" in app.text(".dialog")
        await app.press("down")
        await until(lambda: app.app.theme == "tdx-light")
        await app.press("escape")
        assert app.app.theme == "tdx-dark"
        await app.press("t", "text:ansi-light", "enter")
        assert app.app.theme == "ansi-light"
        assert app.find("#chain").has_focus


@exhaustive
async def test_user_theme_is_loaded_and_an_invalid_one_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(THEMES)
    async with driven(preferences=load_preferences()) as app:
        assert app.app.theme == "mine"
        assert app.app.current_theme.primary == "#123456"
        assert "\n".join(app.notices).splitlines() == [
            'themes.no_primary: the field primary is missing (write primary = "#6ea8fe")',
            "themes.misspelt: unknown field 'backgrund' (did you mean background?)",
            "themes.no_colour: primary cannot be 'blueish' (use a color such as #6ea8fe)",
            "themes.no_flag: dark cannot be 'yes' (use true or false)",
        ]


@pytest.mark.parametrize("text", ["themes = 3", "[themes]\nmine = 3"])
async def test_invalid_theme_tables_are_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    preferences = load_preferences()
    assert preferences.themes == ()
    assert len(preferences.notices) == 1


def colors(app: Driver) -> set[str]:
    """Return the colors on the screen that are not gray."""
    found: set[str] = set()
    for strip in app.app.screen._compositor.render_strips():
        for segment in strip:
            style = segment.style or Style()
            for color in (style.color, style.bgcolor):
                if color is not None and not color.is_default:
                    red, green, blue = color.get_truecolor()
                    found |= set() if red == green == blue else {f"{red} {green} {blue}"}
    return found


@exhaustive
async def test_no_color_removes_colors_and_keeps_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    # The filter of colors depends on whether a theme has ANSI colors.
    themes = ("tdx-dark", "ansi-dark")
    async with driven("CatFrames", preferences=Preferences(themes[0])) as app:
        assert colors(app)
    monkeypatch.setenv("NO_COLOR", "1")
    async with driven("CatFrames", "RewardSum", preferences=Preferences(themes[0])) as app:
        for theme in themes:
            app.app.theme = theme
            await app.press("1", "escape", "home")
            assert colors(app) == set(), theme
            await app.press("down", "down", "2")
            assert colors(app) == set(), theme
            assert "✕ 0 CatFrames" in app.text("#chain")
            assert "+ episode_reward" in app.text("#spec-tree")
