"""Envs without state of their own, which take TensorDicts of any batch size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    ArgumentError,
    CatFrames,
    Compose,
    Composite,
    EnvBase,
    InitTracker,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
    Unbounded,
)


class Adder(EnvBase):
    """Env that adds the action to the observation; its state is in the TensorDict."""

    def __init__(self, locked: bool = False) -> None:
        super().__init__(_batch_locked=locked)
        self.observation_spec = Composite(total=Unbounded((1,)))
        self.state_spec = Composite(total=Unbounded((1,)))
        self.action_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        batch = torch.Size([]) if tensordict is None else tensordict.batch_size
        return TensorDict(total=torch.zeros(*batch, 1), batch_size=batch)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        total = tensordict["total"] + tensordict["action"]
        fields = {"total": total, "reward": total.clone(), "done": total > 2}
        return TensorDict(fields, batch_size=tensordict.batch_size)

    def _set_seed(self, seed: int | None) -> None: ...


def ones(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.ones(*tensordict.batch_size, 1))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_any_batch_size_steps_and_rolls_out(batch: tuple[int, ...]) -> None:
    env = Adder()
    assert not env.batch_locked
    start = env.reset(TensorDict(batch_size=batch))
    assert start["done"].shape == (*batch, 1)
    assert env.rand_action(start)["action"].shape == (*batch, 1)
    rollout = env.rollout(10, ones, auto_reset=False, tensordict=start)
    assert rollout.batch_size == (*batch, 3)
    assert rollout["next", "reward"].shape == (*batch, 3, 1)


def test_rows_are_reset_by_their_mask() -> None:
    env = Adder()
    after = env.step_mdp(env.step(ones(env.reset(TensorDict(batch_size=[3])))))
    after["_reset"] = torch.tensor([[False], [True], [False]])
    assert env.reset(after)["total"].flatten().tolist() == [1.0, 0.0, 1.0]


def test_locked_env_reports_its_batch_size() -> None:
    with pytest.raises(ArgumentError, match="batch size"):
        Adder(locked=True).reset(TensorDict(batch_size=[4]))


def test_a_chain_leaves_the_env_unlocked() -> None:
    env = TransformedEnv(Adder(), StepCounter())
    assert not env.batch_locked


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_running_values_have_the_batch_size_of_the_tensordict(batch: tuple[int, ...]) -> None:
    chain = Compose(
        StepCounter(max_steps=2),
        RewardSum(),
        InitTracker(),
        CatFrames(2, -1, in_keys=["total"], out_keys=["stack"]),
        TensorDictPrimer(hidden=Unbounded((2,))),
    )
    env = TransformedEnv(Adder(), chain)
    start = env.reset(TensorDict(batch_size=batch))
    rollout = env.rollout(5, ones, auto_reset=False, tensordict=start, break_when_any_done=False)
    row = rollout[(0,) * len(batch)]
    assert row["step_count"].flatten().tolist() == [0, 1, 0, 1, 0]
    assert row["next", "truncated"].flatten().tolist() == [False, True, False, True, False]
    assert row["next", "episode_reward"].flatten().tolist() == [1.0, 3.0, 1.0, 3.0, 1.0]
    assert row["is_init"].flatten().tolist() == [True, False, True, False, True]
    assert row["stack"].tolist() == [[0, 0], [0, 1], [0, 0], [0, 1], [0, 0]]
    assert row["hidden"].shape == (5, 2)
    some = env.step_mdp(env.step(ones(env.reset(TensorDict(batch_size=batch)))))
    mask = torch.zeros(*batch, 1, dtype=torch.bool)
    mask.view(-1)[0] = True
    after = env.reset(some.set("_reset", mask))
    counts = after["step_count"].flatten().tolist()
    assert counts == [0] + [1] * (len(counts) - 1)


def test_batch_dims_of_the_env_come_last() -> None:
    class Pair(Adder):
        def __init__(self) -> None:
            EnvBase.__init__(self, batch_size=(2,), _batch_locked=False)
            self.observation_spec = Composite(total=Unbounded((2, 1)), shape=(2,))
            self.action_spec = Unbounded((2, 1))

    env = Pair()
    assert env.reset(TensorDict(batch_size=[3, 2]))["total"].shape == (3, 2, 1)
    with pytest.raises(ArgumentError, match=r"Expected a tensordict with shape \[\*A, \*env"):
        env.reset(TensorDict(batch_size=[4]))
