"""Figures of an accelerator against the known truth of a device in simulated time."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tdx import Compose, TransformedEnv
from tdx.profiling import run
from tdx.profiling.passes.choice import AcceleratorLookup
from tdx.profiling.passes.trace_file import summarize_trace
from tdx.profiling.result import DeviceSummary, DeviceUse, ModeProfile
from tdx.profiling.run import ProfilePlan, profile_env
from tests.profiling.fake_clock import US, FakeClock, Spin, SpinningCall, SpinningEnv
from tests.profiling.fake_device import GPU, FakeDevice
from tests.programs import exhaustive, sampled

WHERE, OTHER = "stage.py:7", "other.py:12"
STEP_US = 951
"""Length of a step: see :class:`Setting`."""


class Setting:
    """Env whose stages keep the device busy, late or waiting for known times.

    The device is idle when a step starts. Stages, with times in µs since the start of the step, on
    the host and on the device::

        env          0 … 5
        kernels      5 … 7        7 … 307
        launches     7 … 227      307 … 317    10 operators, each 20, a launch of 2, a kernel of 1
        copies       227 … 229    317 … 357    from device to device
        streams      229 … 233    231 … 281 and 233 … 263
        host         233 … 733
        send         733 … 743    735 … 743    the call returns when the copy is done
        gap          743 … 749    745 … 805, 845 … 865, 880 … 885
        fetch        749 … 891    885 … 891
        stop         891 … 951                 launches 56, and waits on another line
                                  893 … 949
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.device = FakeDevice(self.clock)
        acts = (
            *(self.kernels, self.launches, self.copies, self.streams, self.host),
            *(self.send, self.gap, self.fetch, self.stop),
        )
        self.names = [act.__name__ for act in acts]
        stages = [SpinningCall(act, 0) for act in acts]
        self.env = TransformedEnv(SpinningEnv(self.clock.spin, step=5), Compose(*stages))

    def kernels(self, _: float) -> None:
        self.device.launch(300)

    def launches(self, _: float) -> None:
        for _ in range(10):
            with self.device.operator(20):
                self.device.launch(1)

    def copies(self, _: float) -> None:
        self.device.launch(40, "copy", "Memcpy DtoD (Device -> Device)", 4096)

    def streams(self, _: float) -> None:
        self.device.launch(50, stream=1)
        self.device.launch(30, stream=2)
        self.device.follow(0, 1)

    def host(self, _: float) -> None:
        self.clock.spin(500)

    def send(self, _: float) -> None:
        self.device.launch(8, "copy", "Memcpy HtoD (Pageable -> Device)", 64, blocking=True)

    def gap(self, _: float) -> None:
        self.device.launch(60)
        self.device.launch(20, after_us=40)
        self.device.launch(5, after_us=15)

    def fetch(self, _: float) -> None:
        self.device.fetch(6, 32, WHERE)

    def stop(self, _: float) -> None:
        self.device.launch(56)
        self.device.stop(OTHER, "cudaDeviceSynchronize")
        self.clock.spin(2)


@pytest.fixture(scope="module")
def mode() -> ModeProfile:
    setting = Setting()
    plan = ProfilePlan(steps=40, warmup=5, repeats=2, passes=("device",), clock=setting.clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "find_accelerator", lambda *_: AcceleratorLookup(setting.device))
        measured = profile_env(setting.env, ["eager"], plan).modes[0]
    assert measured.error is None
    return measured


@pytest.fixture(scope="module")
def uses(mode: ModeProfile) -> dict[str, DeviceUse]:
    names = Setting().names
    found = {
        name: mode.on_device[f"{index} SpinningCall", "forward"] for index, name in enumerate(names)
    }
    return {"env": mode.on_device["env SpinningEnv", "step"], **found}


@pytest.fixture(scope="module")
def summary(mode: ModeProfile) -> DeviceSummary:
    assert mode.device is not None
    return mode.device


@exhaustive
def test_recorded_trace_has_the_figures_of_the_stages(
    uses: dict[str, DeviceUse], summary: DeviceSummary, tmp_path: Path
) -> None:
    setting, path, steps = Setting(), tmp_path / "trace.json", 40
    plan = ProfilePlan(
        *(steps, 5, 1), passes=(), clock=setting.clock, record_trace=path, subject="recorded"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "find_accelerator", lambda *_: AcceleratorLookup(setting.device))
        assert profile_env(setting.env, ["eager"], plan).modes[0].error is None
    trace = summarize_trace(path)
    assert trace.busy_us / steps == near(summary.busy_us or 0)
    ranges = {each.label: each for each in trace.ranges}
    labels = {name: f"{index} SpinningCall forward" for index, name in enumerate(setting.names)}
    for name, use in uses.items():
        each = ranges[labels.get(name, "env SpinningEnv step")]
        assert each.calls == steps
        assert each.busy_us / steps == near(use.busy_us)
        assert each.wait_us / steps == near(use.wait_us)
        assert each.delay_us == near(use.launch_delay_us)
        assert each.host_us / steps == near(use.traced_us)
    waits = {(wait.label, wait.line) for wait in trace.waits if wait.line}
    assert waits == {(labels["fetch"], WHERE), (labels["stop"], OTHER)}


