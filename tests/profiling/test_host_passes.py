"""Memory and operator passes: known values, and unchanged rollouts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from tdx import CatFrames, Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
from tdx.profiling.passes.host import (
    SLOWDOWN_NOTE,
    MemoryLedger,
    MemoryLevel,
    ObjectMemory,
    Operators,
    TensorMemory,
    compute_memory,
    count_operators,
)
from tdx.profiling.passes.observer import MEMORY_EVENT, PROFILER_BUSY, HostEvent, Observer
from tdx.profiling.result import MemoryUse, ModeProfile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.stacks.native_times import timed_env
from tests.profiling.fake_clock import FakeClock, SpinningCall, SpinningEnv
from tests.programs import exhaustive

STEPS = 12
FLOATS, BYTES = 1000, 4000
Kind = Callable[[], Observer]
KINDS: list[Kind] = [TensorMemory, ObjectMemory, Operators]


class Setting:
    """Env with stages that free memory, keep it, or do both."""

    def __init__(self) -> None:
        self.kept: list[object] = []
        stages = [SpinningCall(act, 0) for act in (self.moment, self.keep, self.arrays)]
        self.env = TransformedEnv(SpinningEnv(FakeClock().spin), Compose(*stages))

    def moment(self, _: float) -> None:
        for _ in range(3):
            torch.zeros(FLOATS).exp()

    def keep(self, _: float) -> None:
        self.kept.append(torch.zeros(FLOATS))

    def arrays(self, _: float) -> None:
        moment, kept = np.ones(FLOATS, np.float32), np.ones(FLOATS, np.float32)
        self.kept.append(kept if len(moment) else moment)


@pytest.fixture(scope="module")
def mode() -> ModeProfile:
    plan = ProfilePlan(steps=STEPS, warmup=3, repeats=1)
    return profile_env(Setting().env, ["eager"], plan).modes[0]


def of_stage(mode: ModeProfile, index: int) -> MemoryUse:
    return mode.memory[f"{index} SpinningCall", "forward"]


def test_memory_of_each_stage(mode: ModeProfile) -> None:
    moment, keep, arrays = (of_stage(mode, index) for index in range(3))
    assert (moment.allocated_bytes, moment.kept_bytes) == (6 * BYTES, 0)
    assert 2 * BYTES <= moment.peak_bytes < 3 * BYTES
    assert (keep.allocated_bytes, keep.peak_bytes, keep.kept_bytes) == (BYTES, BYTES, BYTES)
    assert (arrays.allocated_bytes, arrays.kept_bytes) == (0, 0)
    assert BYTES <= arrays.objects_kept_bytes < BYTES + 500
    assert 2 * BYTES <= arrays.objects_peak_bytes < 2 * BYTES + 3000
    assert moment.objects_kept_bytes < BYTES / 4


def test_operators_of_each_stage(mode: ModeProfile) -> None:
    moment, keep = (mode.operators[f"{index} SpinningCall", "forward"] for index in range(2))
    calls = {use.name: use.calls for use in moment}
    assert calls["aten::exp"] == calls["aten::zeros"] == 3
    assert {use.name: use.calls for use in keep}["aten::zeros"] == 1
    assert "aten::exp" not in {use.name for use in keep}
    assert [use.time_us for use in moment] == sorted((use.time_us for use in moment), reverse=True)
    assert all(use.time_us >= 0 for use in moment)
    assert SLOWDOWN_NOTE in mode.notes


def test_deferred_stages_call_operators_once_per_chunk() -> None:
    env = TransformedEnv(
        GymEnv("Pendulum-v1"), Compose(RewardSum(), CatFrames(4, -1, in_keys=["observation"]))
    )
    plan = ProfilePlan(steps=100, warmup=0, repeats=1, passes=("operators",))
    eager, planned = profile_env(env, ["eager", "planned"], plan).modes
    per_step, per_chunk = (
        sum(use.calls for use in mode.operators["1 CatFrames", "forward"])
        for mode in (eager, planned)
    )
    assert per_step >= 1 > per_chunk > 0


def test_operators_of_an_inner_part_are_not_counted_twice() -> None:
    def event(name: str, place: int, start: int, end: int) -> HostEvent:
        return HostEvent(name, place, start, end)

    found = count_operators(
        [
            event("before", -1, 0, 5),
            event("", 0, 10, 100),
            event("outer", -1, 20, 60),
            event("inner", -1, 25, 35),
            event("", 1, 40, 50),
            event("inner", -1, 42, 46),
            event("inner", -1, 70, 90),
        ]
    )
    times = {
        place: {name: (count.calls, count.own_ns) for name, count in counts.items()}
        for place, counts in found.items()
    }
    assert times == {0: {"outer": (1, 20), "inner": (2, 30)}, 1: {"inner": (1, 4)}}


def test_memory_of_inner_parts_is_excluded() -> None:
    def change(at: int, nbytes: int) -> HostEvent:
        return HostEvent(MEMORY_EVENT, -1, at, at, nbytes)

    taken = compute_memory(
        [
            change(0, 500),
            HostEvent("", 0, 10, 100),
            change(20, 10),
            HostEvent("", 1, 30, 50),
            change(35, 100),
            change(40, -80),
            change(60, 7),
            change(70, -10),
        ]
    )
    outer, inner = taken[0], taken[1]
    assert (outer.allocated, outer.peak, outer.kept) == (17, 110, 7)
    assert (inner.allocated, inner.peak, inner.kept) == (100, 100, 20)


def test_peak_between_two_parts_belongs_to_the_outer_part() -> None:
    ledger = MemoryLedger()
    ledger.begin(0, MemoryLevel(0, 0, 0))
    ledger.begin(1, MemoryLevel(0, 0, 70))
    ledger.end(MemoryLevel(0, 5, 9))
    ledger.end(MemoryLevel(0, 0, 5))
    assert (ledger.totals[0].peak, ledger.totals[1].peak) == (70, 9)


def seeded(planned: bool) -> TransformedEnv:
    chain = Compose(RewardSum(), StepCounter(9), CatFrames(3, -1, in_keys=["observation"]))
    env = TransformedEnv(GymEnv("Pendulum-v1"), chain)
    env.planned = planned
    env.set_seed(3)
    torch.manual_seed(3)
    return env


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_unchanged_by_passes(kind: Kind, planned: bool) -> None:
    plain = seeded(planned).rollout(25, break_when_any_done=False)
    env, observer = seeded(planned), kind()
    with timed_env(env, observer), observer.recording():
        seen: TensorDictBase = env.rollout(25, break_when_any_done=False)
    assert (plain == seen).all()


@pytest.mark.parametrize("kind", KINDS)
def test_observers_are_detached_after_an_error(kind: Kind) -> None:
    setting, observer = Setting(), kind()
    setting.env.rollout(2)

    def fail(_: float) -> None:
        raise KeyboardInterrupt

    setting.env.transform[1].spin = fail
    with (
        pytest.raises(KeyboardInterrupt),
        timed_env(setting.env, observer),
        observer.recording(),
    ):
        setting.env.rollout(5)
    assert not tracemalloc.is_tracing()
    assert not torch._C._autograd._profiler_enabled()
    assert setting.env.base_env.meter is None


def test_tracemalloc_of_the_caller_continues() -> None:
    observer = ObjectMemory()
    tracemalloc.start()
    try:
        with observer.recording():
            assert tracemalloc.is_tracing()
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_failed_pass_keeps_the_times() -> None:
    setting = Setting()
    left = [60]

    def fail(_: float) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    setting.env.transform[1].spin = fail
    plan = ProfilePlan(steps=50, warmup=0, repeats=1)
    found = profile_env(setting.env, ["eager"], plan).modes[0]
    assert found.error == "interrupted"
    assert found.steps.tolist() == [50]
    assert found.operators == {}


@exhaustive
def test_profiler_of_the_caller_continues() -> None:
    with torch.autograd.profiler.profile() as own:
        found = profile_env(Setting().env, ["eager"], ProfilePlan(steps=3, repeats=1)).modes[0]
        torch.zeros(3).erfinv()
    assert found.notes.count(PROFILER_BUSY) == 2
    assert found.operators == {}
    assert found.memory["2 SpinningCall", "forward"].objects_kept_bytes > BYTES
    assert "aten::erfinv" in {event.name for event in own.function_events}
