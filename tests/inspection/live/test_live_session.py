"""Stepping while somebody looks: history, episodes, curves, actions by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tdx import CartPoleEnv, PendulumEnv, StepCounter
from tdx.errors import ArgumentError, KeyNotFoundError
from tdx.inspection.live.actions import action_fields, build_action
from tdx.inspection.live.plots import SeriesBuffer, build_plot
from tdx.inspection.live.session import LiveSession
from tdx.specs import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, Unbounded
from tests.inspection.live.stages import At, Ragged, pendulum, raises, writes_nan


def advanced(session: LiveSession, traces: int) -> LiveSession:
    for _ in range(traces):
        session.advance()
    return session


def test_session_resets_by_itself_and_counts_episodes() -> None:
    session = advanced(LiveSession(pendulum(StepCounter(3))), 9)
    assert [(each.steps, each.end) for each in session.episodes()] == [
        *((3, "truncated"), (3, "truncated"), (0, "")),
    ]
    assert [each.first for each in session.episodes()] == [0, 4, 8]


def test_episodes_of_each_env_of_a_batch() -> None:
    session = advanced(LiveSession(Ragged((2, 3))), 6)
    second = session.episodes(row=1)
    assert [(each.row, each.number, each.end) for each in second][:1] == [(1, 0, "terminated")]
    assert second[0].total == 10 + 20 + 30
    assert {each.row for each in session.cells()} == {0, 1}


def test_reset_by_hand_ends_the_episode() -> None:
    session = advanced(LiveSession(pendulum()), 3)
    session.reset(seed=0)
    assert [(each.steps, each.end) for each in session.episodes()] == [(2, "reset"), (0, "")]


def test_history_is_bounded_and_what_is_forgotten_is_gone_everywhere() -> None:
    env = pendulum(StepCounter(4), At(2, writes_nan))
    session = advanced(LiveSession(env, max_traces=20), 200)
    assert len(session.history) == 20
    assert (session.first, session.last) == (180, 199)
    assert not session.problems
    assert all(each.last >= 180 for each in session.episodes())
    assert session.view(3).index == 180
    drawn = session.plot("reward")
    assert (drawn.first, drawn.last) == (180, 199)


def test_curves_of_rewards_keys_and_elements() -> None:
    session = advanced(LiveSession(pendulum(StepCounter(4))), 8)
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
    with pytest.raises(KeyNotFoundError, match="no key 'observatoin'") as raised:
        session.plot("observatoin")
    assert "observation" in str(raised.value.hint)


def test_curve_of_one_env_in_focus() -> None:
    session = advanced(LiveSession(Ragged()), 3)
    assert session.plot("reward", row=1).latest == 20
    assert session.plot("count", row=0).latest == 2
    assert session.plot("count").latest == 2


def test_window_shows_the_latest_traces_only() -> None:
    numbers = np.arange(100, dtype=np.float32)
    drawn = build_plot("x", 50, numbers, parts=5, window=(140, 149))
    assert (drawn.first, drawn.last, drawn.low[0], drawn.high[-1]) == (140, 149, 90, 99)


def test_track_forgets_the_oldest() -> None:
    track = SeriesBuffer(4)
    for number in range(10):
        track.append(float(number))
    first, numbers = track.column(0)
    assert (first, numbers.tolist()) == (6, [6, 7, 8, 9])
    assert track.at(7) == 7
    assert math.isnan(track.at(2))
    assert track.nbytes == 16


def test_error_leaves_the_history_and_a_reset_goes_on() -> None:
    session = advanced(LiveSession(pendulum(StepCounter(50), At(2, raises))), 3)
    with pytest.raises(Exception, match="out of order"):
        session.advance()
    assert session.view().error is not None
    assert session.view(2).error is None
    assert list(session.problems) == [3]
    session.reset()
    assert session.advance().error is None


def test_condition_is_met() -> None:
    session = LiveSession(pendulum(StepCounter(10)))
    session.set_stop("step_count >= 2")
    reasons = [session.stop_reason(session.advance()) for _ in range(3)]
    assert reasons[:2] == [None, None]
    assert reasons[2] == "step_count is 2, step_count >= 2"
    session.set_stop(None)
    assert session.stop_reason(session.advance()) is None


def test_condition_on_a_key_that_is_not_there_is_refused_before_a_step() -> None:
    session = LiveSession(pendulum(StepCounter(10)))
    with pytest.raises(KeyNotFoundError, match="'step_coutn'") as raised:
        session.set_stop("reward > 3 and step_coutn >= 2")
    assert raised.value.hint == "did you mean step_count?"
    session.set_stop("reward < 3 and step_count >= 2")
    reasons = [session.stop_reason(session.advance()) for _ in range(3)]
    assert reasons[:2] == [None, None]
    assert str(reasons[2]).endswith("and step_count is 2, step_count >= 2")
    with pytest.raises(ArgumentError, match="no condition"):
        session.set_stop("dome")


def test_nothing_to_see_before_the_first_trace() -> None:
    session = LiveSession(PendulumEnv())
    assert (session.first, session.last, session.episodes()) == (0, -1, ())
    assert session.plot("reward").high == ()
    with pytest.raises(ArgumentError, match="no trace"):
        session.view()


def test_follow_another_policy() -> None:
    session = advanced(LiveSession(PendulumEnv()), 2)
    session.tracer.follow(lambda tensordict: tensordict.set("action", torch.tensor([1.5])))
    trace = session.advance()
    assert trace.version("action", "inverse").value.item() == 1.5
    session.tracer.follow(None)
    assert session.advance().stages[0].name == "random"


class Acted(PendulumEnv):
    """A pendulum with an action spec of all kinds; it is never stepped."""

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
    fields = {field.name: field for field in action_fields(Acted())}
    assert (fields["bounded[1]"].low, fields["bounded[1]"].high) == (0.0, 5.0)
    assert fields["bounded[1]"].kind == "slider"
    assert math.isfinite(fields["wide[0]"].high)
    kinds = {name: (field.kind, field.high) for name, field in fields.items()}
    assert kinds["choice[0]"] == ("choice", 3)
    assert kinds["one[0]"] == ("choice", 2)
    assert kinds["several[1]"] == ("choice", 4)
    assert kinds["bits[1]"] == ("choice", 1)


def test_action_by_hand_is_in_the_spec() -> None:
    env = Acted()
    chosen = {("one", 0): 2.0, ("several", 1): 4.0, ("bounded", 1): 2.5, ("bits", 0): 1.0}
    action = build_action(env, chosen)
    assert env.full_action_spec.is_in(action)
    assert action["one"].tolist() == [False, False, True]
    assert action["several"].tolist() == [0, 4]
    assert action["bounded"].tolist() == [0, 2.5]
    assert action["bits"].tolist() == [1, 0]


@pytest.mark.parametrize("env", [Ragged(), CartPoleEnv(batch_size=[4])], ids=["rows", "cartpole"])
def test_action_by_hand_is_for_every_env_of_a_batch(env: Ragged) -> None:
    session = LiveSession(env)
    [field] = action_fields(env)
    session.reset()
    trace = session.advance(build_action(env, {(field.key, 0): 1.0}))
    action = trace.tensordict["action"]
    assert action.shape == env.action_spec.shape
    assert len({str(row.tolist()) for row in action}) == 1
