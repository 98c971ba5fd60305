"""Measurements in the worker: complete, interrupted, cancelled and killed."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from tdx.pipeline import EnvConfig, Pipeline
from tdx.profiling.plain import RolloutMode
from tdx.tui.backend.client import Backend, RequestError
from tdx.tui.backend.messages import Job
from tdx.tui.profile.messages import (
    EXTRAS,
    PARTIAL,
    PROGRESS,
    Costs,
    ProfileProgress,
)
from tdx.tui.profile.requests import FindAdvice, MeasurePipeline
from tdx.tui.profile.worker import find_advice, measure_pipeline
from tests.processes import PATIENCE
from tests.programs import exhaustive
from tests.tui.driving import job

FAILING = EnvConfig("tests.tui.bad_envs:FailsAt", kwargs={"step": 66, "how": "raise"})
PENDULUM = Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter")


@exhaustive
def test_rows_of_both_modes_sum_to_the_total() -> None:
    pushed: list[tuple[str, Any]] = []
    job = Job(lambda topic, value: pushed.append((topic, value)), {})
    both: tuple[RolloutMode, ...] = ("eager", "planned")
    request = MeasurePipeline(PENDULUM, both, 30, 2, warmup=5, extras=frozenset(EXTRAS))
    found = measure_pipeline(request, job)
    assert [mode.mode for mode in found.modes] == ["eager", "planned"]
    for mode in found.modes:
        assert mode.error is None
        assert mode.steps == 60
        assert sum(row.share for row in mode.rows) == pytest.approx(1.0)
        assert sum(row.step_us for row in mode.rows) == pytest.approx(mode.step_us)
        assert {"0 RewardSum", "1 StepCounter"} <= {row.label for row in mode.rows}
        assert all(sum(call.counts) == call.n for row in mode.rows for call in row.calls)
        assert all(len(row.repeats_us) == 2 for row in mode.rows)
        assert any(row.allocated_bytes is not None for row in mode.rows)
        summed = next(row for row in mode.rows if row.operators)
        assert summed.operators is not None
        assert any(each.name.startswith("aten::") for each in summed.operators)
        assert all(each.calls > 0 for each in summed.operators)
        skipped_bytes = {n: each for row in mode.rows for n, each in row.marginals.items()}
        assert [skipped_bytes[n].name for n in sorted(skipped_bytes)] == (
            ["RewardSum", "StepCounter"] if mode.mode == "planned" else []
        )
    assert [topic for topic, _ in pushed].count(PARTIAL) == 2
    doing = [value.doing for topic, value in pushed if topic == PROGRESS]
    assert "eager: time" in doing
    assert "planned: memory" in doing


def test_rows_are_kept_if_the_env_raises() -> None:
    pipeline = Pipeline.of(FAILING, "RewardSum")
    request = MeasurePipeline(
        pipeline, ("eager", "planned"), 30, repeats=9, warmup=3, allow_code=True
    )
    found = measure_pipeline(request, job())
    assert found.error is not None
    assert "the gripper is stuck" in found.error
    assert len(found.modes) == 1
    assert "0 RewardSum" in [row.label for row in found.modes[0].rows]


@pytest.mark.usefixtures("shared_warm_program")
async def test_measurement_is_cancelled_and_its_worker_is_killed() -> None:
    backend = Backend()
    received = asyncio.Event()
    interrupts = signal.getsignal(signal.SIGINT)

    def on_push(topic: str, value: object) -> None:
        if isinstance(value, ProfileProgress) and value.doing.endswith("time") and value.done:
            received.set()

    endless = MeasurePipeline(PENDULUM, ("planned",), steps=300, repeats=1_000_000, warmup=1)
    try:
        ticket = backend.ask(endless, worker="profile", on_push=on_push)
        await asyncio.wait_for(received.wait(), PATIENCE)
        backend.cancel(ticket)
        found: Costs = await asyncio.wait_for(_answer(ticket), PATIENCE)
        assert found.error == "interrupted"
        assert found.modes[0].steps >= 300
        received.clear()
        env = replace(FAILING, kwargs={"step": 65})
        hanging = MeasurePipeline(Pipeline(env), ("planned",), 30, 9, warmup=1, allow_code=True)
        sleeping = backend.ask(hanging, worker="profile", on_push=on_push)
        await asyncio.wait_for(received.wait(), PATIENCE)
        await asyncio.sleep(0.2)
        backend.cancel(sleeping)
        found = await asyncio.wait_for(_answer(sleeping), PATIENCE)
        assert found.modes[0].steps >= 30
        received.clear()
        second = backend.ask(endless, worker="profile", on_push=on_push)
        await asyncio.wait_for(received.wait(), PATIENCE)
        os.kill(backend.pids()["profile"], signal.SIGKILL)
        with pytest.raises(RequestError, match="the worker process was killed by SIGKILL"):
            await asyncio.wait_for(_answer(second), PATIENCE)
    finally:
        backend.close()
    assert signal.getsignal(signal.SIGINT) is interrupts


async def _answer(ticket: Any) -> Any:
    return await ticket


def test_suggestions_are_measured_with_few_steps() -> None:
    received: list[str] = []

    def receive(topic: str, value: object) -> None:
        assert isinstance(value, ProfileProgress)
        received.append(value.doing)

    job = Job(receive, {})
    chain = ("StepCounter", 'ExcludeTransform("step_count")', "RewardSum")
    found = find_advice(FindAdvice(Pipeline.of("Pendulum-v1", *chain), ("planned",), 20, 2, 2), job)
    assert found.error is None
    (tried,) = [
        each for each in (*found.effective, *found.ineffective) if "StepCounter" in each.change
    ]
    assert tried.change == "remove StepCounter and ExcludeTransform"
    assert tried.values == "same"
    assert tried.before_us > 0
    assert tried.pipeline is not None
    assert [stage.name for stage in tried.pipeline.transforms] == ["RewardSum"]
    assert "alternating" in received
    failing = Pipeline.of(FAILING, "RewardSum")
    broken = find_advice(FindAdvice(failing, ("planned",), 70, 2, 2, allow_code=True), job)
    assert broken.error is not None
    assert "the gripper is stuck" in broken.error
