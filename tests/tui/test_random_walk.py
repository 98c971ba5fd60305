"""A random walk of keys and clicks over all screens, with invariants after each.

``TDX_WALK_STEPS=500 TDX_WALK_SEED=1 pytest tests/tui/test_random_walk.py`` presses 2,000 keys and
clicks. Each seed is another walk.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest
from textual.geometry import Offset
from textual.widgets import Input

from tdx.envs import EnvBase
from tdx.inspection.live.stack_env import StackEnv
from tdx.pipeline import Pipeline
from tdx.stacks.building import build_stack
from tdx.tui.app import TdxApp
from tdx.tui.backend.client import Ticket
from tdx.tui.backend.messages import Request
from tdx.tui.backend.requests import DumpRollout, ListEnvs
from tdx.tui.live.requests import RunSession
from tdx.tui.profile.messages import PROGRESS, ProfileProgress
from tdx.tui.profile.requests import FindAdvice, MeasurePipeline
from tests.programs import exhaustive, is_exhaustive
from tests.tui import wrapped_env
from tests.tui.files.filing import TEXT, storage_in
from tests.tui.idle import resize
from tests.tui.inline_backend import InlineBackend
from tests.tui.playing import Live, PlayingBackend, playing
from tests.tui.profile.measured import advice, costs

CHAIN = ("RewardScaling(0.0, 0.1)", "RewardSum", "StepCounter(max_steps=20)")
KEYS = (
    *("tab", "shift+tab", "up", "down", "left", "right", "home", "end", "enter", "space"),
    *("pageup", "pagedown", "shift+left", "shift+right", "delete", "backspace"),
    *("escape", "escape", "escape", "f1", "f2", "f12", "ctrl+p", "ctrl+z", "ctrl+y"),
    *("ctrl+g", "ctrl+k", "ctrl+l", "ctrl+n", "ctrl+o", "ctrl+r", "ctrl+s"),
    *"1234512345/<>[]-+,.!",
    *"azghdcKJxuUsmobBEvnNftrywiepSDCFMXqkR",
)
"""Keys of all screens, without the one that quits."""
SIZES = ((60, 20), (80, 24), (120, 40), (200, 60))
TOO_SMALL = (40, 10)
WALKS = (
    ((60, 20), "Pendulum-v1", CHAIN),
    ((120, 40), "Pendulum-v1", CHAIN),
    ((80, 24), f"{wrapped_env.__name__}:make", ()),
    ((200, 60), f"{wrapped_env.__name__}:make_vec_normalize", ()),
)
"""Size of the terminal, env and chain of each walk."""
STEPS = int(os.environ.get("TDX_WALK_STEPS", "25" if is_exhaustive() else "8"))
"""Number of keys and clicks of each walk."""
SEED = int(os.environ.get("TDX_WALK_SEED", "0"))
_EXPECTED_ERRORS = (
    *("env ", "stage ", "Not opened", "Not saved", "Not checked", "Not excluded", "Not recorded"),
)
"""Prefixes of errors that typed envs, arguments and paths may cause."""
_ATTEMPTS = 50
"""Number of attempts, 10 ms apart, before an invariant counts as violated."""
_TIMEOUT = 300.0
"""Seconds after which the app counts as blocked."""
_CHECK_UNDO = 100
"""Number of steps between two checks that all edits can be undone."""


class WalkingBackend(PlayingBackend):
    """Backend that plays rollouts; dumps and the list of envs never complete."""

    def ask(self, request: Request[Any], **kwargs: Any) -> Ticket[Any]:
        if isinstance(request, RunSession | ListEnvs | DumpRollout):
            return super().ask(request, **kwargs)
        if not isinstance(request, MeasurePipeline | FindAdvice):
            return InlineBackend.ask(self, request, **kwargs)
        ticket: Ticket[Any] = super().ask(request, **kwargs)
        if isinstance(request, FindAdvice):
            ticket.future.set_result(advice(request.pipeline))
        else:
            kwargs["on_push"](PROGRESS, ProfileProgress("planned: time", 2, request.repeats))
            extras = bool(request.extras)
            ticket.future.set_result(costs(request.pipeline, *request.modes, extras=extras))
        return ticket


async def _stay(app: TdxApp) -> None:
    """Do not quit."""


class Walk:
    """Walker that presses random keys and checks the invariants.

    Args:
        app: The app.
        choose: Source of the keys.
    """

    def __init__(self, app: Live, choose: random.Random) -> None:
        self.app, self.choose = app, choose
        self.pressed: list[str] = []
        self.base = app.stages

    async def step(self) -> str | None:
        """Press a key or click; return the violated invariant, or ``None``."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await self._step()
        except TimeoutError:
            return "the app does not respond"

    async def _step(self) -> str | None:
        where, expected = self.app.app.focused, None
        if self.choose.random() < 0.15:
            await self._click()
        elif self.choose.random() < 0.01:
            size = self.choose.choice(SIZES)
            self.pressed.append(f"resize {size}")
            await resize(self.app.pilot, *TOO_SMALL)
            await resize(self.app.pilot, *size)
        else:
            key = self.choose.choice(KEYS)
            self.pressed.append(key)
            expected = _expected_text(where, key)
            await self.app.send(key)
        await self.app.delivered()
        self.app.text()  # draws the screen
        if expected is not None and isinstance(where, Input) and where.value != expected:
            return f"the text is {where.value!r} instead of {expected!r}"
        if not self.app.app.workspace.editor.done:
            self.base = self.app.stages  # a file or a sample may have been opened
        for _ in range(_ATTEMPTS):
            if self._broken_rule() is None:
                return None
            await asyncio.sleep(0.01)  # a form is being built
        return self._broken_rule()

    async def _click(self) -> None:
        width, height = self.app.app.size
        at = Offset(self.choose.randrange(width), self.choose.randrange(height))
        self.pressed.append(f"click {at}")
        # Not by the pilot, which waits until the app is idle: a session may be running.
        await self.app.send_click(at)

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
        """Undo and redo all edits; return the difference."""
        workspace = self.app.app.workspace
        before, count = self.app.stages, len(workspace.editor.done)
        for _ in range(count):
            workspace.undo()
        if not await self._has_stages(self.base):
            return f"all edits are undone: {self.app.stages}, not {self.base}"
        for _ in range(count):
            workspace.redo()
        if not await self._has_stages(before):
            return f"the edits are redone: {self.app.stages}, not {before}"
        return None

    async def _has_stages(self, expected: list[str]) -> bool:
        """Wait for the inspection; return True if the chain is the expected one."""
        for _ in range(_ATTEMPTS):
            await self.app.delivered()
            if self.app.stages == expected:
                return True
            await asyncio.sleep(0.01)
        return False


