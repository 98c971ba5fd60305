"""Device passes on a device in simulated time."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from tdx import Compose, GymEnv, TransformedEnv
from tdx.core.meter import TRANSFERS
from tdx.foundation.errors import DeviceError, ExitCode
from tdx.profiling import run
from tdx.profiling.clock import ClockMeter
from tdx.profiling.passes.accelerator import (
    NO_SYNC_NOTE,
    SYNC_NOTE,
    TorchAccelerator,
    list_accelerators,
)
from tdx.profiling.passes.choice import AcceleratorLookup, make_observers
from tdx.profiling.passes.device import WAITING_PART, DeviceTimes
from tdx.profiling.passes.device_trace import (
    RANGE_PREFIX,
    TraceEvent,
    TraceKind,
    attribute_work,
    read_trace,
)
from tdx.profiling.result import DeviceUse, ModeProfile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.stacks.native_times import timed_env
from tests.profiling.fake_clock import US, FakeClock, SpinningCall, SpinningEnv
from tests.profiling.fake_device import LAUNCH_US, FakeDevice

STEPS = 20
WHERE = "stage.py:7"
STAGES = ("0 SpinningCall", "1 SpinningCall", "2 SpinningCall", "3 SpinningCall")


class Setting:
    """Env with stages that compute, launch many kernels, keep memory, and wait."""

    def __init__(self, seen: bool = True) -> None:
        self.clock = FakeClock()
        self.device = FakeDevice(self.clock, seen)
        stages = [SpinningCall(act, 0) for act in (self.work, self.trifle, self.hold, self.wait)]
        self.env = TransformedEnv(SpinningEnv(self.clock.spin, step=5), Compose(*stages))
        self.waits = True

    def work(self, _: float) -> None:
        self.device.launch(300)

    def trifle(self, _: float) -> None:
        for _ in range(10):
            self.clock.spin(20)
            self.device.launch(1)

    def hold(self, _: float) -> None:
        self.device.allocate(1000)
        self.device.allocate(-600)

    def wait(self, _: float) -> None:
        if self.waits:
            self.device.launch(4, "copy", "Memcpy HtoD (Pageable -> Device)", 64)
            self.device.fetch(6, 32, WHERE)

    def rows(self, monkeypatch: pytest.MonkeyPatch, plan: ProfilePlan) -> ModeProfile:
        monkeypatch.setattr(run, "find_accelerator", lambda *_: AcceleratorLookup(self.device))
        found = profile_env(self.env, ["eager"], replace(plan, clock=self.clock))
        return found.modes[0]


@pytest.fixture
def setting() -> Setting:
    return Setting()


PLAN = ProfilePlan(steps=STEPS, warmup=3, repeats=2, passes=("device",))


def forward(mode: ModeProfile) -> list[DeviceUse]:
    return [mode.on_device[label, "forward"] for label in STAGES]


def test_part_times_add_up_to_the_loop(setting: Setting) -> None:
    setting.waits = False
    device, seen = setting.device, DeviceTimes(setting.device, setting.clock)
    with timed_env(setting.env, seen), seen.recording():
        begin = setting.clock.now
        setting.env.rollout(STEPS)
        loop = max(*device.done_ns.values(), setting.clock.now) - begin
    none = np.zeros(0, np.int64)
    mode = seen.add_results(ModeProfile("eager", (), none, none, none), STEPS)
    uses, summary = mode.on_device, mode.device
    assert summary is not None
    assert summary.events_us > 0
    # All that the loop takes is a span, or the cost of the events.
    times = sum(use.time_us for use in uses.values())
    assert (times + summary.events_us) * STEPS * US == pytest.approx(loop, rel=0.01)
    assert summary.span_us == pytest.approx(times)
    # The host records the next events without waiting for the device.
    assert uses[STAGES[0], "forward"].time_us >= 300
    assert uses[STAGES[2], "forward"].time_us == 0


def test_host_synchronizes_only_at_the_end(setting: Setting) -> None:
    setting.waits = False
    seen = DeviceTimes(setting.device, setting.clock)
    with timed_env(setting.env, seen), seen.recording():
        setting.device.log.clear()
        setting.env.rollout(STEPS)
    log = setting.device.log
    assert [call for at, call in enumerate(log) if at == 0 or log[at - 1] != call] == [
        "mark",
        "synchronize",
        "read",
    ]


def test_events_are_reused(setting: Setting) -> None:
    device = setting.device
    for _ in range(3):
        seen = DeviceTimes(device, setting.clock)
        with timed_env(setting.env, seen), seen.recording():
            setting.env.rollout(STEPS)
            seen.discard()
            setting.env.rollout(STEPS)
    made = [mark for mark in device.marks if mark is device.marks[0]]
    assert len(made) > 1
    assert device.created < len(device.marks) / 6


def test_captured_graphs_are_neither_timed_nor_waited_for(setting: Setting) -> None:
    device = setting.device

    def start(_: float) -> None:
        device.capturing = True

    def end(_: float) -> None:
        device.capturing = False
        device.launch(70)

    setting.env.transform[0].spin, setting.env.transform[1].spin = start, end
    for observer in make_observers("device", device, setting.clock):
        with timed_env(setting.env, observer), observer.recording():
            setting.env.rollout(STEPS)
        if isinstance(observer, DeviceTimes):
            none = np.zeros(0, np.int64)
            mode = observer.add_results(ModeProfile("eager", (), none, none, none), STEPS)
            assert mode.on_device[STAGES[1], "forward"].time_us >= 70
            assert "A graph was captured during 1 SpinningCall forward" in mode.notes[0]


def test_columns_of_each_stage(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    mode = setting.rows(monkeypatch, PLAN)
    work, trifle, hold, wait = forward(mode)
    assert (work.kernels, work.kernel_us, work.launches, work.launch_bound) == (1, 300, 1, False)
    assert (trifle.kernels, trifle.launches, trifle.kernel_us) == (10, 10, 10)
    assert (hold.allocated_bytes, hold.peak_bytes, hold.kept_bytes) == (1000, 1000, 400)
    assert (wait.to_device_bytes, wait.to_host_bytes, wait.copy_us) == (64, 32, 10)
    assert (wait.to_device_us, wait.to_host_us) == (4, 6)
    assert [use.syncs for use in (work, trifle, hold, wait)] == [{}, {}, {}, {WHERE: 1.0}]
    assert mode.error is None
    assert mode.notes == ()


def test_transfers_of_a_gymnasium_env_take_host_time() -> None:
    env, meter = GymEnv("Pendulum-v1", device="meta"), ClockMeter(FakeClock())
    before = dict(env.gym_steppers[0].__dict__)
    with timed_env(env, meter):
        env.reset()
    assert {times.part: len(times.own_ns) for times in meter.collect()}[TRANSFERS] == 1
    assert env.gym_steppers[0].__dict__ == before
    on_host = GymEnv("Pendulum-v1")
    with timed_env(on_host, meter):
        on_host.reset()
    assert TRANSFERS not in {times.part for times in meter.collect()}


def test_sync_mode_adds_device_time_to_host_time(monkeypatch: pytest.MonkeyPatch) -> None:
    means = {}
    for sync in (False, True):
        setting = Setting()
        setting.waits = False
        mode = setting.rows(monkeypatch, replace(PLAN, passes=(), sync=sync))
        means[sync] = {
            row.part.label: row.statistics.mean for row in mode.rows if row.part.lane != "reset"
        }
        assert (SYNC_NOTE in mode.notes) is sync
        assert mode.unattributed == pytest.approx(0, abs=0.01)
    assert means[False][STAGES[0]] == LAUNCH_US
    assert means[True][STAGES[0]] == LAUNCH_US + 300
    # The host waits once, at the end, for work that no stage waits for.
    assert means[False][WAITING_PART.label] > 100
    assert means[True][WAITING_PART.label] == 0


def test_sync_mode_without_an_accelerator_adds_a_note() -> None:
    env = SpinningEnv(FakeClock().spin)
    found = profile_env(env, ["eager"], ProfilePlan(steps=2, repeats=1, passes=(), sync=True))
    assert NO_SYNC_NOTE in found.modes[0].notes


def test_error_in_a_pass_keeps_earlier_results(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> tuple[int, int, int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(setting.device, "memory", interrupted)
    mode = setting.rows(monkeypatch, PLAN)
    assert mode.error == "interrupted"
    assert mode.steps.tolist() == [STEPS, STEPS]
    assert forward(mode)[0].time_us > 0


def test_device_that_reports_only_times_has_no_other_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mode = Setting(seen=False).rows(monkeypatch, PLAN)
    work = forward(mode)[0]
    assert work.time_us > 0
    assert replace(work, time_us=0.0, synchronized_us=None) == DeviceUse(0.0)


def test_values_are_unchanged_by_passes_that_raise(setting: Setting) -> None:
    def rolled() -> TensorDictBase:
        setting.env.set_seed(3)
        torch.manual_seed(3)
        return setting.env.rollout(STEPS)

    plain = rolled()
    for observer in make_observers("device", setting.device, setting.clock):
        with timed_env(setting.env, observer), observer.recording():
            assert (plain == rolled()).all()
        with pytest.raises(ZeroDivisionError), observer.recording():
            raise ZeroDivisionError
        assert setting.device.is_unobserved
    assert (plain == rolled()).all()


def test_missing_device_is_refused() -> None:
    missing = "cuda:99" if torch.cuda.is_available() else "cuda"
    with pytest.raises(DeviceError, match=f"device {missing} is not available") as caught:
        TorchAccelerator(missing)
    assert caught.value.hint
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_env_on_the_host_has_no_device_pass(setting: Setting) -> None:
    assert list_accelerators(setting.env) == []
    assert make_observers("device", None) == []


def test_work_of_a_recorded_torch_trace_is_attributed() -> None:
    def event(cat: str, name: str, ts: float, dur: float, tid: int, **args: int) -> str:
        text = ",".join(f'"{key}":{value}' for key, value in args.items())
        head = f'"ph":"X","cat":"{cat}","name":"{name}","ts":{ts},"dur":{dur},"tid":{tid}'
        return f'{{{head},"args":{{{text}}}}}'

    text = ",".join(
        (
            '{"ph":"M","name":"process_name","tid":0,"args":{}}',
            event("user_annotation", f"{RANGE_PREFIX}{0}", 0, 100, 1),
            event("cpu_op", "aten::add", 10, 20, 1),
            event("cuda_runtime", "cudaLaunchKernel", 12, 5, 1, correlation=1),
            event("cpu_op", f"{RANGE_PREFIX}{1}", 40, 40, 1),
            event("cuda_driver", "cuLaunchKernelEx", 45, 5, 1, correlation=2),
            event("cuda_runtime", "cudaMemcpyAsync", 55, 5, 1, correlation=3),
            event("cuda_runtime", "cudaLaunchKernel", 85, 5, 1, correlation=4),
            # The other thread has no parts.
            event("cuda_runtime", "cudaLaunchKernel", 50, 5, 2, correlation=5),
            event("kernel", "add", 200, 7.5, 7, correlation=1),
            event("kernel", "triton", 210, 1, 7, correlation=2),
            event(
                "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 220, 2, 7, bytes=96, correlation=3
            ),
            event("gpu_memset", "Memset (Device)", 230, 3, 7, correlation=4),
            event("kernel", "another", 240, 9, 7, correlation=5),
        )
    )
    result = attribute_work(read_trace(json.loads(f"[{text}]")))
    outer, inner = result.parts[0], result.parts[1]
    assert (outer.kernels, outer.kernel_ns, outer.launches) == (1, 10_500, 2)
    assert (inner.kernels, inner.kernel_ns, inner.launches) == (1, 1_000, 1)
    assert (inner.to_host, inner.to_device, inner.copy_ns) == (96, 0, 2_000)
    # A copy is launched too.
    assert list(inner.launching.values()) == [5_000, 5_000]
    # The operator is the launch, not the call of the driver inside it.
    assert list(outer.launching.values()) == [20_000, 5_000]
    assert (result.unattributed.kernels, result.unattributed.kernel_ns) == (1, 9_000)


def test_lines_explain_the_waits_before_or_inside_them() -> None:
    def event(kind: TraceKind, name: str, start: int, end: int) -> TraceEvent:
        return TraceEvent(kind, name, start, end - start, 1)

    events = [
        event("part", f"{RANGE_PREFIX}{0}", 0, 1000),
        # Another library waits; torch does not warn.
        event("call", "cudaDeviceSynchronize", 10, 30),
        event("operator", "aten::item", 100, 200),
        event("operator", "aten::_local_scalar_dense", 110, 190),
        event("call", "cudaStreamSynchronize", 120, 150),
        event("call", "cudaStreamSynchronize", 160, 180),
        # Torch warns for each of both when the operator returns to Python.
        event("line", "item.py:1", 210, 212),
        event("line", "item.py:1", 213, 215),
        event("call", "cudaStreamSynchronize", 300, 340),
        event("line", "stream.py:2", 350, 352),
        event("wait", "event.py:3", 400, 500),
        event("call", "cudaEventSynchronize", 410, 490),
        event("call", "cudaEventSynchronize", 600, 605),
        event("part", f"{RANGE_PREFIX}{1}", 700, 800),
        event("line", "other.py:4", 710, 712),
    ]
    waits = attribute_work(events).parts[0].waits
    assert waits == {
        ("cudaDeviceSynchronize", ""): (1, 20),
        ("cudaStreamSynchronize", "item.py:1"): (2, 50),
        ("cudaStreamSynchronize", "stream.py:2"): (1, 40),
        ("cudaEventSynchronize", "event.py:3"): (1, 80),
        ("cudaEventSynchronize", ""): (1, 5),
    }


@pytest.mark.parametrize(
    ("call", "copy", "returns_us", "waits"),
    [
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", 30, True),
        # The driver has made a copy of the memory for itself, and returned.
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", 15, False),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", 30, False),
        ("cudaMemcpy", "Memcpy DtoH (Device -> Pinned)", 30, True),
        ("hipMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 30, True),
        ("cudaMemcpyAsync", "Memcpy DtoD (Device -> Device)", 30, False),
    ],
)
def test_copies_that_return_late_are_waits(
    call: str, copy: str, returns_us: int, waits: bool
) -> None:
    events = [
        TraceEvent("part", f"{RANGE_PREFIX}{0}", 0, 100 * US, 1),
        TraceEvent("call", call, 5 * US, (returns_us - 5) * US, 1, 7),
        TraceEvent("copy", copy, 10 * US, 10 * US, 0, 7, 4096),
    ]
    expected = {(call, ""): (1, (returns_us - 5) * US)} if waits else {}
    assert attribute_work(events).parts[0].waits == expected
