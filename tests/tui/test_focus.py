"""Focus: only displayed widgets have it, and each key reaches its widget."""

from __future__ import annotations

from typing import Any

import pytest
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.widget import Widget

from tests.programs import exhaustive
from tests.tui.driving import Driver, driven
from tests.tui.idle import resize
from tests.tui.playing import playing

CHAIN = ("RewardScaling(0.0, 0.1)", "RewardSum", "StepCounter")
SIZES = [(80, 24), (120, 40)]
MOST_TURNS = 20
"""Layouts of the screen in which a form scrolls to its field."""


async def hidden_focus(app: Driver) -> Widget | None:
    """Return the focused widget if it is not on the screen, also after scrolling."""
    focused = app.app.focused
    for _ in range(MOST_TURNS):
        if focused is None or (focused.is_on_screen and focused.region.area):
            return None
        await app.delivered()
    return focused


@exhaustive
async def test_escape_in_an_expanded_tab_shows_the_chain_and_keeps_the_focus() -> None:
    async with playing(*CHAIN, whole=True, size=(120, 40)) as app:
        await app.press("z", "escape", "d")
        assert app.stages == [*CHAIN]
        assert app.app.focused is app.tab.panes.values
        assert app.tab.panes.values.difference
        await app.press("escape")
        assert app.app.focused is app.find("#chain")


@exhaustive
async def test_focus_stays_on_displayed_panes() -> None:
    async with driven(*CHAIN) as app:
        # Key of a tab displays it.
        for keys in (["z"], ["z", "2"], ["a", "z"]):
            await app.press("escape", "escape", "1", *keys, "escape", "escape", "z", "5")
            assert app.find("LogTab").is_on_screen, keys
            assert await hidden_focus(app) is None, keys

        # Palette command shows the pane that it changes.
        await app.open(*CHAIN)
        await app.press("down", "5", "z", "ctrl+p", "text:chain remove", "enter")
        assert app.find("#chain").is_on_screen

        # Escape in an expanded catalog shows the chain.
        await app.open(*CHAIN)
        await app.press("a", "down", "tab", "z", "escape")
        assert app.find("#chain").is_on_screen
        assert app.app.focused is app.find("#chain")
        assert not app.find("#catalog-pane").display

        # Number of a tab focuses it.
        await app.open(*CHAIN)
        for size in SIZES:
            await resize(app.pilot, *size)
            for number, tab in enumerate(("Stage", "Specs", "Live", "Profile", "Log"), start=1):
                await app.press("escape", str(number))
                assert app.find(f"{tab}Tab").has_focus_within, tab

        # Focus leaves a pane hidden by a resize.
        await app.open(*CHAIN, size=(120, 30))
        await app.press("a")
        await resize(app.pilot, 80, 24)
        await app.settle()
        assert app.app.focused is app.find("#catalog-search")
        assert not app.find("#tabs-pane").display
        await resize(app.pilot, 40, 10)
        await app.settle()
        assert app.app.focused is None
        await resize(app.pilot, 80, 24)
        await app.settle()
        assert app.app.focused is app.find("#catalog-search")


@exhaustive
async def test_change_of_the_focused_pane_computes_few_styles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The widgets in a pane have the same styles with and without the focus."""
    async with driven(*CHAIN, size=(120, 40)) as app:
        await app.press("enter", "escape", "enter")
        computed: list[object] = []
        apply = Stylesheet.apply

        def count(sheet: Stylesheet, node: DOMNode, **options: Any) -> None:
            computed.append(node)
            apply(sheet, node, **options)

        monkeypatch.setattr(Stylesheet, "apply", count)
        await app.press("escape")
        assert app.find("#chain-pane").has_class("-focused")
        assert not app.find("#tabs-pane").has_class("-focused")
        assert 2 <= len(computed) <= 60


@exhaustive
async def test_keys_move_the_focus_between_fields() -> None:
    async with driven("RewardScaling(0.0, 0.1)", "CatFrames(4, -1)") as app:
        # Arrows and enter leave fields.
        await app.press("down", "enter", "enter")
        assert app.row("scale").has_focus_within
        await app.press("up", "up")
        assert app.row("loc").has_focus_within
        await app.press("escape", "down", "enter", *["down"] * 4)
        assert app.row("padding").has_focus_within
        await app.press("down", "up", "enter", "down", "down", "enter")
        assert app.stages[1] == 'CatFrames(N=4, dim=-1, padding="constant")'

        # Help is about the field that has the focus.
        await app.open("RewardScaling(0.0, 0.1)")
        await app.press("down")
        assert "Enter edits" in app.text("#form-help")
        await app.press("enter", "down")
        assert "scale Factor" in app.text("#form-help")

        # Enter focuses the first field.
        await app.open(*CHAIN, size=SIZES[0])
        await app.press("1", "2", "1")
        assert app.stages == [*CHAIN], "the keys of the tabs are not typed into a field"
        await app.press("enter")
        assert app.row("kwargs").has_focus_within
        for place, name in enumerate(("loc", "in_keys", "max_steps")):
            await app.press("escape", "home", *["down"] * (place + 1), "enter")
            assert app.row(name).has_focus_within
            await app.press("escape")
            assert app.app.focused is app.find("#chain")
