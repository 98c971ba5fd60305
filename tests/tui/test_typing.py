"""Fast typing and clicking: each character arrives in the intended field."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from textual import events
from textual.widgets import Input

from tdx.tui.backend.client import Ticket
from tdx.tui.backend.messages import Request
from tests.programs import exhaustive
from tests.tui.driving import Driver, driven
from tests.tui.inline_backend import InlineBackend

GAP = 0.01
"""Seconds between two keys."""


class SlowBackend(InlineBackend):
    """Backend with random delays, so that answers arrive between any two keys.

    Args:
        seed: Seed of the delays.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def _answer(self, ticket: Ticket[Any], request: Request[Any]) -> None:
        later = self._random.uniform(0.0, 0.2)
        asyncio.get_running_loop().call_later(later, super()._answer, ticket, request)


@contextmanager
def busy_thread() -> Iterator[None]:
    """Run a thread that repeatedly takes the interpreter lock, as a worker does."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(0.004):
            end = time.monotonic() + 0.004
            while time.monotonic() < end:
                pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


async def typed(app: Driver, *keys: str) -> None:
    """Type keys and words, and wait until they are handled."""
    for key in keys:
        await app.send(*(key[5:] if key.startswith("text:") else [key]), gap=GAP)
    await app.delivered()
    await app.settle()


def field(app: Driver, name: str) -> str:
    """Return the text of a field."""
    return str(app.row(name).query_one(Input).value)


@exhaustive
async def test_every_character_arrives_in_its_field() -> None:
    async with driven("CatFrames", "StepCounter", backend=SlowBackend(0)) as app:
        with busy_thread():
            choose = random.Random(0)
            tab = choose.choice("2345")
            size = str(choose.randint(10, 9999))
            await typed(app, tab, "escape", "down", "enter", f"text:{size}", "tab", "text:-3")
            assert (field(app, "N"), field(app, "dim")) == (size, "-3")
            assert app.stages[0] == f"CatFrames(N={size}, dim=-3)"
            await typed(app, "escape", "down", tab, "escape", "enter", "text:84", "enter")
            assert app.find("TabbedContent").active == "stage"
            assert field(app, "max_steps") == "84"
            assert app.stages[1] == "StepCounter(max_steps=84)"


@exhaustive
async def test_invalid_text_stays_in_its_field() -> None:
    async with driven("CatFrames(4)") as app:
        await typed(app, "down", "enter", "tab", "text:-", "tab")
        app.app.workspace.refresh()
        await app.settle()
        assert field(app, "dim") == "-"
        await typed(app, "shift+tab", "end", "text:2")
        assert app.stages == ["CatFrames(N=4, dim=-2)"]


@exhaustive
async def test_keys_after_a_key_or_click_that_opens_a_dialog_go_into_the_dialog() -> None:
    async with driven(env=None) as app:
        await app.send_click(app.find("#form-env"))
        await typed(app, "text:CartPole-v1", "enter")
        assert app.app.workspace.draft.env is not None
        assert app.app.workspace.draft.env.id == "CartPole-v1"
        await typed(app, "e", "text:Pendulum-v1", "enter")
        assert app.app.workspace.draft.env is not None
        assert app.app.workspace.draft.env.id == "Pendulum-v1"


@exhaustive
async def test_keys_after_the_key_of_a_tab_go_to_the_tab() -> None:
    async with driven("RewardSum", "StepCounter") as app:
        await typed(app, "down", "3", "d", "d")
        assert app.stages == ["RewardSum", "StepCounter"]


@exhaustive
async def test_undo_updates_a_field_after_it_loses_the_focus() -> None:
    async with driven("StepCounter(max_steps=5)") as app:
        await typed(app, "down", "enter", "end", "text:0", "escape", "u")
        assert field(app, "max_steps") == "5"


@exhaustive
async def test_click_is_handled_after_earlier_keys() -> None:
    async with driven("CatFrames(4)", backend=SlowBackend(0)) as app:
        await app.press("down", "enter", "end")
        with busy_thread():
            await app.send(*"567")
            await app.send_click(app.row("dim").query_one(Input))
            await app.send("-", "3")
            await app.delivered()
            await app.settle()
            assert (field(app, "N"), field(app, "dim")) == ("4567", "-3")


@exhaustive
async def test_clicked_key_is_handled_before_later_keys() -> None:
    async with driven() as app:
        bar = app.find("KeyBar")
        app.text("KeyBar")  # draws it, which places its keys
        x = next(start for start, _, key in bar._spots if key == "a")
        at = bar.region.x + x, bar.region.y
        for kind in (events.MouseDown, events.MouseUp):
            app.app.post_message(kind(None, *at, 0, 0, 1, False, False, False, *at))
        await typed(app, "text:Step")
        assert app.find("#catalog-search").value == "Step"


@exhaustive
async def test_scrolling_waits_for_earlier_keys_and_mouse_moves_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with driven("CatFrames(4)") as app:
        delivered: list[str] = []
        forward = app.app.screen._forward_event

        def record(event: events.Event) -> None:
            delivered.append(type(event).__name__)
            forward(event)

        monkeypatch.setattr(app.app.screen, "_forward_event", record)
        app.app.screen.set_focus(None)  # the screen has the focus
        queue = app.app.input_queue
        queue._is_busy = True  # as while an earlier key is handled
        await app.send("f8", "f9")
        for kind in (events.MouseScrollDown, events.MouseMove):
            app.app.post_message(kind(None, 1, 5, 0, 1, 0, False, False, False, 1, 5))
        await app.send("f8")
        await app.pilot.pause()
        assert delivered == ["MouseMove"]
        app.app.call_later(queue._complete, queue._serial)
        await app.delivered()
        assert delivered == ["MouseMove", "Key", "Key", "MouseScrollDown", "Key"]
