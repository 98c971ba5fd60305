"""Lineage of keys in stacks of other libraries, whose wrappers declare no keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tdx.inspection.lineage import inspect_keys
from tdx.pipeline import EnvConfig, Pipeline
from tdx.stacks.building import build_stack
from tdx.tui.backend.client import CANCELLED, RequestError, Ticket
from tdx.tui.backend.messages import Request
from tdx.tui.backend.requests import ObserveKeys
from tdx.tui.specs import lineage_pane
from tests.programs import exhaustive
from tests.tui import wrapped_env
from tests.tui.driving import Driver, driven, job
from tests.tui.idle import resize
from tests.tui.inline_backend import InlineBackend

MODULE = wrapped_env.__name__
MAKE = f"{MODULE}:make"


class CountingBackend(InlineBackend):
    """Backend that counts the observations and, if ``hangs``, answers none."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__()
        self.hangs = hangs
        self.tickets: list[Ticket[Any]] = []
        self.cancelled: list[Ticket[Any]] = []

    def ask(self, request: Request[Any], **kwargs: Any) -> Ticket[Any]:
        if not isinstance(request, ObserveKeys):
            return super().ask(request, **kwargs)
        ticket = (
            Ticket(-1, asyncio.get_running_loop().create_future())
            if self.hangs
            else super().ask(request, **kwargs)
        )
        self.tickets.append(ticket)
        return ticket

    def cancel(self, ticket: Ticket[Any]) -> None:
        self.cancelled.append(ticket)
        super().cancel(ticket)


async def go_to(app: Driver, key: str) -> str:
    """Return the lineage of the key at the selected stage."""
    tree = app.find("#spec-tree")
    at = next(n for n, line in enumerate(tree.lines) if line.key == key)
    tree.highlighted = at
    await app.settle()
    return app.text("#lineage")


@exhaustive
async def test_each_wrapper_that_writes_a_key_is_named() -> None:
    async with driven(env=MAKE, allow_code=True, size=(180, 45)) as app:
        await app.press("end", "2")
        shown = await go_to(app, "observation")
        assert "lineage of observation" in shown
        for line in (
            "observation@0 by env → 3 NormalizeObservation",
            "observation@1 by 3 NormalizeObservation from observation@0 → 4 FrameStackObservation",
            "observation@2 by 4 FrameStackObservation from observation@1 → output",
        ):
            assert line in shown, shown

        # All versions fit in a small terminal.
        await resize(app.pilot, 80, 24)
        await app.settle()
        shown = await go_to(app, "observation")
        assert "FrameStackObservation from observation@1 → output" in shown

        # A vectorized env removes keys.
        await app.open(env=f"{MODULE}:make_vec_normalize", size=(180, 45))
        await app.press("end", "2")
        shown = await go_to(app, "terminated")
        assert "lineage of terminated" in shown
        assert "terminated@0 by env → 3 DummyVecEnv removed by 3 DummyVecEnv" in shown

        # A step that raises is shown instead of the lineage.
        await app.open(env=f"{MODULE}:make_failing")
        await app.press("2")
        shown = app.text("#lineage")
        assert "unknown: stage 2 _Failing: it raised RuntimeError in a step: sensor lost" in shown
        assert "~ observation" not in shown


async def test_the_app_shows_the_lineage_of_the_command_line() -> None:
    stack = build_stack(Pipeline.of(MAKE), True)
    expected = inspect_keys(stack, MAKE)
    stack.close()
    shown = ObserveKeys(Pipeline.of(MAKE), allow_code=True).answer(job())
    assert shown == expected


@exhaustive
async def test_keys_are_observed_once_until_the_pipeline_changes() -> None:
    backend = CountingBackend()
    async with driven(env=MAKE, allow_code=True, backend=backend) as app:
        assert backend.tickets == []
        await app.press("down", "down", "2", "1", "2", "k")
        assert len(backend.tickets) == 1
        draft = app.app.workspace.draft.with_env(EnvConfig(MAKE, seed=3))
        app.app.workspace.edit("set seed", draft)
        await app.settle()
        assert len(backend.tickets) == 2
        app.app.workspace.reload_code()
        await app.settle()
        assert len(backend.tickets) == 3


@exhaustive
async def test_slow_steps_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_pane, "SLOW_SECONDS", 0.001)
    backend = CountingBackend(hangs=True)
    async with driven(env=MAKE, allow_code=True, backend=backend) as app:
        await app.press("2")
        while "observing a few random steps … (Ctrl+K stops them)" not in app.text("#lineage"):
            await asyncio.sleep(0.01)
        (ticket,) = backend.tickets
        ticket.future.set_exception(RequestError(CANCELLED))
        await app.press("ctrl+k")
        assert "unknown: cancelled · Ctrl+L observes it again" in app.text("#lineage")
        assert len(backend.tickets) == 1


@exhaustive
async def test_edit_cancels_running_steps() -> None:
    backend = CountingBackend(hangs=True)
    async with driven(env=MAKE, allow_code=True, backend=backend) as app:
        await app.press("2", "a", "text:StepCounter", "enter", "escape", "2")
        assert backend.cancelled == backend.tickets
        assert "reward@0 by env" in await go_to(app, "reward")


def test_a_cancelled_observation_makes_no_further_steps() -> None:
    cancelled = job()
    cancelled.cancel()
    assert ObserveKeys(Pipeline.of(MAKE), allow_code=True).answer(cancelled) is None
