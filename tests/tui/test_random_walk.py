"""A random walk of keys and clicks over all screens; some facts hold after each.

``TDX_WALK_STEPS=1000 TDX_WALK_SEED=3 pytest tests/tui/test_random_walk.py`` walks further, and
elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from textual.geometry import Offset
from textual.widgets import Input

from tdx.tui.app import TdxApp
from tdx.tui.backend.client import Ticket
from tdx.tui.backend.messages import Request
from tdx.tui.backend.requests import ListEnvs
from tdx.tui.live.messages import RunSession
from tests.tui.idle import resize
from tests.tui.inline_backend import InlineBackend
from tests.tui.playing import Live, PlayingBackend, playing

CHAIN = ("RewardScaling(0.0, 0.1)", "RewardSum", "StepCounter(max_steps=20)")
KEYS = (
    *("tab", "shift+tab", "up", "down", "left", "right", "home", "end", "enter", "space"),
    *("escape", "escape", "escape", "backspace", "f1", "f2", "f12", "ctrl+p", "ctrl+z", "ctrl+y"),
    *("ctrl+o", "ctrl+r", *"1234512345/<>[]-+,.!"),
    *"azghdcKJxuUsmobBEvnNftrywiepSD",
)
"""Keys of all screens, except keys that quit or kill a worker."""
SIZES = ((80, 24), (120, 40), (200, 60))
STEPS = int(os.environ.get("TDX_WALK_STEPS", "25"))
"""Number of keys and clicks of each walk."""
SEED = int(os.environ.get("TDX_WALK_SEED", "0"))
_EXPECTED_ERRORS = ("env ", "stage ", "Not opened", "Not checked")
"""Start of the errors of what the walk may have typed: an env, arguments, a file."""
_ATTEMPTS = 50
"""How often a fact is looked at again, 10 ms apart, before it counts as broken."""
_CHECK_UNDO = 100
"""Steps between two checks that all edits can be undone."""


class WalkingBackend(PlayingBackend):
    """Plays rollouts, and answers what the chain asks; the list of envs is never complete."""

    def ask(self, request: Request[Any], **kwargs: Any) -> Ticket[Any]:
        is_known = not isinstance(request, RunSession | ListEnvs)
        if not is_known or kwargs.get("worker", "look") != "look":
            return super().ask(request, **kwargs)
        return InlineBackend.ask(self, request, **kwargs)


async def _stay(app: TdxApp) -> None:
    """Do not quit."""


class Walk:
    """Presses random keys, and finds out which of the facts does not hold.

    Args:
        app: The app.
        choose: Source of the keys.
    """

    def __init__(self, app: Live, choose: random.Random) -> None:
        self.app, self.choose = app, choose
        self.pressed: list[str] = []
        self.base = app.stages

    async def step(self) -> str | None:
        """Press a key or click; return what does not hold. ``None``: all facts do."""
        where, expected = self.app.app.focused, None
        if self.choose.random() < 0.15:
            await self._click()
        elif self.choose.random() < 0.01:
            size = self.choose.choice(SIZES)
            self.pressed.append(f"resize {size}")
            await resize(self.app.pilot, *size)
        else:
            key = self.choose.choice(KEYS)
            self.pressed.append(key)
            expected = _expected_text(where, key)
            await self.app.send(key)
        await self.app.delivered()
        if expected is not None and isinstance(where, Input) and where.value != expected:
            return f"the text is {where.value!r} instead of {expected!r}"
        if not self.app.app.workspace.editor.done:
            self.base = self.app.stages  # a file or a sample may have been opened
        for _ in range(_ATTEMPTS):
            if self._broken_rule() is None:
                break
            await asyncio.sleep(0.01)  # a form is being built
        return self._broken_rule()

    async def _click(self) -> None:
        width, height = self.app.app.size
        at = Offset(self.choose.randrange(width), self.choose.randrange(height))
        self.pressed.append(f"click {at}")
        await self.app.pilot.click(offset=at)

    def _broken_rule(self) -> str | None:
        app = self.app.app
        focused = app.focused
        if focused is None and len(app.screen_stack) == 1:
            return "nothing has the focus"
        if focused is not None and not (focused.is_on_screen and focused.region.area):
            return f"{focused!r} has the focus, but is not displayed"
        failed = [
            each.text
            for each in app.workspace.journal.entries
            if each.severity == "error" and not each.text.startswith(_EXPECTED_ERRORS)
        ]
        return f"errors in the log: {failed}" if failed else None

    async def check_undo(self) -> str | None:
        """Undo all edits and redo them; return what differs."""
        workspace = self.app.app.workspace
        before, count = self.app.stages, len(workspace.editor.done)
        for _ in range(count):
            workspace.undo()
        if self.app.stages != self.base:
            return f"all edits are undone, but the chain is {self.app.stages}"
        for _ in range(count):
            workspace.redo()
        await self.app.delivered()
        is_same = self.app.stages == before
        return None if is_same else f"the edits are redone, but the chain is {self.app.stages}"


def _expected_text(widget: object, key: str) -> str | None:
    """Return the text of a field after a character is typed. ``None``: the key may do more."""
    if not isinstance(widget, Input) or widget.type != "text" or len(key) > 1:
        return None
    start, end = sorted(widget.selection)
    return widget.value[:start] + key + widget.value[end:]


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("size", SIZES)
async def test_any_keys_and_clicks_leave_the_app_usable(
    size: tuple[int, int], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TdxApp, "action_quit", _stay)
    async with playing(*CHAIN, whole=True, size=size, backend=WalkingBackend()) as app:
        walk = Walk(app, random.Random(size[0] + 1000 * SEED))
        for number in range(1, STEPS + 1):
            broken = await walk.step()
            if broken is None and number % _CHECK_UNDO == 0:
                broken = await walk.check_undo()
            assert broken is None, (broken, walk.pressed[-12:])
        while len(app.app.screen_stack) > 1:
            await app.send("escape")
            await app.delivered()
            await asyncio.sleep(0)
        assert await walk.check_undo() is None
