"""Constant profiles, and a backend that returns them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Input

from tdx.inspection.overview import Problem
from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft, Editor
from tdx.profiling.plain import OperatorUse
from tdx.tui.backend.client import RequestError, Ticket
from tdx.tui.backend.messages import Request
from tdx.tui.profile.messages import (
    PARTIAL,
    PROGRESS,
    AdviceResult,
    CallCost,
    CostRow,
    Costs,
    MeasuredChange,
    ModeCosts,
    ProfileProgress,
    StageSaving,
    Sync,
)
from tdx.tui.profile.profile_tab import ProfileTab
from tdx.tui.profile.requests import FindAdvice, MeasurePipeline
from tdx.tui.profile.widgets import CostTable
from tdx.tui.workspace import Workspace
from tests.tui.driving import screen_text
from tests.tui.idle import resize
from tests.tui.inline_backend import InlineBackend

T = TypeVar("T")
SHAPE = (1, 4, 9, 14, 9, 5, 3, 2, 1, 1, 0, 1)


def call(name: str, step_us: float) -> CallCost:
    """Return calls with percentiles that follow from their time."""
    percentiles = {"p50": 0.9, "p95": 1.5, "p99": 2, "max": 20}
    figures = {name: times * step_us for name, times in percentiles.items()}
    return CallCost(name, 5000, figures, step_us, 1.0, SHAPE, step_us * 0.7, step_us * 2)


def row(work: str, index: int, name: str, step_us: float, **more: Any) -> CostRow:
    """Return a part whose repeats are within 2 % of each other, and its calls."""
    calls = [call("forward" if work == "stage" else "step", step_us)]
    if work == "stage":
        calls.append(call("reset", 0.05))
    repeats = tuple(step_us * times for times in (0.98, 0.99, 1.0, 1.01, 1.02))
    given: dict[str, Any] = {
        "upto": -1,
        "share": step_us / 80,
        "repeats_us": repeats,
        "calls": tuple(calls),
        "median_us": step_us * 0.9,
    }
    return CostRow(
        work=work,
        index=index,
        name=name,
        step_us=step_us,
        **{**given, **more},
    )


def _extras(index: int, name: str) -> dict[str, Any]:
    operators = (OperatorUse("aten::add", 2.0, 1.2), OperatorUse("aten::mul", 0.25, 0.3))
    saved = StageSaving(name, 2.5 + index, 0.2)
    return {"operators": operators, "marginals": {index: saved}}


def mode_costs(
    pipeline: Pipeline, mode: str, gpu: bool = False, extras: bool = False, **options: Any
) -> ModeCosts:
    """Return a mode in which stage ``i`` takes ``2 + i`` µs, and five times that if eager."""
    times = 5.0 if mode == "eager" else 1.0
    device: dict[str, Any] = {"device_us": 1.5, "kernels": 3.0, "launch_bound": True}
    device |= {"busy_us": 0.75, "delay_us": 4.5}
    device["idle_us"] = {"nothing launched": 0.15, "between kernels": 0.1}
    device |= {"bound_by": "a wait", "evidence": "the host waits 1.2 of 2 µs"}
    device["syncs"] = (Sync("to_host.py:12", 2.0, "cudaStreamSynchronize", 1.2),)
    device = device if gpu else {}
    rows = [row("policy", -1, "random", 0.3), row("env", -1, "Pendulum-v1", 25.0)]
    for index, stage in enumerate(pipeline.transforms):
        more = {**device, **(_extras(index, stage.name) if extras else {})}
        rows.append(row("stage", index, stage.name, times * (2.0 + index), **more))
    rows.append(row("engine", -1, "tdx itself", 1.0))
    rows.sort(key=lambda row: -row.step_us)
    step = sum(each.step_us for each in rows)
    repeats = tuple(sum(repeat) for repeat in zip(*(row.repeats_us for row in rows), strict=True))
    noise = {
        "noise": 0.02,
        "judgement": "quiet",
        "noise_text": "the repeats are within ±2.0% of each other",
    }
    if gpu:
        options["device"] = ("cuda:0: A card, driver 570, 1,500 of 1,980 MHz",)
    return ModeCosts(mode, tuple(rows), step, repeats, 1e6 / step, 5000, **{**noise, **options})


def costs(pipeline: Pipeline, *modes: str, **more: Any) -> Costs:
    """Return the profile of a pipeline in several modes."""
    found = tuple(mode_costs(pipeline, mode, **more) for mode in modes or ("planned",))
    return Costs(found)


def advice(pipeline: Pipeline, error: str | None = None) -> AdviceResult:
    """Return a suggestion that saves time, and one without effect or edit."""
    if error is not None:
        return AdviceResult(error=error)
    shorter = pipeline.with_stages(*(s for s in pipeline.transforms if s.name != "StepCounter"))
    found = "nobody reads what it writes, and it does not come out"
    return AdviceResult(
        (MeasuredChange("remove StepCounter", found, 50.0, 10.0, 1.0, "same", shorter),),
        (MeasuredChange("freeze the statistics", "they converged", 50.0, 0.1, 1.0, "close", None),),
        ("put Resize first: other values come out",),
    )


class StandIn(InlineBackend):
    """Backend that returns constant profiles, or ``answers``, at once."""

    def __init__(self, looks: bool = False) -> None:
        super().__init__(looks=looks)
        self.asked: list[MeasurePipeline] = []
        self.gpu = False
        self.partly: Costs | None = None
        self.answer: Costs | Problem | None = None
        self.waits = False
        self.cancelled = 0
        self.restarted: list[str] = []
        self.released: list[str] = []
        self.advised = 0
        self.waits_for_advice = False
        self.advice_error: str | None = None
        self._open_ticket: Ticket[Any] | None = None

    def ask(
        self,
        request: Request[T],
        *,
        worker: str = "look",
        slot: str | None = None,
        on_push: Callable[[str, Any], None] | None = None,
    ) -> Ticket[T]:
        if isinstance(request, FindAdvice):
            self.advised += 1
            answered: Ticket[Any] = Ticket(0, asyncio.get_running_loop().create_future(), on_push)
            if not self.waits_for_advice:
                answered.future.set_result(advice(request.pipeline, self.advice_error))
            return answered
        if not isinstance(request, MeasurePipeline):
            return super().ask(request, worker=worker, slot=slot, on_push=on_push)
        self.asked.append(request)
        ticket: Ticket[Any] = Ticket(0, asyncio.get_running_loop().create_future(), on_push)
        assert on_push is not None
        on_push(PROGRESS, ProfileProgress("planned: time", 2, request.repeats))
        if self.partly is not None:
            on_push(PARTIAL, self.partly)
        self._open_ticket = ticket
        if not self.waits:
            more = {"gpu": self.gpu, "extras": bool(request.extras)}
            self.end(self.answer or costs(request.pipeline, *request.modes, **more))
        return ticket

    def end(self, answer: Costs | Problem) -> None:
        """Answer the latest request."""
        assert self._open_ticket is not None
        if isinstance(answer, Problem):
            self._open_ticket.future.set_exception(RequestError(answer))
        else:
            self._open_ticket.future.set_result(answer)

    def cancel(self, ticket: Ticket[Any]) -> None:
        self.cancelled += 1
        if self.waits_for_advice and not ticket.future.done():
            ticket.future.set_result(AdviceResult(error="interrupted"))

    def release(self, worker: str) -> None:
        self.released.append(worker)

    def restart(self, worker: str) -> None:
        self.restarted.append(worker)
        if worker == "profile" and self._open_ticket is not None:
            self.end(Problem("TDX000", "cancelled"))


class TabApp(App[None]):
    """App that consists of the tab."""

    CSS_PATH = Path(__file__).parents[3] / "tdx" / "tui" / "profile" / "profile.tcss"

    def __init__(self, draft: Draft, backend: StandIn) -> None:
        super().__init__()
        self.workspace = Workspace(self, Editor(draft), backend)

    def compose(self) -> ComposeResult:
        yield ProfileTab(self.workspace)


class Profiler:
    """Driver of the profile tab."""

    def __init__(self, app: TabApp, pilot: Pilot[None], backend: StandIn) -> None:
        self.app, self.pilot, self.backend = app, pilot, backend
        self.workspace = app.workspace
        self.tab = app.query_one(ProfileTab)

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self.pilot.press(*keys)
        await self.settle()

    async def type(self, text: str) -> None:
        """Replace the text of the focused field."""
        box = self.app.focused
        assert isinstance(box, Input)
        box.value = text
        await self.settle()

    async def settle(self) -> None:
        """Wait until all is drawn."""
        await self.pilot.pause()
        while not self.tab.is_up_to_date:
            await asyncio.sleep(0.01)
        await self.pilot.pause()

    async def resize(self, width: int, height: int) -> None:
        """Resize the terminal and wait until all is drawn."""
        await resize(self.pilot, width, height)
        await self.settle()

    @property
    def messages(self) -> list[str]:
        """Return the text of all notices."""
        return [each.message for each in self.app._notifications]

    @property
    def rows(self) -> list[list[str]]:
        """Return the cells of the table without spaces."""
        table = self.app.query_one(CostTable)
        found = (table.get_row_at(n) for n in range(table.row_count))
        return [[" ".join(cell.plain.split()) for cell in cells] for cells in found]

    @property
    def titles(self) -> list[str]:
        """Return the column headers."""
        return [column.label.plain for column in self.app.query_one(CostTable).ordered_columns]

    def column(self, title: str) -> list[str]:
        """Return the cells of a column."""
        at = [each.rstrip("↓↑") for each in self.titles].index(title)
        return [cells[at] for cells in self.rows]

    def text(self, selector: str) -> str:
        """Return the text of a widget, with single spaces."""
        return " ".join(screen_text(self.app, selector).split())


@asynccontextmanager
async def profiling(
    *stages: str, size: tuple[int, int] = (100, 36), env: bool = True
) -> AsyncIterator[Profiler]:
    """Run the tab with a chain."""
    draft = Draft.of(Pipeline.of("Pendulum-v1", *stages)) if env else Draft()
    backend = StandIn()
    app = TabApp(draft, backend)
    async with app.run_test(size=size, notifications=True) as pilot:
        profiler = Profiler(app, pilot, backend)
        app.query_one(CostTable).display = True
        app.query_one(ProfileTab).query_one("#profile-run").focus()
        await profiler.settle()
        yield profiler
