"""Ctrl-C at any time, including between a call and its time stamp."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest

import tdx
from tdx.profiling.run import ProfilePlan, profile_env
from tests.programs import exhaustive


class Interrupting:
    """Clock that raises KeyboardInterrupt at the n-th reading."""

    def __init__(self, asked: int) -> None:
        self._left, self._now = asked, itertools.count(0, 1000)

    def __call__(self) -> int:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt
        return next(self._now)


@pytest.mark.parametrize("mode", ["eager", "planned"])
@exhaustive
def test_interrupt_at_any_time_returns_a_profile(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdx.profiling.run.quiet_environment", nullcontext)
    chain = tdx.Compose(tdx.StepCounter(max_steps=2), tdx.RewardSum(), tdx.ActionScaling())
    env = tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), chain)
    interrupted = 0
    for asked in itertools.count(10, 3):
        plan = ProfilePlan(steps=3, warmup=0, repeats=2, passes=(), clock=Interrupting(asked))
        (found,) = profile_env(env, [mode], plan).modes  # type: ignore[list-item]
        if found.error is None:
            break
        assert found.error == "interrupted"
        assert sum(row.total_ns for row in found.rows) == found.total_ns.sum()
        interrupted += 1
    assert interrupted > 7
