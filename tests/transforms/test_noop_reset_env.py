"""No-ops after a reset, conditions that end an episode, and batches in another shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    CartPoleEnv,
    CatFrames,
    Compose,
    InitTracker,
    NoopResetEnv,
    ParallelEnv,
    PendulumEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.specs import Categorical, Composite
from tests.envs.mocks import CountingEnv
from tests.inspection.live.stages import Team
from tests.programs import exhaustive
from tests.transforms.envs import RowsEnv

# NoopResetEnv


def noop_counts(env: EnvBase, resets: int) -> list[int]:
    return [int(env.reset()["observation"]) for _ in range(resets)]


def test_the_number_of_noops_is_drawn_for_each_reset() -> None:
    env = TransformedEnv(CountingEnv(stop=100), NoopResetEnv(4))
    assert set(noop_counts(env, 60)) == {1, 2, 3, 4}


def test_the_number_of_noops_can_be_fixed() -> None:
    assert noop_counts(TransformedEnv(CountingEnv(stop=100), NoopResetEnv(4, False)), 3) == [4] * 3
    assert noop_counts(TransformedEnv(CountingEnv(stop=100), NoopResetEnv(0)), 3) == [0] * 3


def test_an_agent_that_is_reset_alone_starts_no_noops() -> None:
    rollout = TransformedEnv(Team(), NoopResetEnv(1)).rollout(6, break_when_any_done=False)
    assert rollout["next", "done"].flatten().tolist() == [False, False, True] * 2


def test_an_env_that_ends_during_noops_is_reset() -> None:
    env = TransformedEnv(CountingEnv(stop=3), NoopResetEnv(7, random=False))
    first = env.reset()
    assert int(first["observation"]) == 7 % 3
    assert not first["done"].any()
    assert env.base_env.resets == 3


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Categorical(3), 0),
        (Composite(a=Composite(action=Categorical(3))), 0),
        (Unbounded((2,)), [0.0, 0.0]),
    ],
)
def test_a_noop_is_the_action_zero(spec: Any, expected: object) -> None:
    given: list[Any] = []

    class Listening(CountingEnv):
        def __init__(self) -> None:
            super().__init__(stop=100)
            self.action_spec = spec

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            given.append(tensordict[self.action_key].tolist())
            return super()._step(TensorDict(action=torch.zeros(2)))

    TransformedEnv(Listening(), NoopResetEnv(2, random=False)).reset()
    assert given == [expected, expected]


def test_earlier_stages_see_steps_and_later_ones_a_reset() -> None:
    env = TransformedEnv(
        CountingEnv(stop=100),
        Compose(
            StepCounter(),
            CatFrames(2, -1, ["observation"], ["stack"]),
            NoopResetEnv(3, random=False),
            StepCounter(step_count_key="mine"),
            InitTracker(),
        ),
    )
    first = env.reset()
    assert [int(first[key]) for key in ("step_count", "mine", "is_init")] == [3, 0, 1]
    assert first["stack"].tolist() == [2, 3]
    after = env.rand_step(first)["next"]
    assert [int(after[key]) for key in ("step_count", "mine", "is_init")] == [4, 1, 0]
    assert after["stack"].tolist() == [3, 4]
    check_env_specs(env)


def counting() -> EnvBase:
    return CountingEnv(stop=5)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
@exhaustive
def test_each_row_of_a_batch_has_its_own_noops(batch: Callable[..., Any]) -> None:
    base = batch(4, counting)
    env = TransformedEnv(base, NoopResetEnv(12))
    try:
        counts = torch.stack([env.reset()["observation"].flatten() for _ in range(10)])
        assert counts.unique().tolist() == [0, 1, 2, 3, 4]
        assert not counts.eq(counts[:, :1]).all()
        for _ in range(5):
            before = env.reset()
            mask = torch.tensor([[True], [False], [True], [False]])
            after = env.reset(before.clone().set("_reset", mask))
            assert after["observation"][1::2].equal(before["observation"][1::2])
            following = env.rand_step(after.clone())["next", "observation"]
            assert following.equal(after["observation"] + 1)
    finally:
        env.close()


@pytest.mark.parametrize("make", [PendulumEnv, CartPoleEnv])
def test_rows_of_a_native_env(make: Callable[..., Any]) -> None:
    base = make(batch_size=[6])
    env = TransformedEnv(base, NoopResetEnv(5))
    before = env.reset()
    assert base.elapsed_steps.unique().numel() > 1
    assert base.elapsed_steps.max() <= 5
    elapsed, state = base.elapsed_steps, base.state
    mask = torch.tensor([[True], [False]] * 3)
    after = env.reset(before.clone().set("_reset", mask))
    assert base.elapsed_steps[1::2].equal(elapsed[1::2])
    assert base.state[1::2].equal(state[1::2])
    assert after["observation"][1::2].equal(before["observation"][1::2])
    assert not after["observation"][::2].equal(before["observation"][::2])


def test_batch_without_partial_steps_is_refused() -> None:
    with pytest.raises(ChainError, match="RowsEnv, upstream of it, cannot step some rows"):
        TransformedEnv(RowsEnv((4,)), NoopResetEnv()).reset()
    env = TransformedEnv(PendulumEnv(batch_size=[4]), Compose(StepCounter(), NoopResetEnv()))
    with pytest.raises(ChainError, match="StepCounter, upstream") as caught:
        env.reset()
    assert caught.value.where.stage == 1


@pytest.mark.parametrize("noops", [-1, 2.5, True])
def test_invalid_number_of_noops(noops: Any) -> None:
    with pytest.raises(ArgumentError, match="noops must be an integer of at least 0"):
        NoopResetEnv(noops)
