"""A random walk of keys and clicks over all screens; some facts hold after each."""

from __future__ import annotations

import os
import random

import pytest
from textual.widgets import Input

from tests.tui.playing import Live, playing

CHAIN = ("RewardScaling(0.0, 0.1)", "RewardSum", "StepCounter(max_steps=20)")
KEYS = (
    *("tab", "shift+tab", "up", "down", "left", "right", "home", "end", "enter", "space"),
    *("escape", "escape", "escape", "1", "2", "3", "4", "5", "a", "slash", "z", "g", "h"),
    *("d", "c", "K", "J", "x", "u", "U", "less_than_sign", "greater_than_sign", "f1", "f12"),
    *("left_square_bracket", "right_square_bracket", "minus", "plus", "comma", "full_stop"),
    *("s", "m", "o", "b", "B", "E", "v", "n", "N", "f", "t", "r", "4", "y"),
)
"""Keys of all screens, without those that open files, quit, or kill a worker."""
SIZES = ((80, 24), (120, 40), (200, 60))
STEPS = int(os.environ.get("TDX_WALK_STEPS", "60"))
"""Number of keys and clicks of each walk."""


def broken_rule(app: Live) -> str | None:
    """Return which of the facts does not hold. ``None``: all hold."""
    focused = app.app.focused
    is_dialog = len(app.app.screen_stack) > 1
    if focused is None and not is_dialog:
        return "nothing has the focus"
    if focused is not None and not (focused.is_on_screen and focused.region.area):
        return f"{focused!r} has the focus, but is not displayed"
    failed = [each.text for each in app.app.workspace.journal.entries if each.severity == "error"]
    return f"errors in the log: {failed}" if failed else None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
async def test_any_keys_and_clicks_leave_the_app_usable(size: tuple[int, int]) -> None:
    choose = random.Random(size[0])
    pressed: list[str] = []
    async with playing(*CHAIN, whole=True, size=size) as app:
        for _ in range(STEPS):
            if choose.random() < 0.15:
                at = choose.randrange(size[0]), choose.randrange(size[1])
                pressed.append(f"click {at}")
                await app.pilot.click(offset=at)
            else:
                key = choose.choice(KEYS)
                is_typed = isinstance(app.app.focused, Input) and len(key) == 1
                pressed.append(f"type {key}" if is_typed else key)
                await app.send(key)
            await app.delivered()
            broken = broken_rule(app)
            assert broken is None, (broken, pressed[-8:])
        await leave_dialogs(app)
        editor = app.app.workspace.editor
        while editor.done:
            app.app.workspace.undo()
        await app.delivered()
        assert app.stages == [*CHAIN], "the edits can be undone"


async def leave_dialogs(app: Live) -> None:
    """Close the dialogs on top of the main screen."""
    while len(app.app.screen_stack) > 1:
        await app.send("escape")
        await app.delivered()