def near(expected: float) -> object:
    """Within 1 %; figures of 0 within the nanosecond that entering a range takes."""
    return pytest.approx(expected, rel=0.01, abs=0.02)


@exhaustive
def test_time_on_the_host(mode: ModeProfile) -> None:
    hosts = {row.part.label: mode.step_share_us(row) for row in mode.rows}
    expected = (2, 220, 2, 4, 500, 10, 6, 142, 60)
    assert [hosts[f"{at} SpinningCall"] for at in range(9)] == [near(each) for each in expected]


def test_span_on_the_device_is_without_the_cost_of_events(
    uses: dict[str, DeviceUse], summary: DeviceSummary
) -> None:
    assert {name: use.time_us for name, use in uses.items()} == {
        "env": near(5),
        "kernels": near(302),
        "launches": near(10),
        "copies": near(40),
        # Its work ends before that of the stages around it.
        "streams": near(0),
        "host": near(376),
        "send": near(10),
        "gap": near(142),
        "fetch": near(6),
        "stop": near(60),
    }
    assert summary.span_us == near(STEP_US)
    assert summary.events_us > 5


def test_busy_time_counts_overlapping_streams_once(
    uses: dict[str, DeviceUse], summary: DeviceSummary
) -> None:
    assert {name: use.busy_us for name, use in uses.items()} == {
        "env": 0,
        "kernels": near(300),
        "launches": near(10),
        "copies": near(40),
        "streams": near(50),
        "host": 0,
        "send": near(8),
        "gap": near(85),
        "fetch": near(6),
        "stop": near(56),
    }
    assert uses["streams"].kernel_us == near(80)
    assert summary.busy_us == near(350 + 8 + 85 + 6 + 56)
    assert summary.unattributed_us == 0


def test_transfers_have_a_direction_and_copies_on_the_device_have_none(
    uses: dict[str, DeviceUse],
) -> None:
    def copied(name: str) -> tuple[float, ...]:
        use = uses[name]
        return (
            *(use.copy_us, use.to_device_us, use.to_host_us),
            *(use.to_device_bytes, use.to_host_bytes),
        )

    assert copied("copies") == (40, 0, 0, 0, 0)
    assert copied("send") == (8, 8, 0, 64, 0)
    assert copied("fetch") == (6, 0, 6, 0, 32)


def test_waits_are_priced_by_function_and_line(uses: dict[str, DeviceUse]) -> None:
    waits = {
        name: [(wait.call, wait.line, wait.calls, wait.time_us) for wait in use.waits]
        for name, use in uses.items()
        if use.waits
    }
    assert waits == {
        "send": [("cudaMemcpyAsync", "", 1, near(10))],
        "fetch": [("cudaStreamSynchronize", WHERE, 1, near(140))],
        "stop": [("cudaDeviceSynchronize", OTHER, 1, near(56))],
    }
    assert uses["fetch"].syncs == {WHERE: 1}


def test_idle_time_by_cause_and_part(uses: dict[str, DeviceUse], summary: DeviceSummary) -> None:
    idle = {
        name: (use.idle_host_us, use.idle_kernel_us, use.idle_other_us)
        for name, use in uses.items()
        if use.idle_host_us + use.idle_kernel_us + use.idle_other_us > 0.02
    }
    assert idle == {
        "env": (near(5), 0, 0),
        "kernels": (near(2), 0, 0),
        "host": (near(376), 0, 0),
        "send": (near(2), 0, 0),
        "gap": (near(2), near(15), near(40)),
        "stop": (near(4), 0, 0),
    }
    assert summary.traced_us == near(STEP_US)
    busy_and_idle = summary.busy_us + summary.idle_host_us
    busy_and_idle += summary.idle_kernel_us + summary.idle_other_us
    assert busy_and_idle == pytest.approx(summary.traced_us)


def test_launch_delay(uses: dict[str, DeviceUse]) -> None:
    delays = {name: uses[name].launch_delay_us for name in ("kernels", "launches", "gap", "copies")}
    # The copies are not kernels.
    expected = {"kernels": 0, "launches": 183.5, "gap": (0 + 98 + 131) / 3, "copies": 0}
    assert delays == {name: near(delay) for name, delay in expected.items()}
    assert uses["launches"].launching_us == near(220)