def _expected_text(widget: object, key: str) -> str | None:
    """Return the text of a field after a character is typed. ``None``: the key may do more."""
    if not isinstance(widget, Input) or widget.type != "text" or len(key) > 1:
        return None
    start, end = sorted(widget.selection)
    return widget.value[:start] + key + widget.value[end:]


def _open_env(pipeline: Pipeline) -> EnvBase | StackEnv:
    stack = build_stack(pipeline, allow_code=True)
    return StackEnv(stack) if stack.chain_env is None else stack.chain_env


@pytest.mark.programs
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("size", "env", "chain"), WALKS)
@exhaustive
async def test_any_keys_and_clicks_leave_the_app_usable(
    size: tuple[int, int],
    env: str,
    chain: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TdxApp, "action_quit", _stay)
    Path("pipeline.yaml").write_text(TEXT)
    backend, storage = WalkingBackend(_open_env), storage_in(tmp_path / "state")
    async with playing(
        *chain,
        env=env,
        whole=True,
        size=size,
        backend=backend,
        allow_code=True,
        storage=storage,
    ) as app:
        walk = Walk(app, random.Random(f"{size} {env} {SEED}"))
        for number in range(1, STEPS + 1):
            broken = await walk.step()
            if broken is None and number % _CHECK_UNDO == 0:
                broken = await walk.check_undo()
            assert broken is None, (broken, walk.pressed[-12:])
        async with asyncio.timeout(_TIMEOUT):
            while len(app.app.screen_stack) > 1:
                await app.send("escape")
                await app.delivered()
                await asyncio.sleep(0)
            assert await walk.check_undo() is None
