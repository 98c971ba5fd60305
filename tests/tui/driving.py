"""Drive the app in tests: press keys and read the screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from textual import events
from textual.app import App
from textual.geometry import Offset
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from tdx.pipeline import Pipeline, format_stage
from tdx.pipeline.editing import Draft
from tdx.tui.app import TdxApp
from tdx.tui.backend.client import Backend
from tdx.tui.backend.messages import Job
from tdx.tui.compose.form_row import FormRow
from tdx.tui.preferences import Preferences
from tdx.tui.screens.bars import HintState
from tdx.tui.screens.commands import CommandPalette
from tdx.tui.screens.main import MainScreen
from tdx.tui.tab_body import TabBody
from tests.tui.idle import resize, until, wait_for_idle
from tests.tui.inline_backend import InlineBackend


def screen_text(app: App[Any], selector: str = "") -> str:
    """Return the lines of the screen, or of one of its widgets."""
    region = app.screen.query_one(selector).region if selector else app.screen.region
    strips = app.screen._compositor.render_strips()[region.y : region.bottom]
    return "\n".join(strip.text[region.x : region.right].rstrip() for strip in strips)


def job() -> Job:
    """Return a job whose pushed values nobody reads."""
    return Job(lambda topic, value: None, {})


class Driver:
    """Driver that presses keys and waits until the app has handled them."""

    def __init__(self, app: TdxApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot
        self.notices: list[str] = []
        """Messages of all notifications, including earlier ones."""

    async def press(self, *keys: str) -> None:
        """Press keys; ``"text:abc"`` types into the field that has the focus.

        The app is idle after each key.
        """
        for key in keys:
            if key.startswith("text:"):
                await self.settle()
                box = self.app.focused
                assert isinstance(box, Input)
                box.insert_text_at_cursor(key[5:])
            else:
                await self.app._press_keys([key])
            await self.settle()

    async def send(self, *keys: str, gap: float = 0.0) -> None:
        """Send keys as a terminal does, without waiting for what they do.

        Args:
            keys: The keys; a single character stands for itself.
            gap: Seconds between two keys.
        """
        for key in keys:
            name = key if len(key) > 1 or key.isalnum() else _character_to_key(key)
            event = events.Key(name, key if len(key) == 1 else None)
            event.set_sender(self.app)
            self.app.post_message(event)
            await asyncio.sleep(gap)

    async def send_click(self, target: Widget | Offset, *, gap: float = 0.0) -> None:
        """Send a click as a terminal does, without waiting for what it does.

        Args:
            target: Cell of the screen to click, or a widget, whose first cell it is.
            gap: Seconds after the press and after the release.
        """
        x, y = target.content_region.offset if isinstance(target, Widget) else target
        for kind in (events.MouseDown, events.MouseUp):
            self.app.post_message(kind(None, x, y, 0, 0, 1, False, False, False, x, y))
            await asyncio.sleep(gap)

    async def open(
        self,
        *stages: str,
        env: str | None = "Pendulum-v1",
        size: tuple[int, int] | None = None,
    ) -> None:
        """Continue with another chain, as the app shows it after its start.

        Args:
            stages: Stages of the chain.
            env: Env of the pipeline. ``None``: no pipeline is open.
            size: Columns and rows of the terminal. ``None``: as before.
        """
        while not isinstance(main := self.app.screen, MainScreen):
            await self.press("escape")
        if size is not None:
            await resize(self.pilot, *size)
        main.panes.shrink()
        main.query_one("#catalog-search", Input).value = ""
        await main.show_tab("stage")
        main.set_focus(main.query_one("#chain"))
        draft = Draft() if env is None else Draft.of(Pipeline.of(env, *stages))
        self.app.workspace.load(draft)
        self.app.clear_notifications()
        await self.settle()
        self.notices.clear()

    async def delivered(self) -> None:
        """Wait until all input is delivered and the screen is laid out after it."""
        await self._turn()
        while not self.app.input_queue.is_idle:
            await asyncio.sleep(0.001)
        for _ in range(2):
            await self._turn()

    async def _turn(self) -> None:
        turned = asyncio.Event()
        while not turned.is_set():
            # A screen that is closed meanwhile never calls back.
            self.app.call_later(self.app.screen.call_after_refresh, turned.set)
            with suppress(TimeoutError):
                await asyncio.wait_for(turned.wait(), 1.0)

    async def settle(self) -> None:
        """Wait until the app is idle: the chain is inspected and checked, all tabs are drawn."""
        if self.app.is_running:
            await self.delivered()
        await wait_for_idle()
        await until(lambda: not (self.app.is_running and self.app.workspace._tasks))
        await until(lambda: all(tab.is_up_to_date for tab in self.app.query(TabBody)))
        if self.app.is_running:
            await self.delivered()
        await wait_for_idle()

    async def inspected(self) -> None:
        """Wait until the worker has inspected the current chain, however long it takes."""
        workspace = self.app.workspace
        await until(lambda: workspace.status.revision == workspace.editor.revision)

    async def notified(self, message: str) -> None:
        """Wait until a notification has come."""
        await until(lambda: message in self.notices)

    def commands(self) -> set[str]:
        """Titles of the actions in the palette."""
        main = self.app.screen_stack[0]
        assert isinstance(main, MainScreen)
        return {title for title, _, _ in CommandPalette(main, self.app.screen).actions}

    @property
    def stages(self) -> list[str]:
        """Stages as text; disabled ones in parentheses."""
        stages = self.app.workspace.draft.stages
        texts = ((format_stage(stage.config), stage.enabled) for stage in stages)
        return [text if on else f"({text})" for text, on in texts]

    @property
    def names(self) -> list[str]:
        """Names of the stages."""
        return [stage.config.name for stage in self.app.workspace.draft.stages]

    @property
    def place(self) -> int:
        """Selected place."""
        return self.app.workspace.place

    def text(self, selector: str = "MainScreen", *, lines: bool = False) -> str:
        """Return the text of a part of the screen, with single spaces.

        Args:
            selector: Widget.
            lines: Keep lines and spaces.
        """
        text = screen_text(self.app, "" if selector == "MainScreen" else selector)
        return text if lines else " ".join(text.split())

    def picture(self) -> str:
        """Return the screen as SVG, without a blinking cursor."""
        for box in self.app.screen.query(Input):
            box.cursor_blink = False
        return self.app.export_screenshot(simplify=True)

    def row(self, name: str) -> FormRow:
        """Return the form row of an argument."""
        return next(each for each in self.app.screen.query(FormRow) if each.field.name == name)

    def find(self, selector: str | type[Widget]) -> Any:
        """Return a widget."""
        return self.app.screen.query_one(selector)


@asynccontextmanager
async def driven(
    *stages: str,
    env: str | None = "Pendulum-v1",
    size: tuple[int, int] = (120, 36),
    backend: Backend | None = None,
    preferences: Preferences | None = None,
    draft: Draft | None = None,
    hints: HintState | None = None,
    allow_code: bool = False,
) -> AsyncIterator[Driver]:
    """Run the app with a chain until it is idle."""
    if draft is None and env is not None:
        draft = Draft.of(Pipeline.of(env, *stages))
    backend = backend or InlineBackend()
    app = TdxApp(
        draft, backend=backend, preferences=preferences, hints=hints, allow_code=allow_code
    )
    notices: list[str] = []
    notify = app.notify

    def record(message: str, **options: Any) -> None:
        notices.append(message)
        notify(message, **options)

    app.notify = record  # type: ignore[method-assign]
    async with app.run_test(size=size) as pilot:
        driver = Driver(app, pilot)
        driver.notices = notices
        await driver.settle()
        yield driver
