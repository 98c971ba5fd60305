"""Interactive stepping: history, episodes, plots, actions."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tdx import CartPoleEnv, PendulumEnv, StepCounter
from tdx.foundation.errors import ArgumentError, KeyNotFoundError
from tdx.inspection.live.actions import action_fields, build_action
from tdx.inspection.live.histories import SeriesBuffer, build_plot
from tdx.inspection.live.session import LiveSession
from tdx.inspection.live.stack_env import StackEnv
from tdx.inspection.pipeline_report import summarize_rollout
from tdx.specs import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, Unbounded
from tdx.stacks import open_stack
from tdx.tui.live.values import build_value_lines
from tests.inspection.live.stages import At, Ragged, Team, pendulum, raises, writes_nan
from tests.programs import exhaustive


def advance(session: LiveSession, traces: int) -> LiveSession:
    for _ in range(traces):
        session.advance()
    return session


def test_session_resets_automatically() -> None:
    session = advance(LiveSession(pendulum(StepCounter(3))), 9)
    assert [(each.steps, each.end) for each in session.episodes()] == [
        *((3, "truncated"), (3, "truncated"), (0, "")),
    ]
    assert [each.first for each in session.episodes()] == [0, 4, 8]


class _TerminatedAtTheLimit(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, True, True, {}


def test_episode_that_is_terminated_at_the_limit_is_terminated() -> None:
    stack = open_stack(_TerminatedAtTheLimit())
    session = advance(LiveSession(StackEnv(stack)), 2)
    assert session.episodes()[0].end == "terminated"
    assert [episode.ended for episode in summarize_rollout(stack, 2, 0).episodes] == [
        "terminated"
    ] * 2


@exhaustive
def test_values_that_a_stage_changes_in_other_steps_stay_in_view() -> None:
    class ClipsActions(gymnasium.ActionWrapper[Any, Any, Any]):
        def action(self, action: Any) -> Any:
            return action.clip(-1, 1)

    class ClipsSome(gymnasium.RewardWrapper[Any, Any]):
        def reward(self, reward: Any) -> float:
            return max(float(reward), -6.0)

    wrapped = ClipsSome(ClipsActions(gymnasium.make("Pendulum-v1")))
    session = LiveSession(StackEnv(open_stack(wrapped)))
    session.reset(seed=0)
    actions, rewards = [], []
    for _ in range(60):
        trace = session.advance()
        actions.append(float(trace.tensordict["action"]))
        rewards.append(float(trace.version("reward@0").value))
    clips = {
        "4 ClipsSome": ("reward", [reward < -6 for reward in rewards]),
        "3 ClipsActions": ("action", [abs(action) > 1 for action in actions]),
    }
    for step in range(60):
        view = session.view(step + 1)
        for place in view.places:
            if place.title in clips and place.changes:
                key, is_clipped = clips[place.title]
                assert place.changes == ((key, sum(is_clipped), 60),)
                shown = place.written if is_clipped[step] else place.passed
                assert [view.values[at].key for at in shown] == [key]
        assert {place.title for place in view.places if place.changes} == set(clips)
        lines = ["".join(part for part, _ in line.line) for line in build_value_lines(view, 120)]
        assert any(
            "reward@" in line and f"{sum(clips['4 ClipsSome'][1])}/60" in line for line in lines
        )


def test_episodes_of_each_env_of_a_batch() -> None:
    session = advance(LiveSession(Ragged((2, 3))), 6)
    second = session.episodes(row=1)
    assert [(each.row, each.number, each.end) for each in second][:1] == [(1, 0, "terminated")]
    assert second[0].total == 10 + 20 + 30
    assert {each.row for each in session.cells()} == {0, 1}


def test_agent_that_ends_does_not_end_the_episode_of_its_env() -> None:
    session = LiveSession(Team())
    while sum(trace.phase == "step" for trace in session.history) < 9:
        session.advance()
    lengths = [episode.steps for episode in session.episodes()]
    assert lengths == [4, 4, 1]
    report = summarize_rollout(open_stack(Team()), 9, 0)
    assert [episode.steps for episode in report.episodes][:2] == lengths[:2]


def test_reset_of_all_envs_ends_the_episodes_of_those_that_are_not_done() -> None:
    session = advance(LiveSession(Ragged((2, 3))), 3)
    session.reset()
    assert [(episode.row, episode.number, episode.end) for episode in session.episodes()] == [
        *((0, 0, "terminated"), (1, 0, "reset"), (0, 1, ""), (1, 1, "")),
    ]


def test_manual_reset_ends_the_episode() -> None:
    session = advance(LiveSession(pendulum()), 3)
    session.reset(seed=0)
    assert [(each.steps, each.end) for each in session.episodes()] == [(2, "reset"), (0, "")]


@exhaustive
def test_history_is_bounded() -> None:
    env = pendulum(StepCounter(4), At(2, writes_nan))
    session = advance(LiveSession(env, max_traces=20), 200)
    assert len(session.history) == 20
    assert (session.first, session.last) == (180, 199)
    assert not session.problems
    assert all(each.last >= 180 for each in session.episodes())
    assert session.view(3).index == 180
    plot = session.plot("reward")
    assert (plot.first, plot.last) == (180, 199)


def test_plots_of_rewards_keys_and_elements() -> None:
    session = advance(LiveSession(pendulum(StepCounter(4))), 8)
    assert session.plot("step_count").high == (0, 1, 2, 3, 4, 0, 1, 2)
    assert session.plot("reward").high[0] is None
    returns = session.plot("return").high
    rewards = session.plot("reward").high
    assert returns[2] == pytest.approx(rewards[1] + rewards[2])  # type: ignore[operator]
    session.advance()
    assert session.plot("step_count").latest == 3
    element = session.plot("observation[1]").latest
    assert session.tracer.last is not None
    assert element == session.tracer.last.env_tensordict["observation"][1].item()
    assert "observation[2]" in session.plot_names()
    with pytest.raises(KeyNotFoundError, match="unknown key 'observatoin'") as raised:
        session.plot("observatoin")
    assert "observation" in str(raised.value.hint)


def test_latest_number_of_a_plot_is_nan_if_the_latest_value_is() -> None:
    session = advance(LiveSession(pendulum(StepCounter(3), At(2, writes_nan))), 4)
    for name in ("reward", "return"):
        latest = session.plot(name).latest
        assert latest is not None
        assert math.isnan(latest), name
    assert session.plot("step_count").latest == 3
    session.advance()
    # A reset has no reward, so that the header shows that of the step before it.
    assert session.tracer.last is not None
    assert session.tracer.last.phase == "reset"
    latest = session.plot("reward").latest
    assert latest is not None
    assert math.isnan(latest)
    assert session.plot("step_count").latest == 0
    session.advance()
    latest = session.plot("reward").latest
    assert latest is not None
    assert math.isfinite(latest)


def test_plot_of_one_row() -> None:
    session = advance(LiveSession(Ragged()), 3)
    assert session.plot("reward", row=1).latest == 20
    assert session.plot("count", row=0).latest == 2
    assert session.plot("count").latest == 2


def test_window_selects_traces() -> None:
    numbers = np.arange(100, dtype=np.float32)
    plot = build_plot("x", 50, numbers, parts=5, window=(140, 149))
    assert (plot.first, plot.last, plot.low[0], plot.high[-1]) == (140, 149, 90, 99)


def test_buffer_drops_the_oldest_rows() -> None:
    buffer = SeriesBuffer(4)
    for number in range(10):
        buffer.append(float(number))
    first, numbers = buffer.column(0)
    assert (first, numbers.tolist()) == (6, [6, 7, 8, 9])
    assert buffer.at(7) == 7
    assert math.isnan(buffer.at(2))
    assert buffer.nbytes == 16


def test_session_continues_after_an_error() -> None:
    session = advance(LiveSession(pendulum(StepCounter(50), At(2, raises))), 3)
    with pytest.raises(Exception, match="out of order"):
        session.advance()
    assert session.view().error is not None
    assert session.view(2).error is None
    assert list(session.problems) == [3]
    session.reset()
    assert session.advance().error is None


def test_stop_condition() -> None:
    session = LiveSession(pendulum(StepCounter(10)))
    session.set_stop("step_count >= 2")
    reasons = [session.stop_reason(session.advance()) for _ in range(3)]
    assert reasons[:2] == [None, None]
    assert reasons[2] == "step_count is 2, step_count >= 2"
    session.set_stop(None)
    assert session.stop_reason(session.advance()) is None


def test_stop_condition_with_an_unknown_key_is_refused() -> None:
    session = LiveSession(pendulum(StepCounter(10)))
    with pytest.raises(KeyNotFoundError, match="'step_coutn'") as raised:
        session.set_stop("reward > 3 and step_coutn >= 2")
    assert raised.value.hint == "did you mean step_count?"
    session.set_stop("reward < 3 and step_count >= 2")
    reasons = [session.stop_reason(session.advance()) for _ in range(3)]
    assert reasons[:2] == [None, None]
    assert str(reasons[2]).endswith("and step_count is 2, step_count >= 2")
    with pytest.raises(ArgumentError, match="unknown stop condition"):
        session.set_stop("dome")


def test_session_without_traces() -> None:
    session = LiveSession(PendulumEnv())
    assert (session.first, session.last, session.episodes()) == (0, -1, ())
    assert session.plot("reward").high == ()
    with pytest.raises(ArgumentError, match="no traces"):
        session.view()


def test_change_of_policy() -> None:
    session = advance(LiveSession(PendulumEnv()), 2)
    session.tracer.follow(lambda tensordict: tensordict.set("action", torch.tensor([1.5])))
    trace = session.advance()
    assert trace.version("action", "inverse").value.item() == 1.5
    session.tracer.follow(None)
    assert session.advance().stages[0].name == "random"


class ManyActions(PendulumEnv):
    """Pendulum with all kinds of action specs."""

    def __init__(self) -> None:
        super().__init__()
        self.action_spec = Composite(
            bounded=Bounded([-1.0, 0.0], [1.0, 5.0]),
            wide=Unbounded((1,)),
            choice=Categorical(4),
            one=OneHot(3),
            several=MultiCategorical([2, 5]),
            bits=Binary(2),
        )


def test_fields_of_every_kind_of_spec() -> None:
    fields = {field.name: field for field in action_fields(ManyActions())}
    assert (fields["bounded[1]"].low, fields["bounded[1]"].high) == (0.0, 5.0)
    assert fields["bounded[1]"].kind == "slider"
    assert math.isfinite(fields["wide[0]"].high)
    kinds = {name: (field.kind, field.high) for name, field in fields.items()}
    assert kinds["choice[0]"] == ("choice", 3)
    assert kinds["one[0]"] == ("choice", 2)
    assert kinds["several[1]"] == ("choice", 4)
    assert kinds["bits[1]"] == ("choice", 1)


def test_action_is_within_the_spec() -> None:
    env = ManyActions()
    selected = {("one", 0): 2.0, ("several", 1): 4.0, ("bounded", 1): 2.5, ("bits", 0): 1.0}
    action = build_action(env, selected)
    assert env.full_action_spec.is_in(action)
    assert action["one"].tolist() == [False, False, True]
    assert action["several"].tolist() == [0, 4]
    assert action["bounded"].tolist() == [0, 2.5]
    assert action["bits"].tolist() == [1, 0]


@pytest.mark.parametrize("env", [Ragged(), CartPoleEnv(batch_size=[4])], ids=["rows", "cartpole"])
def test_action_applies_to_every_env_of_a_batch(env: Ragged) -> None:
    session = LiveSession(env)
    [field] = action_fields(env)
    session.reset()
    trace = session.advance(build_action(env, {(field.key, 0): 1.0}))
    action = trace.tensordict["action"]
    assert action.shape == env.action_spec.shape
    assert len({str(row.tolist()) for row in action}) == 1
