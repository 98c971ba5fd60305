"""A profile with fixed numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tdx.core.meter import UNATTRIBUTED, Part
from tdx.foundation.nvml import GpuState
from tdx.profiling.machine import Machine
from tdx.profiling.plain import OperatorUse
from tdx.profiling.result import (
    DeviceSummary,
    DeviceUse,
    DeviceWait,
    MemoryUse,
    Mode,
    ModeProfile,
    Profile,
    Row,
    Settings,
)

STEPS, REPEATS = 40, 3
MACHINE = Machine(
    processor="Example CPU @ 2.00GHz",
    cores=2,
    memory_bytes=8 << 30,
    system="Linux 6.1",
    python="3.11.9",
    packages={"tdx": "1.0", "torch": "2.12.0"},
    accelerators=(),
    threads=2,
)


def counts(values: object) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


class Simulated:
    """Rollout in simulated time, with consecutive calls inside one outer call."""

    def __init__(self) -> None:
        self.calls: dict[Part, list[tuple[int, int, int, int, int]]] = {}
        self.totals: list[int] = []
        self.now = 0

    def call(self, part: Part, each_ns: int, steps: int = 1) -> None:
        """Record a call; every 50th takes four times as long."""
        made = self.calls.setdefault(part, [])
        place = len(made)
        took = each_ns + each_ns * ((place * 37) % 17) // 100 + each_ns * 3 * (place % 50 == 49)
        made.append((took, self.now, took, steps, len(self.totals)))
        self.now += took

    def end_repeat(self, own_ns: int) -> None:
        """End the outer call, with its own time."""
        outer = Part("engine", -1, UNATTRIBUTED, "step")
        total = self.now + own_ns
        made = self.calls.setdefault(outer, [])
        made.append((own_ns, 0, total, 1, len(self.totals)))
        self.totals.append(total)
        self.now = 0

    def rows(self) -> tuple[Row, ...]:
        """Return the rows of the profile."""
        return tuple(
            Row(part, *(counts(column) for column in zip(*calls, strict=True)))
            for part, calls in self.calls.items()
        )


def mode_profile(
    mode: Mode = "eager", scale: int = 1, error: str | None = None, *, many: bool = False
) -> ModeProfile:
    """Return a profile of one mode; ``many`` adds a stage whose calls cover many steps."""
    rollout, per_call = Simulated(), 20 if many else 1
    forward = Part("stage", 0, "RewardSum", "forward")
    for repeat in range(REPEATS):
        for step in range(STEPS):
            rollout.call(Part("policy", -1, "random", "step"), 6_000 * scale)
            rollout.call(Part("stage", 1, "ActionScaling", "inverse"), 9_000 * scale)
            rollout.call(Part("env", -1, "Pendulum-v1", "step"), 40_000 * scale)
            if (step + 1) % per_call == 0:
                rollout.call(forward, 12_000 * scale * per_call, per_call)
        rollout.end_repeat(120_000 * scale + 30_000 * repeat)
    return ModeProfile(
        mode=mode,
        rows=rollout.rows(),
        total_ns=counts(rollout.totals),
        steps=counts([STEPS] * REPEATS),
        frames=counts([STEPS * 4] * REPEATS),
        specs_ns=counts([900_000, 800_000, 850_000]),
        memory={(forward.label, "forward"): MemoryUse(96.0, 64, 4.0)},
        operators={
            (forward.label, "forward"): (
                OperatorUse("aten::add", 1.0, 4.5),
                OperatorUse("aten::where", 0.5, 2.0),
            )
        },
        notes=("The operator pass slows everything down.",),
        error=error,
    )


def on_device(mode: ModeProfile) -> ModeProfile:
    """Return the profile with the columns of an accelerator."""
    uses = {}
    for row in mode.rows:
        host_us, is_env = mode.step_share_us(row), row.part.work == "env"
        waits = (DeviceWait("cudaStreamSynchronize", "reward_sum.py:40", 1.0, host_us / 2),)
        uses[row.key] = DeviceUse(
            time_us=host_us / 4,
            kernels=2.0,
            kernel_us=host_us / 8,
            launches=2.0,
            to_device_bytes=4096.0,
            to_host_bytes=16.0,
            syncs={"reward_sum.py:40": 1.0} if row.part.work == "stage" else {},
            launch_bound=is_env,
            busy_us=host_us / 8,
            main_stream_us=host_us / 8,
            traced_us=host_us,
            launching_us=host_us / 2 if is_env else 1.0,
            launch_delay_us=4.5,
            waits=waits if row.part.work == "stage" else (),
            idle_host_us=host_us / 8,
            bound_by="launches" if is_env else "kernels",
            evidence="the device is busy for 2 of 4 µs",
        )
    summary = DeviceSummary(
        "cuda:0",
        asynchronous_us=mode.step_us,
        synchronized_us=mode.step_us * 1.5,
        span_us=mode.step_us / 4,
        events_us=8.5,
        traced_us=mode.step_us / 3,
        busy_us=mode.step_us / 8,
        unattributed_us=mode.step_us / 800,
        idle_host_us=mode.step_us / 8,
        idle_other_us=0.5,
        torch_bytes=1 << 30,
        gpu=GpuState("Example GPU", "570.1", 80 << 30, 3 << 30, 2 << 30, 1980, 1980, 2619),
    )
    return replace(mode, on_device=uses, device=summary)


def sample_profile(*modes: ModeProfile) -> Profile:
    """Return a profile; by default with one eager mode."""
    return Profile(
        subject="Pendulum-v1 -t RewardSum -t ActionScaling",
        stages=("RewardSum", "ActionScaling"),
        settings=Settings(STEPS, 10, REPEATS, "random", "cpu", 4, 0),
        machine=MACHINE,
        modes=modes or (mode_profile(),),
    )
