"""Preemption: CPU time beside wall time, and what the result says about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import gymnasium
import pytest

import tdx
from tdx.cli.html import html_page
from tdx.cli.output import terminal_text
from tdx.cli.views.profile import profile_view
from tdx.profiling.context import profile_stack
from tdx.profiling.processor import (
    ProcessorReading,
    ProcessorUse,
    describe_preemption,
    processor_use,
    read_processor,
)
from tdx.profiling.result import Profile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.saved import profile_from_json, profile_to_json
from tests.profiling.sample_profile import mode_profile, sample_profile

START = ProcessorReading(0, 0, 0, 0, 0)
MILLISECOND = 1_000_000


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        # The scheduler counts the time on its queue, apart from waiting.
        (ProcessorReading(1000, 400, 250, 3, 7), 250),
        (ProcessorReading(1000, 400, 0, 0, 7), 0),
        # Without that counter, only a thread that never waits tells it.
        (ProcessorReading(1000, 400, None, 3, 0), 600),
        (ProcessorReading(1000, 400, None, 0, 0), 0),
        (ProcessorReading(1000, 400, None, 3, 7), None),
        (ProcessorReading(1000, 400, None, None, None), None),
    ],
)
def test_lost_time_is_not_confused_with_waiting(after: ProcessorReading, lost: int | None) -> None:
    use = processor_use(START._replace(ready_ns=0 if after.ready_ns is not None else None), after)
    assert (use.wall_ns, use.cpu_ns, use.lost_ns) == (1000, 400, lost)


def test_message_has_share_count_and_cpu_time() -> None:
    uses = (ProcessorUse(10**9, 9 * 10**8, 10**8, 40), ProcessorUse(10**9, 8 * 10**8, 2 * 10**8, 2))
    message = describe_preemption(uses)
    assert message is not None
    assert "15.0% of the time, taken away 42 times (1.70 s CPU time in 2.00 s)" in message


@pytest.mark.parametrize(
    "uses", [(), (ProcessorUse(10**9, 10**9, 10**6, 1),), (ProcessorUse(10**9, 10**8, None, 4),)]
)
def test_negligible_and_unknown_losses_are_not_reported(uses: tuple[ProcessorUse, ...]) -> None:
    assert describe_preemption(uses) is None


def test_reading_counts_this_thread() -> None:
    before, start = read_processor(), time.thread_time_ns()
    while time.thread_time_ns() < start + 1_000_000:
        pass
    use = processor_use(before, read_processor())
    assert use.wall_ns > 0
    assert use.cpu_ns >= 1_000_000


@pytest.fixture
def preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the processor away for a quarter of each repeat."""

    def readings() -> Iterator[ProcessorReading]:
        at = 0
        while True:
            yield ProcessorReading(at * MILLISECOND, at * 750_000, at * 250_000, at, 0)
            at += 1

    reading = readings()
    for module in ("run", "context"):
        monkeypatch.setattr(f"tdx.profiling.{module}.read_processor", lambda: next(reading))


def profiles() -> Iterator[Profile]:
    plan = ProfilePlan(steps=5, warmup=0, repeats=2, passes=())
    env = tdx.TransformedEnv(tdx.GymEnv("CartPole-v1"), tdx.RewardSum())
    yield profile_env(env, ["planned"], plan)
    yield profile_stack(tdx.open_stack(gymnasium.make("CartPole-v1")), plan)
    with tdx.profile(env) as block:
        env.rollout(5)
    yield block.result


@pytest.mark.usefixtures("preempted")
def test_each_way_to_measure_says_that_it_was_preempted() -> None:
    for profile in profiles():
        (mode,) = profile.modes
        assert mode.preemption is not None
        assert mode.preemption.startswith("other programs had the processor for 25.0% of the time")


def test_preemption_is_in_table_json_and_html() -> None:
    use = ProcessorUse(10**9, 9 * 10**8, 10**8, 40)
    profile = sample_profile(replace(mode_profile(), processor=(use,)))
    message = profile.modes[0].preemption
    assert message is not None
    printed = terminal_text(profile_view(profile).blocks(), 120)
    assert message in " ".join(printed.split())
    assert message in html_page(profile_view(profile).blocks())
    document = profile_to_json(profile)
    assert document["modes"][0]["preemption"] == message
    assert profile_from_json(document).modes[0].processor == (use,)
