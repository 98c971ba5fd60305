"""A live session in the test's own process, with a clock that tests can rely on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from textual.app import ComposeResult
from textual.screen import Screen

from tdx.envs import EnvBase
from tdx.foundation.errors import TdxError
from tdx.inspection.live.stack_env import StackEnv
from tdx.inspection.overview import Problem
from tdx.pipeline import Pipeline, build_checked_env
from tdx.pipeline.editing import Draft
from tdx.tui import app as app_module
from tdx.tui.app import TdxApp
from tdx.tui.backend.client import RequestError, SupersededError, Ticket
from tdx.tui.backend.messages import Job, Request
from tdx.tui.files.files import Storage
from tdx.tui.live.live_tab import LiveTab
from tdx.tui.live.messages import SessionSettings
from tdx.tui.live.requests import RunSession
from tdx.tui.live.worker import LivePlayer, Rollouts
from tdx.tui.workspace import Workspace
from tests.tui.driving import Driver
from tests.tui.idle import until
from tests.tui.inline_backend import InlineBackend

Make = Callable[[Pipeline], EnvBase | StackEnv]


class PlayingBackend(InlineBackend):
    """Backend that steps a player between two turns of the loop, as a worker would.

    Args:
        make: Creates the env. ``None``: :func:`~tdx.pipeline.build_checked_env`.
    """

    def __init__(self, make: Make | None = None) -> None:
        super().__init__()
        self.make = make or build_checked_env
        self.players: list[LivePlayer] = []
        self.restarts: list[str] = []
        self._playing: dict[int, tuple[Ticket[Any], asyncio.Task[None]]] = {}
        self._serial = itertools.count(1_000_000)
        ticks = itertools.count(0, 1_000_000)
        self._rollouts = Rollouts(self._open_env, clock=lambda: next(ticks))

    def ask(self, request: Request[Any], **kwargs: Any) -> Ticket[Any]:
        if not isinstance(request, RunSession):
            # Requests of other tabs take time and are not tested here.
            return Ticket(next(self._serial), asyncio.get_running_loop().create_future())
        for ticket, _ in self._playing.values():
            self.cancel(ticket)
        ticket = Ticket(next(self._serial), asyncio.get_running_loop().create_future())
        self._jobs[ticket.number] = Job(kwargs["on_push"], {})
        task = asyncio.get_running_loop().create_task(self._play(ticket, request))
        self._playing[ticket.number] = ticket, task
        return ticket

    def restart(self, worker: str) -> None:
        self.restarts.append(worker)
        if worker == "live":
            for ticket, task in self._playing.values():
                task.cancel()
                ticket.future.cancel()
            self._playing.clear()
            self._rollouts.close()
        super().restart(worker)

    def close(self) -> None:
        self.restart("live")
        super().close()

    def end(self, message: str) -> None:
        """End the worker with an error."""
        for ticket, task in self._playing.values():
            task.cancel()
            self._fail(ticket, RequestError(Problem("TDX000", message)))
        self._playing.clear()

    def _open_env(
        self, request: SessionSettings, seed: int, closing: ExitStack
    ) -> EnvBase | StackEnv:
        torch.manual_seed(0)
        env = self.make(request.pipeline)
        if not isinstance(env, StackEnv):
            env.set_seed(0)
        return env

    async def _play(self, ticket: Ticket[Any], request: RunSession) -> None:
        job = self._jobs[ticket.number]
        await asyncio.sleep(0)
        try:
            player = self._rollouts.open(request, job.push)
            self.players.append(player)
        except TdxError as error:
            self._fail(ticket, RequestError(Problem.of(error), "a traceback"))
            return
        while not job.is_cancelled:
            player.run_once(job.receive())
            await asyncio.sleep(0 if player.is_running else 0.01)
        self._fail(ticket, SupersededError(Problem("TDX000", "ended")))


class Live(Driver):
    """Driver of the live tab."""

    @property
    def tab(self) -> LiveTab:
        """Live tab."""
        return self.app.screen_stack[0].query_one(LiveTab)

    @property
    def backend(self) -> PlayingBackend:
        """Backend of the app."""
        backend = self.app.backend
        assert isinstance(backend, PlayingBackend)
        return backend

    @property
    def player(self) -> LivePlayer:
        """Player of the latest session."""
        return self.backend.players[-1]

    async def settle(self) -> None:
        """Wait until all commands are executed and nothing is running."""
        await self.delivered()
        await self.drawn()
        await until(self._is_paused)
        await until(lambda: self.tab.is_up_to_date)
        await self.drawn()

    def _is_paused(self) -> bool:
        connection = self.tab.connection
        return not connection.is_running and not connection.overdue()

    async def drawn(self) -> None:
        """Wait until the screen is up to date."""
        for _ in range(3):
            drawn = asyncio.get_running_loop().create_future()
            self.app.screen.call_after_refresh(drawn.set_result, None)
            await drawn

    @property
    def note(self) -> str:
        """Message in the header."""
        note = self.tab.query_one("#live-note")
        return self.text("#live-note") if note.display else ""

    @property
    def shown(self) -> int:
        """Index of the shown trace."""
        assert self.tab.connection.state is not None
        return self.tab.connection.state.shown


class LiveApp(TdxApp):
    """App that consists of the tab, which starts faster than the whole app."""

    CSS_PATH: ClassVar[Any] = [Path(app_module.__file__).parent / each for each in TdxApp.CSS_PATH]

    def get_default_screen(self) -> Screen[None]:
        return _Alone(self.workspace)


class _Alone(Screen[None]):
    AUTO_FOCUS = "#live-values"

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self.workspace = workspace

    def compose(self) -> ComposeResult:
        yield LiveTab(self.workspace)


@asynccontextmanager
async def playing(
    *stages: str,
    env: str | None = "Pendulum-v1",
    make: Make | None = None,
    size: tuple[int, int] = (100, 40),
    whole: bool = False,
    backend: PlayingBackend | None = None,
    allow_code: bool = False,
    storage: Storage | None = None,
) -> AsyncIterator[Live]:
    """Run the live tab until its first reset.

    Args:
        stages: Stages of the chain.
        env: Env of the pipeline. ``None``: no env.
        make: Creates the env with its chain, instead of the pipeline.
        size: Columns and rows of the terminal.
        whole: Run the whole app.
        backend: Answers requests. ``None``: a :class:`PlayingBackend`.
        allow_code: Allow the pipeline to import Python objects.
        storage: Recent files and autosaved sessions. ``None``: nothing is stored.
    """
    draft = None if env is None else Draft.of(Pipeline.of(env, *stages))
    app = (TdxApp if whole else LiveApp)(
        draft, backend=backend or PlayingBackend(make), allow_code=allow_code, storage=storage
    )
    async with app.run_test(size=size) as pilot:
        live = Live(app, pilot)
        if whole:
            await live.press("3")
        connection = live.tab.connection
        await until(
            lambda: env is None or connection.state is not None or live.note.startswith("✕")
        )
        await live.settle()
        yield live
