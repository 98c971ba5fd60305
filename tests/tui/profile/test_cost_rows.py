"""Rows of the profile table, with columns that depend on machine and passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tdx.core.meter import Lane
from tdx.foundation.nvml import GpuState
from tdx.pipeline import Pipeline, build_checked_env
from tdx.profiling.interleaved import MarginalCost, MarginalCosts, TimeDifference
from tdx.profiling.plain import OperatorUse
from tdx.profiling.result import DeviceSummary, DeviceUse, DeviceWait, Profile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.tui.profile.messages import BINS, CostRow, Costs, Sync
from tdx.tui.profile.widgets import histogram_text
from tdx.tui.profile.worker import add_savings, build_costs
from tests.tui.profile.measured import call, row

Key = tuple[str, Lane]
KEY: Key = ("0 RewardSum", "forward")
GPU = GpuState("A card", "570.1", 80 << 30, 2 << 30, None, 1500, 1980, 2619)


@pytest.fixture(scope="module")
def profile() -> Profile:
    with build_checked_env(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter")) as env:
        return profile_env(env, ["eager"], ProfilePlan(steps=5, warmup=0, repeats=2, passes=()))


def row_of(costs: Costs, key: Key = KEY) -> CostRow:
    return next(row for row in costs.modes[0].rows if row.label == key[0])


def test_columns_of_the_accelerator(profile: Profile) -> None:
    use = DeviceUse(
        7.5,
        kernels=3.0,
        launch_bound=True,
        syncs={"a.py:3": 2.0, "b.py:9": 1.0},
        busy_us=2.5,
        launch_delay_us=4.0,
        idle_host_us=3.0,
        idle_other_us=0.5,
        waits=(DeviceWait("cudaStreamSynchronize", "b.py:9", 1.0, 4.5),),
        bound_by="a wait",
        evidence="the host waits",
    )
    (mode,) = profile.modes
    operators: dict[Key, tuple[OperatorUse, ...]] = {KEY: (OperatorUse("aten::add", 2.0, 1.5),)}
    device = DeviceSummary(
        "cuda:0",
        traced_us=40.0,
        busy_us=10.0,
        unattributed_us=1.0,
        idle_host_us=24.0,
        idle_kernel_us=6.0,
        gpu=GPU,
    )
    mode = replace(mode, on_device={KEY: use}, device=device, operators=operators)
    costs = build_costs(replace(profile, modes=(mode,)))
    assert costs.modes[0].device == (
        "cuda:0: A card, driver 570.1, 1,500 of 1,980 MHz",
        "traced: busy 10.0 µs of 40.0 µs, idle 30.0 µs (24.0 nothing launched, 6.00 between "
        "kernels); 10.0% of the work is unattributed",
    )
    row = row_of(costs)
    assert (row.device_us, row.kernels, row.launch_bound) == (7.5, 3.0, True)
    assert (row.busy_us, row.bound_by, row.evidence) == (2.5, "a wait", "the host waits")
    assert (row.delay_us, row.idle_us) == (4.0, {"nothing launched": 3.0, "other": 0.5})
    # A wait whose time is known is listed once.
    assert row.syncs == (Sync("b.py:9", 1.0, "cudaStreamSynchronize", 4.5), Sync("a.py:3", 2.0))
    assert row.operators == (OperatorUse("aten::add", 2.0, 1.5),)
    other = row_of(costs, ("1 StepCounter", "forward"))
    assert (other.device_us, other.syncs, other.operators) == (None, (), ())
    assert row_of(build_costs(profile)).operators is None


def test_marginal_costs_are_in_the_rows_of_the_stages(profile: Profile) -> None:
    known = TimeDifference(50.0, 40.0, 10.0, float("inf"), 1)
    found = MarginalCosts(
        "eager",
        50.0,
        (
            MarginalCost(0, "RewardSum", 8.0, known),
            MarginalCost(1, "StepCounter", 2.0, None, "stage 2 needs its key"),
        ),
        "the env broke",
    )
    costs = add_savings(build_costs(profile), found)
    found_savings = {at: each for row in costs.modes[0].rows for at, each in row.marginals.items()}
    savings = [found_savings[at] for at in sorted(found_savings)]
    assert [(each.name, each.saved_us, each.noise_us) for each in savings] == [
        ("RewardSum", 10.0, 50.0),
        ("StepCounter", None, 0.0),
    ]
    assert savings[1].needed == "stage 2 needs its key"
    assert costs.modes[0].notes[-1] == "without each stage: the env broke"
    assert costs.error is None
    assert add_savings(build_costs(profile), replace(found, error="interrupted")).error


@pytest.mark.parametrize("width", [30, 46, 60, 100])
@pytest.mark.parametrize("height", [1, 3])
def test_histogram_fits_the_width_with_all_calls(width: int, height: int) -> None:
    counts = (90, *[0] * (BINS - 2), 10)
    long = replace(call("step", 45.6), counts=counts, high_us=134_648.0)
    part = row("step", -1, "step", 45.6, calls=(long,))
    lines = histogram_text(part, width, height).plain.splitlines()
    # The heading and the percentiles may wrap, bars may not.
    bars = [line for line in lines[1:] if set(line) & set("▁▂▃▄▅▆▇█") or "135 ms+" in line]
    assert bars
    assert max(map(len, bars)) <= width, bars
    assert bars[height - 1].strip("0123456789.,+ µms")[-1] in "▁▂▃▄▅▆▇█", "the last bin is shown"
