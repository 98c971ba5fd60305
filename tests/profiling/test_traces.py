"""Trace files for other programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tdx
from tdx.profiling.result import Profile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.traces import (
    CallNode,
    build_mean_step,
    describe_omitted_calls,
    iterate_calls,
    to_chrome_trace,
    to_speedscope,
)
from tests.profiling.sample_profile import REPEATS, STEPS, mode_profile, sample_profile


@pytest.fixture(scope="module")
def measured() -> Profile:
    env = tdx.TransformedEnv(
        tdx.GymEnv("Pendulum-v1"), tdx.Compose(tdx.StepCounter(max_steps=4), tdx.ActionScaling())
    )
    return profile_env(env, ["eager", "planned"], ProfilePlan(steps=12, warmup=0, repeats=2))


@pytest.fixture(params=["measured", "made"])
def profile(request: pytest.FixtureRequest) -> Profile:
    if request.param == "made":
        return sample_profile(mode_profile(), mode_profile("planned", many=True))
    found: Profile = request.getfixturevalue("measured")
    return found


def nests(events: list[dict[str, Any]]) -> bool:
    """Return True if no slice ends after the slice around it."""
    inside: list[float] = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while inside and inside[-1] <= event["ts"] + 1e-6:
            inside.pop()
        if inside and end > inside[-1] + 1e-6:
            return False
        inside.append(end)
    return True


def test_chrome_trace_contains_every_call(profile: Profile) -> None:
    trace = json.loads(json.dumps(to_chrome_trace(profile)))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    named = {
        e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and "name" in e["args"]
    }
    assert named == {"eager", "planned", "rollout"}
    for number, mode in enumerate(profile.modes, start=1):
        mine = [event for event in slices if event["pid"] == number]
        calls = sum(len(row.times_ns) for row in mode.rows)
        assert len(mine) == calls + len(mode.total_ns)
        assert nests(mine)
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in mine)
    stages = {event["name"] for event in slices if event["cat"] == "stage"}
    assert any(name.endswith("ActionScaling inverse") for name in stages)
    assert trace["otherData"]["cut"] is None


def test_speedscope_events_are_nested(profile: Profile) -> None:
    file = json.loads(json.dumps(to_speedscope(profile)))
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = file["shared"]["frames"]
    assert len({frame["name"] for frame in frames}) == len(frames)
    for mode, part in zip(profile.modes, file["profiles"], strict=True):
        assert (part["type"], part["name"], part["unit"]) == ("evented", mode.mode, "nanoseconds")
        opened: list[int] = []
        at = part["startValue"]
        for event in part["events"]:
            assert event["at"] >= at
            at = event["at"]
            if event["type"] == "O":
                opened.append(event["frame"])
            else:
                assert opened.pop() == event["frame"]
        assert not opened
        assert at <= part["endValue"]
        assert len(part["events"]) == 2 * sum(len(row.times_ns) for row in mode.rows)


def test_trace_files_are_limited_and_describe_omissions() -> None:
    profile = sample_profile(mode_profile(), mode_profile("planned"))
    note = describe_omitted_calls(profile, most=60)
    every = 2 * (4 * STEPS + 1) * REPEATS
    assert note == f"the first 60 of {every:,} calls"
    trace = to_chrome_trace(profile, most=60)
    assert sum(event.get("cat") not in (None, "repeat") for event in trace["traceEvents"]) == 60
    assert trace["otherData"]["cut"] == note
    file = to_speedscope(profile, most=60)
    assert sum(len(part["events"]) for part in file["profiles"]) == 120
    assert note in file["name"]


def test_times_of_the_mean_step_add_up(measured: Profile) -> None:
    for mode in measured.modes:
        tree = build_mean_step(mode)

        def own(node: CallNode) -> float:
            return node.own_us + sum(own(child) for child in node.children.values())

        assert own(tree) == pytest.approx(mode.step_us)
        assert tree.depth() > 2
        depths = [call.depth for call in iterate_calls(mode)]
        assert min(depths) == 0


def test_trace_of_an_empty_profile_is_empty() -> None:
    empty = Profile("none", (), sample_profile().settings, sample_profile().machine, ())
    assert to_chrome_trace(empty)["traceEvents"] == []
    assert to_speedscope(empty)["profiles"] == []
    assert describe_omitted_calls(empty) is None
