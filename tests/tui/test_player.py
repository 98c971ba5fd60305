"""The player of live rollouts in the worker, without an app."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDictBase

from tdx import RewardSum, StepCounter, Transform, open_dump
from tdx.inspection.live.stack_env import StackEnv
from tdx.pipeline import Pipeline
from tdx.rollouts import verify
from tdx.stacks import open_stack
from tdx.tui.backend.activity import ActivityRecord
from tdx.tui.backend.messages import Job
from tdx.tui.live.messages import (
    Command,
    CommandEnvelope,
    DumpSteps,
    LiveState,
    Reset,
    RunSteps,
    SetActionSource,
    SetPanes,
    SetRate,
    ShowTrace,
)
from tdx.tui.live.requests import RunSession
from tdx.tui.live.worker import LivePlayer, run_session
from tests.inspection.live.stages import At, pendulum, raises
from tests.programs import exhaustive

PENDULUM = RunSession(Pipeline.of("Pendulum-v1"), rate=None)


class Watched:
    """Player with the latest pushed value of each topic."""

    def __init__(self, *stages: Any, tick: int = 1_000_000) -> None:
        self.seen: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        clock = itertools.count(0, tick)
        env = pendulum(StepCounter(50), *stages)
        self.player = LivePlayer(env, PENDULUM, self._push, clock=lambda: next(clock))
        self._numbers = itertools.count(1)

    def _push(self, topic: str, value: Any) -> None:
        self.seen[topic] = value
        self.counts[topic] = self.counts.get(topic, 0) + 1

    def send(self, *commands: Command, turns: int = 1) -> LiveState:
        """Send commands, then run a number of turns."""
        self.player.run_once(
            [CommandEnvelope(next(self._numbers), command) for command in commands]
        )
        for _ in range(turns - 1):
            self.player.run_once([])
        state = self.seen["state"]
        assert isinstance(state, LiveState)
        return state


def test_a_view_that_a_later_one_replaced_is_pushed_before_the_worker_is_killed() -> None:
    watched = Watched(tick=100_000_000)
    watched.send(SetPanes(cells=1), RunSteps(), turns=4)
    assert watched.counts["trace"] > 1
    while watched.player.push_completed():
        pass
    late = {value.view.index for topic, value in watched.seen.items() if topic.startswith("late ")}
    assert {*late, watched.seen["trace"].index} == set(range(watched.player.session.last + 1))


def test_running_call_is_recorded_from_its_own_beginning() -> None:
    record, seen = ActivityRecord(), list[tuple[str, int]]()
    begins: list[float] = []

    class Asks(Transform):
        def _step(
            self, tensordict: TensorDictBase, next_tensordict: TensorDictBase
        ) -> TensorDictBase:
            activity = record.read()
            assert activity is not None
            seen.append((activity.text, activity.steps))
            begins.append(time.monotonic() - activity.seconds)
            return next_tensordict

    env = pendulum(StepCounter(), Asks())
    player = LivePlayer(env, PENDULUM, lambda topic, value: None, activity=record)
    commanded = time.monotonic()
    player.run_once([CommandEnvelope(1, RunSteps(3))])
    player.run_once([])
    player.run_once([])
    assert seen == [(f"stage 1 Asks of step {step + 1}", step) for step in range(3)]
    assert commanded < begins[0] < begins[1] < begins[2]
    assert record.read() is None


def test_paused_player_has_nothing_to_do_until_the_next_command() -> None:
    player = LivePlayer(pendulum(), PENDULUM, lambda topic, value: None)
    assert player.run_once([CommandEnvelope(1, RunSteps(2))]) is not None
    while player.is_running:
        player.run_once([])
    assert player.run_once([]) is None


def test_policy_and_env_of_another_library_are_recorded() -> None:
    record, seen = ActivityRecord(), list[str]()

    class Asks(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            activity = record.read()
            assert activity is not None
            seen.append(activity.text)
            return super().step(action)

    env = StackEnv(open_stack(Asks(gymnasium.make("CartPole-v1"))))
    player = LivePlayer(env, PENDULUM, lambda topic, value: None, activity=record)
    player.run_once([CommandEnvelope(1, RunSteps(2))])
    player.run_once([])
    assert seen == ["env.step of step 1", "env.step of step 2"]
    assert record.read() is None


def test_only_the_state_is_sent_while_the_tab_is_hidden() -> None:
    watched = Watched()
    watched.send(RunSteps(steps=5), turns=20)
    assert set(watched.seen) == {"info", "state"}
    watched.send(SetPanes(plots=("reward",), cells=1, episodes=5))
    assert {"trace", "cells", "plots", "episodes"} <= set(watched.seen)


@exhaustive
def test_views_are_throttled_at_full_speed() -> None:
    watched = Watched(tick=100_000)
    watched.send(SetPanes(cells=1))
    sent = watched.counts["trace"]
    watched.send(RunSteps(steps=400), turns=500)
    assert watched.player.session.tracer.steps == 400
    assert watched.counts["trace"] - sent < 40
    assert watched.seen["trace"].index == watched.player.session.last


def test_requested_steps_add_up() -> None:
    watched = Watched()
    watched.send(RunSteps(steps=1), RunSteps(steps=1), RunSteps(steps=3), turns=20)
    assert watched.send().steps == 5
    # A run without end or until a condition replaces the remaining steps.
    watched.send(RunSteps(steps=100), RunSteps(steps=2, until="reward > 0"), turns=20)
    assert watched.send().steps == 7


def test_rate_is_kept() -> None:
    watched = Watched()
    watched.send(SetRate(20), RunSteps(), turns=300)
    clock = watched.player._clock
    start, steps = clock(), watched.player.session.tracer.steps
    watched.send(turns=500)
    rate = (watched.player.session.tracer.steps - steps) / (clock() - start)
    assert rate == pytest.approx(20, rel=0.1)


def test_commands_are_executed() -> None:
    watched = Watched()
    state = watched.send(Reset(seed=3), RunSteps(steps=2), turns=10)
    assert (state.last_command, state.steps, state.status) == (2, 2, "paused")
    assert watched.send(ShowTrace(1)).shown == 1
    assert watched.send(SetActionSource("zero")).action_source == "zero"
    refused = watched.send(SetActionSource("no.such:Thing"))
    assert refused.problem is not None
    assert refused.action_source == "zero"


def test_plot_of_a_missing_key_is_omitted() -> None:
    watched = Watched()
    state = watched.send(
        SetPanes(plots=("nothing", "reward"), cells=1), RunSteps(steps=3), turns=10
    )
    assert [each.name for each in watched.seen["plots"]] == ["reward"]
    assert state.problem is None
    assert state.steps == 3


def test_late_error_stops_the_run_and_keeps_the_history() -> None:
    watched = Watched(At(60, raises))
    watched.send(SetPanes(cells=1))
    state = watched.send(RunSteps(), turns=80)
    assert state.status == "paused"
    assert state.problem is not None
    assert (state.problem.where.stage, state.problem.where.transform) == (1, "At")
    assert "step 60" in state.problem.message
    assert state.problem_traces == (state.last,)
    assert watched.seen["trace"].error is not None
    assert watched.send(ShowTrace(5)).shown == 5


def test_session_ends_when_it_is_cancelled() -> None:
    pushed: list[str] = []

    def push(topic: str, value: Any) -> None:
        pushed.append(topic)
        if len(pushed) > 3:
            job.cancel()

    job = Job(push, {})
    request = RunSession(Pipeline.of("Pendulum-v1"), is_running=True, rate=None)
    job.send(CommandEnvelope(1, SetPanes(cells=1)))
    run_session(request, job)
    assert pushed[0] == "info"
    assert "trace" in pushed


def test_steps_since_the_reset_are_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the message has a relative path if that is shorter
    watched = Watched(RewardSum())
    assert "no steps since the reset" in watched.send(DumpSteps(str(tmp_path / "none"))).message
    watched.send(RunSteps(steps=5), turns=20)
    watched.send(Reset())
    watched.send(RunSteps(steps=60), turns=90)  # an episode has 50
    folder = tmp_path / "live"
    assert watched.send(DumpSteps(str(folder))).message == "dumped 60 steps to live"
    assert "already has a dump" in watched.send(DumpSteps(str(folder))).message
    dump = open_dump(folder)
    assert verify(folder).problems == ()
    assert [episode.length for episode in dump.manifest.episodes] == [50, 10]
    sums = dump.data["next", "reward"][:50].cumsum(0)
    torch.testing.assert_close(dump.data["next", "episode_reward"][:50], sums)
    last = watched.player.session.history[-1].tensordict
    assert bool((dump.data[-1] == last).all())
    assert (dump.manifest.policy, dump.manifest.seed) == ("live", 0)
