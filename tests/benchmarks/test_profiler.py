"""P9: overhead of the profiler, unattributed time, and known costs in real time."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from tdx import Compose, TransformedEnv
from tdx.core.meter import Lane
from tdx.profiling.clock import ClockMeter
from tdx.profiling.machine import quiet_environment
from tdx.profiling.result import Mode
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.stacks.native_meter import attach_meter
from tests.benchmarks.bars import (
    KNOWN_COSTS,
    PROFILED,
    PROFILED_EAGER,
    UNATTRIBUTED,
    UNATTRIBUTED_EAGER,
    Bar,
)
from tests.benchmarks.chains import chain_6_env
from tests.benchmarks.conftest import Note
from tests.profiling.fake_clock import SpinningEnv, SpinningPolicy, SpinningStage

ROUNDS = 15
EACH = pytest.mark.parametrize(
    ("bar", "left", "mode", "steps"),
    [
        (PROFILED, UNATTRIBUTED, "planned", 2000),
        (PROFILED_EAGER, UNATTRIBUTED_EAGER, "eager", 300),
    ],
    ids=["planned", "eager"],
)


@EACH
def test_profiled_rollout(note: Note, bar: Bar, left: Bar, mode: Mode, steps: int) -> None:
    """Measured and unmeasured rollouts in alternation; the median ratio counts."""
    env = chain_6_env("tdx", planned=mode == "planned")
    meter = ClockMeter()
    times: list[tuple[float, float]] = []
    with quiet_environment():
        for _ in range(ROUNDS + 1):
            plain = _rolled(env, steps)
            with attach_meter(env, meter):
                times.append((plain, _rolled(env, steps)))
            meter.collect()
    plain_s, profiled_s = np.array(times[1:]).T / steps
    base = float(np.median(plain_s))
    note(bar, "bare", base)
    note(bar, "tdx", base * float(np.median(profiled_s / plain_s)))
    (found,) = profile_env(env, [mode], ProfilePlan(steps=steps, repeats=9, passes=())).modes
    note(left, "tdx", found.unattributed)
    assert found.error is None
    env.close()


def _rolled(env: TransformedEnv, steps: int) -> float:
    torch.manual_seed(0)
    env.set_seed(0)
    env.rollout(10)
    start = time.perf_counter()
    env.rollout(steps, break_when_any_done=False)
    return time.perf_counter() - start


class _Spinner:
    """Waits actively and records how long."""

    def __init__(self) -> None:
        self.spun_ns = 0

    def __call__(self, microseconds: float) -> None:
        start = now = time.perf_counter_ns()
        until = start + round(microseconds * 1000)
        while now < until:
            now = time.perf_counter_ns()
        self.spun_ns += now - start


@pytest.mark.parametrize("mode", ["planned", "eager"])
def test_known_costs(note: Note, mode: Mode, pytestconfig: pytest.Config) -> None:
    """Each part spins for its own time: in a step, at a reset, in the inverse path, now and then.

    Env and policy also create TensorDicts, which is their own time as well; they spin so long that
    this is little of it.
    """
    spin: dict[tuple[str, Lane], _Spinner] = {
        ("env SpinningEnv", "step"): _Spinner(),
        ("policy SpinningPolicy", "step"): _Spinner(),
        ("0 SpinningStage", "forward"): _Spinner(),
        ("1 SpinningStage", "reset"): _Spinner(),
        ("2 SpinningStage", "inverse"): _Spinner(),
        ("3 SpinningStage", "forward"): _Spinner(),
    }
    env_spin, policy_spin, *of = spin.values()
    chain = Compose(
        SpinningStage(of[0], forward=300),
        Compose(SpinningStage(of[1], reset=4000), SpinningStage(of[2], inverse=200)),
        SpinningStage(of[3], rare=20_000),
    )
    env = TransformedEnv(SpinningEnv(env_spin, step=4000), chain)
    plan = ProfilePlan(
        steps=100, warmup=0, repeats=2, passes=(), policy=SpinningPolicy(policy_spin, 2000)
    )
    (found,) = profile_env(env, [mode], plan).modes
    rows = {row.key: row.total_ns for row in found.rows}
    ratios = {}
    for key, each in spin.items():
        # The input of a reset passes through the inverse path too.
        others = rows.get((key[0], "reset"), 0) if key[1] == "inverse" else 0
        ratios[key] = (rows[key] + others) / each.spun_ns
        print(f"{mode} {key[0]} {key[1]}: found {ratios[key]:.3f} of what it spun")
    worst = max(abs(ratio - 1) for ratio in ratios.values())
    known = pytestconfig.stash.setdefault(_WORST, {})
    known[mode] = worst
    note(KNOWN_COSTS, "tdx", max(known.values()))
    assert found.error is None


_WORST = pytest.StashKey[dict[str, float]]()