def test_verdict_names_what_takes_the_time(uses: dict[str, DeviceUse]) -> None:
    assert {name: use.bound_by for name, use in uses.items()} == {
        "env": "the host",
        "kernels": "kernels",
        "launches": "kernels",
        "copies": "kernels",
        "streams": "kernels",
        "host": "the host",
        "send": "a wait",
        "gap": "kernels",
        "fetch": "a wait",
        "stop": "a wait",
    }
    assert uses["kernels"].evidence == "the device is busy for 300 of 302 µs"
    assert uses["streams"].evidence == "the device is busy for 50 µs, on other streams as well"
    assert uses["fetch"].evidence == (
        f"the host waits 140 of 142 µs, mostly in cudaStreamSynchronize at {WHERE}"
    )
    assert uses["host"].evidence.startswith("the host spends 500 of 500 µs outside")


def test_both_timing_modes_and_the_card_are_named(
    mode: ModeProfile, uses: dict[str, DeviceUse], summary: DeviceSummary
) -> None:
    assert (summary.name, summary.gpu, summary.torch_bytes) == ("fake:0", GPU, 1 << 30)
    assert summary.asynchronous_us == mode.step_us == near(STEP_US)
    # The launches no longer overlap with the kernels.
    assert summary.synchronized_us == near(5 + 302 + 221 + 42 + 52 + 500 + 10 + 142 + 8 + 60)
    assert uses["kernels"].synchronized_us == near(302)


class RandomChain:
    """Env with random stages that launch, work on the host and wait, and the truth of their spans.

    Args:
        seed: Seed of the stages.
        waits: True if stages may wait for the device.
    """

    def __init__(self, seed: int, waits: bool) -> None:
        random = Random(seed)
        self.clock = FakeClock()
        self.device = FakeDevice(self.clock)
        self.spans = [0] * 6
        kinds = ("kernel", "small", "host", "both", "many", "wait")
        stages = [
            SpinningCall(
                self.act(index, random.choice(kinds[: 5 + waits]), *random.choices(TIMES, k=2)), 0
            )
            for index in range(len(self.spans))
        ]
        env = SpinningEnv(self.clock.spin, step=5, length=100_000)
        self.env = TransformedEnv(env, Compose(*stages))

    def act(self, index: int, kind: str, first_us: float, second_us: float) -> Spin:
        device, clock = self.device, self.clock

        def run(_: float) -> None:
            start = max(device.done_ns[0], clock.now)
            if kind == "host":
                clock.spin(first_us)
            elif kind == "many":
                for _ in range(6):
                    with device.operator(12):
                        device.launch(first_us / 10)
            else:
                clock.spin(second_us if kind == "both" else 0)
                device.launch(3 if kind == "small" else first_us)
                if kind == "wait":
                    device.stop(WHERE)
                clock.spin(7 if kind in ("both", "wait") else 0)
            self.spans[index] += max(device.done_ns[0], clock.now) - start

        return run


TIMES = (5, 30, 100, 400)
"""Times of work in random stages, in µs."""


@pytest.mark.parametrize("waits", [False, True], ids=["never waits", "waits"])
@pytest.mark.parametrize("seed", range(8))
@sampled(5)
def test_spans_of_random_chains_are_those_without_events(seed: int, waits: bool) -> None:
    chain, steps = RandomChain(seed, waits), 40
    chain.env.rollout(5)
    chain.device.wait()
    chain.spans = [0] * len(chain.spans)
    chain.env.rollout(steps)
    truth = [span / steps / US for span in chain.spans]
    plan = ProfilePlan(steps=steps, warmup=5, repeats=1, passes=("device",), clock=chain.clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "find_accelerator", lambda *_: AcceleratorLookup(chain.device))
        mode = profile_env(chain.env, ["eager"], plan).modes[0]
    uses = [mode.on_device[f"{at} SpinningCall", "forward"] for at in range(len(truth))]
    assert [use.time_us for use in uses] == pytest.approx(truth, abs=0.01 * sum(truth))
    assert mode.device is not None
    assert mode.device.events_us > 0.01 * sum(truth)


def test_launches_bind_a_device_that_is_not_behind() -> None:
    setting = Setting()
    setting.env.transform[0].spin = lambda _: None
    plan = ProfilePlan(steps=20, warmup=2, repeats=1, passes=("device",), clock=setting.clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "find_accelerator", lambda *_: AcceleratorLookup(setting.device))
        measured = profile_env(setting.env, ["eager"], plan).modes[0]
    use = measured.on_device["1 SpinningCall", "forward"]
    assert (use.bound_by, use.launch_bound) == ("launches", True)
    launches, busy = use.evidence.split(" on the host, ")
    assert launches == "launching work takes 220 of 220 µs"
    assert busy.startswith("the device is busy for 10 of 22")
    assert (use.time_us, use.idle_host_us) == (near(221), near(220 - 9))
