"""The worker's side of the live tab, without an app."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tdx import RewardSum, StepCounter, open_dump
from tdx.pipeline import Pipeline
from tdx.rollouts import verify
from tdx.tui.backend.job import Job
from tdx.tui.live.player import Player, play
from tdx.tui.live.requests import (
    Act,
    Command,
    Keep,
    LiveState,
    Panes,
    Play,
    Rate,
    Reset,
    Run,
    Show,
    Told,
)
from tests.inspection.live.stages import At, pendulum, raises

PENDULUM = Play(Pipeline.of("Pendulum-v1"), rate=None)


class Watched:
    """A player, and the latest of what it has pushed."""

    def __init__(self, *stages: Any, tick: int = 1_000_000) -> None:
        self.seen: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        clock = itertools.count(0, tick)
        env = pendulum(StepCounter(50), *stages)
        self.player = Player(env, PENDULUM, self._push, clock=lambda: next(clock))
        self._numbers = itertools.count(1)

    def _push(self, topic: str, value: Any) -> None:
        self.seen[topic] = value
        self.counts[topic] = self.counts.get(topic, 0) + 1

    def tell(self, *commands: Command, turns: int = 1) -> LiveState:
        """Tell it something, and let it turn so often."""
        self.player.turn([Told(next(self._numbers), command) for command in commands])
        for _ in range(turns - 1):
            self.player.turn([])
        state = self.seen["state"]
        assert isinstance(state, LiveState)
        return state


def test_nothing_but_the_state_is_sent_while_nobody_looks() -> None:
    watched = Watched()
    watched.tell(Run(steps=5), turns=20)
    assert set(watched.seen) == {"facts", "state"}
    watched.tell(Panes(curves=("reward",), cells=1, episodes=5))
    assert {"view", "cells", "curves", "episodes"} <= set(watched.seen)


def test_views_are_sent_now_and_then_while_it_runs_fast() -> None:
    watched = Watched(tick=100_000)
    watched.tell(Panes(cells=1))
    sent = watched.counts["view"]
    watched.tell(Run(steps=400), turns=500)
    assert watched.player.session.tracer.steps == 400
    assert watched.counts["view"] - sent < 40
    assert watched.seen["view"].index == watched.player.session.last


def test_steps_asked_for_at_once_are_all_made() -> None:
    watched = Watched()
    watched.tell(Run(steps=1), Run(steps=1), Run(steps=3), turns=20)
    assert watched.tell().steps == 5
    # A run without end, and one until a condition, replace what was left.
    watched.tell(Run(steps=100), Run(steps=2, until="reward > 0"), turns=20)
    assert watched.tell().steps == 7


def test_rate_is_kept_by_the_clock() -> None:
    watched = Watched()
    watched.tell(Rate(20), Run(), turns=300)
    clock = watched.player._clock
    begun, steps = clock(), watched.player.session.tracer.steps
    watched.tell(turns=500)
    rate = (watched.player.session.tracer.steps - steps) / (clock() - begun)
    assert rate == pytest.approx(20, rel=0.1)


def test_what_is_told_is_heard() -> None:
    watched = Watched()
    state = watched.tell(Reset(seed=3), Run(steps=2), turns=10)
    assert (state.heard, state.steps, state.doing) == (2, 2, "paused")
    assert watched.tell(Show(1)).shown == 1
    assert watched.tell(Act("zero")).source == "zero"
    refused = watched.tell(Act("no.such:Thing"))
    assert refused.problem is not None
    assert refused.source == "zero"


def test_curve_of_a_key_that_is_not_there_is_left_out() -> None:
    watched = Watched()
    state = watched.tell(Panes(curves=("nothing", "reward"), cells=1), Run(steps=3), turns=10)
    assert [each.name for each in watched.seen["curves"]] == ["reward"]
    assert state.problem is None
    assert state.steps == 3


def test_error_at_a_late_step_ends_the_run_and_keeps_the_history() -> None:
    watched = Watched(At(60, raises))
    watched.tell(Panes(cells=1))
    state = watched.tell(Run(), turns=80)
    assert state.doing == "paused"
    assert state.problem is not None
    assert (state.problem.where.stage, state.problem.where.transform) == (1, "At")
    assert "step 60" in state.problem.message
    assert state.troubled == (state.last,)
    assert watched.seen["view"].error is not None
    assert watched.tell(Show(5)).shown == 5


def test_session_ends_when_it_is_cancelled() -> None:
    pushed: list[str] = []

    def push(topic: str, value: Any) -> None:
        pushed.append(topic)
        if len(pushed) > 3:
            job.cancel()

    job = Job(push, {})
    request = Play(Pipeline.of("Pendulum-v1"), runs=True, rate=None)
    job.tell(Told(1, Panes(cells=1)))
    play(request, job)
    assert pushed[0] == "facts"
    assert "view" in pushed


def test_steps_since_the_reset_are_kept_as_a_dump(tmp_path: Path) -> None:
    watched = Watched(RewardSum())
    assert "no steps since the reset" in watched.tell(Keep(str(tmp_path / "none"))).said
    watched.tell(Run(steps=5), turns=20)
    watched.tell(Reset())
    watched.tell(Run(steps=60), turns=90)  # an episode has 50
    folder = tmp_path / "live"
    assert watched.tell(Keep(str(folder))).said == f"60 steps are in {folder}"
    assert "already has a dump" in watched.tell(Keep(str(folder))).said
    dump = open_dump(folder)
    assert verify(folder).problems == ()
    assert [episode.length for episode in dump.manifest.episodes] == [50, 10]
    sums = dump.data["next", "reward"][:50].cumsum(0)
    torch.testing.assert_close(dump.data["next", "episode_reward"][:50], sums)
    last = watched.player.session.history[-1].tensordict
    assert bool((dump.data[-1] == last).all())
    assert (dump.manifest.policy, dump.manifest.seed) == ("live", 0)
