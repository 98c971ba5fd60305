"""Stop conditions of traced runs, and their reasons."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from tdx import (
    ArgumentError,
    Bounded,
    Compose,
    Composite,
    FrameSkipTransform,
    GymEnv,
    KeyNotFoundError,
    PendulumEnv,
    RewardClipping,
    RewardScaling,
    StepCounter,
    StepTrace,
    Tracer,
    Transform,
    TransformedEnv,
)
from tdx.core.tracing import (
    AllOf,
    AnyOf,
    Done,
    KeyIs,
    NotFinite,
    OutOfSpec,
    Seconds,
    Steps,
    Stop,
    StopReason,
    Truncated,
    parse_stop,
)
from tests.core.test_traced import Clock
from tests.envs.mocks import CountingEnv, TwoGroupsEnv
from tests.inspection.live.stages import Ragged


class Spoils(Transform):
    """Stage that replaces the reward of one step."""

    def __init__(self, at: int, number: float) -> None:
        super().__init__(in_keys=["reward"])
        self.at, self.number, self.steps = at, number, 0

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return torch.full_like(tensor, self.number) if self.steps > self.at else tensor


class Promises(Transform):
    """Stage that violates its declared bounds."""

    def __init__(self) -> None:
        super().__init__(in_keys=["observation"])

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        result = observation_spec.clone()
        result["observation"] = Bounded(0, 2, result["observation"].shape, dtype=torch.int64)
        return result


def test_steps_count_steps_and_not_resets() -> None:
    tracer = Tracer(CountingEnv(2))
    run = tracer.run(5)
    assert (run.steps, run.traces, run.reason.message) == (5, 8, "5 steps made")
    assert (tracer.run(1).steps, tracer.run(1).reason.message) == (1, "1 step made")


def test_done_flags_name_their_writer() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(3))
    run = Tracer(env).run(until=Done())
    assert (run.steps, run.reason.condition, run.reason.message) == (3, "Done", "done is set")
    assert run.reason.by is not None
    assert run.reason.by.place == "0 StepCounter"
    assert Tracer(env).run(until=Truncated()).steps == 3
    assert Tracer(env).run(7, until="terminated").reason.message == "7 steps made"
    assert Tracer(TwoGroupsEnv()).run(until=Done()).reason.key == ("a", "done")


@pytest.mark.parametrize(("number", "what"), [(float("nan"), "nan"), (-float("inf"), "inf")])
def test_non_finite_value_is_attributed_to_its_first_stage(number: float, what: str) -> None:
    chain = Compose(RewardScaling(0.0, 2.0), Spoils(2, number), RewardScaling(0.0, 2.0))
    env = TransformedEnv(CountingEnv(99), chain)
    run = Tracer(env).run(50, until=NotFinite())
    assert (run.steps, run.reason.step, run.reason.key) == (3, 2, "reward")
    assert run.reason.message == f"reward@2 holds {what}, written by 1 Spoils"


def test_spec_violation_is_attributed_to_its_stage() -> None:
    env = TransformedEnv(CountingEnv(99), RewardClipping(-1.0, 1.0))
    env.append_transform(Spoils(1, 7.0))
    env.append_transform(RewardScaling(0.0, 1.0))
    run = Tracer(env).run(50, until=OutOfSpec())
    assert run.steps == 2
    assert run.reason.by is not None
    assert run.reason.by.place == "1 Spoils"
    assert run.reason.message == (
        "1 Spoils, key 'reward': it holds 7 after a step, outside [-1, 1]"
    )


def test_existing_value_is_checked_against_an_unwritten_spec() -> None:
    env = TransformedEnv(CountingEnv(99), Compose(FrameSkipTransform(1), Promises()))
    reason = Tracer(env).run(50, until=OutOfSpec()).reason
    assert reason.step == 2
    assert reason.message == (
        "1 Promises, key 'observation': it holds 3 after a step, outside [0, 2]"
    )


def test_violations_of_env_and_caller_have_no_stage() -> None:
    class WrongRewards(CountingEnv):
        def __init__(self) -> None:
            super().__init__(99)
            self.reward_spec = Bounded(-0.1, 0.1, (1,))

    env = TransformedEnv(WrongRewards(), RewardScaling(0.0, 2.0))
    tracer = Tracer(env, lambda tensordict: tensordict.set("action", torch.ones(2)))
    reason = tracer.run(5, until="spec").reason
    assert (
        reason.message == "WrongRewards, key 'reward': it holds 2 after a step, outside [-0.1, 0.1]"
    )
    tracer = Tracer(env, lambda tensordict: tensordict.set("action", torch.full((2,), 3.0)))
    reason = tracer.run(5, until="spec").reason
    assert reason.message == "<lambda>, key 'action': it holds 3 after the inverse, outside [-1, 1]"


def test_a_correct_chain_has_no_violations() -> None:
    env = TransformedEnv(PendulumEnv(batch_size=[3]), StepCounter(4))
    assert Tracer(env).run(9, until=OutOfSpec() | NotFinite()).reason.condition == "Steps"


def test_a_condition_on_a_key() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
    run = Tracer(env).run(50, until="step_count >= 4")
    assert (run.steps, run.reason.message) == (4, "step_count is 4, step_count >= 4")
    assert run.reason.by is not None
    assert run.reason.by.place == "0 StepCounter"
    assert Tracer(TwoGroupsEnv()).run(50, until="a.done == 1").steps == 2
    with pytest.raises(KeyNotFoundError, match="did you mean step_count"):
        Tracer(env).run(50, until="stepcount > 4")


@pytest.mark.parametrize(
    ("text", "key", "op", "number"),
    [
        ("reward > 0.5", "reward", ">", 0.5),
        (" agents.reward<=-1e-3 ", ("agents", "reward"), "<=", -0.001),
        ("a!=.5", "a", "!=", 0.5),
        ("a == -inf", "a", "==", -float("inf")),
    ],
)
def test_conditions_are_parsed(text: str, key: Any, op: str, number: float) -> None:
    stop = KeyIs.parse(text)
    assert (stop.key, stop.op, stop.number) == (key, op, number)


@pytest.mark.parametrize(
    "text",
    [
        "reward >",
        "> 1",
        "reward = 1",
        "reward > x",
        "a..b > 1",
        "reward > __import__('os')",
        "a>1 b>2",
    ],
)
def test_invalid_condition_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="write a key, a comparison and a number"):
        KeyIs.parse(text)


def test_keywords_and_comparisons_combine() -> None:
    stop = parse_stop("truncated or nan or reward > 3")
    assert isinstance(stop, AnyOf)
    assert [type(each) for each in stop.stops] == [Truncated, NotFinite, KeyIs]
    with pytest.raises(ArgumentError, match="did you mean truncated"):
        parse_stop("truncatd")
    with pytest.raises(ArgumentError, match=r"'reward > 0\.5'"):
        parse_stop("")


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("reward > 1 and", "missing condition after 'and'", "such as 'reward > 0.5 and"),
        ("or done", "missing condition before 'or'", "such as"),
        ("done and or nan", "missing condition after 'and'", "such as"),
        ("(done or nan", "unmatched opening parenthesis in '(done or nan'", ""),
        ("done) or nan", "unmatched closing parenthesis in 'done) or nan'", ""),
        ("(done) nan", "expected 'and' or 'or' before 'nan'", "'and' or 'or'"),
        ("reward > 1 and dnoe", "unknown stop condition 'dnoe'", "did you mean done?"),
        ("__import__('os')", "unknown stop condition '__import__'", ""),
    ],
)
def test_unparsable_conditions(text: str, said: str, hint: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        parse_stop(text)
    assert said in raised.value.message
    assert "\n" not in raised.value.message
    assert hint in (raised.value.hint or "")


def test_precedence_of_conditions() -> None:
    stop = parse_stop("done or reward > 3 and nan")
    assert isinstance(stop, AnyOf)
    assert [type(each) for each in stop.stops] == [Done, AllOf]
    stop = parse_stop("(done or band.and > 3) and nan")
    assert isinstance(stop, AllOf)
    assert [type(each) for each in stop.stops] == [AnyOf, NotFinite]


def test_combined_condition_holds_in_a_single_row() -> None:
    def run(text: str) -> str:
        return Tracer(Ragged((2, 5))).run(9, until=text).reason.message

    # The second env has ten times the reward of the first.
    assert (
        run("count >= 2 and reward < 25") == "count is 2, count >= 2 and reward is 2, reward < 25"
    )
    assert run("reward > 15 and count <= 1") == "9 steps made"
    assert (
        run("reward > 15 and count <= 2") == "reward is 20, reward > 15 and count is 2, count <= 2"
    )
    assert run("terminated and (reward > 45 or nan)").startswith(
        "terminated is set and reward is 50"
    )


def test_conditions_are_joined() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(3))
    run = Tracer(env).run(until=Done() & KeyIs("step_count", ">", 2))
    assert run.reason.message == "done is set and step_count is 3, step_count > 2"
    assert isinstance(Done() | Steps(2), AnyOf)
    assert isinstance(Done() & Steps(2), AllOf)
    assert Tracer(env).run(until=Done() | Steps(2)).reason.message == "2 steps made"


def test_time_limit() -> None:
    clock = Clock()

    def slow(trace: StepTrace) -> None:
        clock.now += 10**9

    run = Tracer(CountingEnv(99), clock=clock).run(until=Seconds(2.5), on_step=slow)
    assert (run.traces, run.reason.message) == (3, "2.5 s have passed")
    with pytest.raises(ArgumentError, match="seconds must be above 0"):
        Seconds(0)
    with pytest.raises(ArgumentError, match="steps must be at least 1"):
        Tracer(CountingEnv()).run(0)


def test_a_run_is_cancelled_from_another_thread() -> None:
    tracer, going = Tracer(CountingEnv(9)), threading.Event()

    def on_step(trace: StepTrace) -> None:
        if trace.step == 3:
            going.set()

    def cancels() -> None:
        assert going.wait(300)
        tracer.cancel()

    thread = threading.Thread(target=cancels)
    thread.start()
    run = tracer.run(on_step=on_step)
    thread.join()
    assert run.reason.message == "cancelled"
    assert run.steps >= 3
    tracer.cancel()
    assert (tracer.run(5).steps, tracer.run(5).steps) == (0, 5)


def test_custom_condition() -> None:
    class Even(Stop):
        def check(self, trace: StepTrace) -> StopReason | None:
            return self._reason(trace, "even") if trace.step and trace.step % 2 == 0 else None

    assert Tracer(CountingEnv(9)).run(until=Even()).reason == StopReason("Even", "even", 2)
