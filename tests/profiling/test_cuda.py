"""Passes on a real device; skipped without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from tdx import CatFrames, Compose, ObservationNorm, PendulumEnv, RewardSum, TransformedEnv
from tdx.profiling.passes.accelerator import TorchAccelerator
from tdx.profiling.passes.choice import make_observers
from tdx.profiling.passes.device import DeviceTimes
from tdx.profiling.plain import PASSES
from tdx.profiling.result import ModeProfile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.stacks.native_times import timed_env
from tests.profiling.fake_clock import SpinningCall

pytestmark = pytest.mark.gpu

PLAN = ProfilePlan(steps=20, warmup=5, repeats=2, passes=("device",))


class Setting:
    """Env on the GPU with a stage that computes and one that synchronizes."""

    def __init__(self, device: str = "cuda:0") -> None:
        self.matrix = torch.randn(2048, 2048, device=device)
        chain = Compose(SpinningCall(self.multiply, 0), SpinningCall(self.read, 0))
        self.env = TransformedEnv(PendulumEnv(batch_size=[64], device=device), chain)

    def multiply(self, _: float) -> None:
        self.matrix @ self.matrix

    def read(self, _: float) -> None:
        self.matrix[0, 0].item()

    def rows(self, plan: ProfilePlan = PLAN) -> ModeProfile:
        return profile_env(self.env, ["eager"], plan).modes[0]


def test_columns_of_device_passes() -> None:
    mode = Setting().rows()
    assert mode.error is None
    multiply, read = (mode.on_device[f"{index} SpinningCall", "forward"] for index in range(2))
    assert multiply.kernels == multiply.launches == 1
    assert 0 < multiply.kernel_us <= multiply.time_us * 1.5
    assert multiply.allocated_bytes == multiply.peak_bytes == 2048 * 2048 * 4
    assert multiply.syncs == {}
    assert not multiply.launch_bound
    (place,) = read.syncs
    assert "tests/profiling/test_cuda.py:" in place
    assert read.to_host_bytes == 4
    assert multiply.bound_by == "kernels"
    assert read.bound_by == "a wait"
    assert place in [wait.line for wait in read.waits]
    assert mode.device is not None
    assert mode.device.unattributed < 0.01


def test_part_times_do_not_exceed_the_elapsed_time() -> None:
    setting, device = Setting(), TorchAccelerator("cuda:0")
    seen = DeviceTimes(device)
    with timed_env(setting.env, seen):
        setting.env.rollout(5)
        first = device.mark()
        with seen.recording():
            setting.env.rollout(20)
        last = device.mark()
        device.synchronize()
    none = np.zeros(0, np.int64)
    summary = seen.add_results(ModeProfile("eager", (), none, none, none), 20).device
    assert summary is not None
    assert 0 < summary.span_us * 20_000 <= device.elapsed_ns(first, last)


def test_sync_mode_has_another_note() -> None:
    plain, waiting = (Setting().rows(replace(PLAN, passes=(), sync=sync)) for sync in (False, True))
    assert plain.notes != waiting.notes


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "eager"])
def test_values_are_unchanged_by_passes(planned: bool) -> None:
    def rolled(env: TransformedEnv) -> TensorDictBase:
        env.planned = planned
        env.set_seed(3)
        torch.manual_seed(3)
        return env.rollout(12)

    def made() -> TransformedEnv:
        norm = ObservationNorm(0.1, 2.0, in_keys=["observation"])
        chain = Compose(norm, RewardSum(), CatFrames(3, -1, in_keys=["observation"]))
        return TransformedEnv(PendulumEnv(batch_size=[8], device="cuda:0"), chain)

    plain, device = rolled(made()), TorchAccelerator("cuda:0")
    for observer in [each for name in PASSES for each in make_observers(name, device)]:
        env = made()
        with timed_env(env, observer), observer.recording():
            seen = rolled(env)
        assert (plain == seen).all(), type(observer).__name__
    assert torch.cuda.get_sync_debug_mode() == 0
