"""Envs that start the next episode themselves."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    AutoResetEnv,
    AutoResetTransform,
    Categorical,
    Compose,
    Composite,
    EnvBase,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, ChainError, StoredDataError


class SelfResetting(EnvBase):
    """Env that counts to ``length``; the next step returns the first count, 0."""

    def __init__(self, length: int = 3, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=batch_size)
        shape = (*batch_size, 1)
        self.observation_spec = Composite(
            count=Unbounded(shape), number=Unbounded(shape, dtype=torch.int64), shape=batch_size
        )
        self.action_spec = Unbounded(shape)
        self.length, self.resets = length, 0
        self.count = torch.zeros(shape)

    def _observed(self) -> dict[str, Any]:
        return {"count": self.count.clone(), "number": self.count.long()}

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.resets += 1
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.count[... if mask is None else mask] = 0
        return TensorDict(self._observed(), self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count = self.count + 1 + tensordict["action"]
        done = self.count >= self.length
        self.count[done] = 0
        fields = {"reward": torch.ones(*self.batch_size, 1), "done": done}
        return TensorDict(self._observed() | fields, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        return None


class Agents(EnvBase):
    """Env with two agents that end after 2 and 3 steps, in a group with its own flags."""

    def __init__(self) -> None:
        super().__init__()
        agents = Composite(count=Unbounded((2, 1)), shape=(2,))
        self.observation_spec = Composite(agents=agents)
        self.action_spec = Composite(agents=Composite(action=Unbounded((2, 1)), shape=(2,)))
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1)), shape=(2,)))
        flag = Categorical(2, shape=(2, 1), dtype=torch.bool)
        self.done_spec = Composite(agents=Composite(done=flag, shape=(2,)))
        self.count = torch.zeros(2, 1)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count = torch.zeros(2, 1)
        return TensorDict(agents=TensorDict(count=self.count.clone(), batch_size=[2]))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count = self.count + 1
        done = self.count >= torch.tensor([[2.0], [3.0]])
        self.count[done] = 0
        agents = {"count": self.count.clone(), "reward": torch.ones(2, 1), "done": done}
        return TensorDict(agents=TensorDict(agents, batch_size=[2]))

    def _set_seed(self, seed: int | None) -> None:
        return None


class Team(Agents):
    """The agents with a flag at the root: they start again when the last of them has ended."""

    def __init__(self) -> None:
        super().__init__()
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self.done_spec = Composite(agents=self.full_done_spec["agents"], done=flag)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count = self.count + 1
        done = self.count >= torch.tensor([[2.0], [3.0]])
        self.count[done.all().expand(2, 1)] = 0
        agents = {"count": self.count.clone(), "reward": torch.ones(2, 1), "done": done}
        return TensorDict(agents=TensorDict(agents, batch_size=[2]), done=done.all(0))


create: Any = SelfResetting


def still(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.zeros(*tensordict.batch_size, 1))


def test_first_observations_begin_the_next_episode() -> None:
    env = create(auto_reset=True)
    assert isinstance(env, AutoResetEnv)
    assert isinstance(env, TransformedEnv)
    assert isinstance(env.transform, AutoResetTransform)
    rollout = env.rollout(7, still, break_when_any_done=False)
    assert rollout["count"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0]
    following = rollout["next", "count"].flatten()
    assert following.nan_to_num(-9).tolist() == [1, 2, -9, 1, 2, -9, 1]
    assert rollout["next", "number"].flatten().tolist() == [1, 2, -1, 1, 2, -1, 1]
    assert env.resets == 1
    assert env.rollout(9, still).shape == (3,)


def test_observations_may_be_kept() -> None:
    env = create(auto_reset=True, auto_reset_replace=False)
    rollout = env.rollout(4, still, break_when_any_done=False)
    assert rollout["next", "count"].flatten().tolist() == [1, 2, 0, 1]
    filled = AutoResetEnv(SelfResetting(), AutoResetTransform(fill_float=7.0, fill_int=None))
    rollout = filled.rollout(4, still, break_when_any_done=False)
    assert rollout["next", "count"].flatten().tolist() == [1, 2, 7, 1]
    assert rollout["next", "number"].flatten().tolist() == [1, 2, 0, 1]


def test_rows_end_at_different_steps() -> None:
    env = TransformedEnv(create(4, (2,), auto_reset=True), StepCounter())
    speed = torch.tensor([[0.0], [1.0]])
    rollout = env.rollout(5, lambda td: td.set("action", speed), break_when_any_done=False)
    assert rollout["count"].squeeze(-1).tolist() == [[0, 1, 2, 3, 0], [0, 2, 0, 2, 0]]
    assert rollout["step_count"].squeeze(-1).tolist() == [[0, 1, 2, 3, 0], [0, 1, 0, 1, 0]]
    assert env.resets == 1


def test_outer_step_limit_resets_the_inner_env() -> None:
    env = TransformedEnv(create(9, auto_reset=True), StepCounter(max_steps=2))
    rollout = env.rollout(5, still, break_when_any_done=False)
    assert rollout["count"].flatten().tolist() == [0, 1, 0, 1, 0]
    assert env.resets == 3


def test_one_row_has_ended_and_another_is_cut() -> None:
    env = create(4, (2,), auto_reset=True)
    env.reset()
    stepped = env.step(TensorDict(action=torch.tensor([[9.0], [0.0]]), batch_size=[2]))
    following = stepped["next"].exclude("reward").set("_reset", torch.ones(2, 1, dtype=torch.bool))
    following["count"][1] = 5.0
    assert env.reset(following)["count"].flatten().tolist() == [0, 0]
    assert env.resets == 2


def test_batches_specs_and_arguments() -> None:
    env = SerialEnv(2, [lambda: create(3, auto_reset=True), lambda: create(2, auto_reset=True)])
    rollout = env.rollout(5, still, break_when_any_done=False)
    assert rollout["count"].squeeze(-1).tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 1, 0]]
    check_env_specs(create(9, auto_reset=True))
    assert type(create(auto_reset=False)) is SelfResetting
    with pytest.raises(ArgumentError, match="env must be an env, got int"):
        AutoResetEnv(3)  # type: ignore[arg-type]


def test_a_constructor_may_have_an_argument_of_that_name() -> None:
    class Own(SelfResetting):
        def __init__(self, auto_reset: str) -> None:
            super().__init__()
            self.mine = auto_reset

    env = Own(auto_reset="yes")
    assert type(env) is Own
    assert env.mine == "yes"


def test_other_stages_follow_the_first_one() -> None:
    env = create(3, auto_reset=True)
    assert env.append_transform(StepCounter(max_steps=2)) is env
    env.insert_transform(1, RewardSum())
    names = ["AutoResetTransform", "RewardSum", "StepCounter"]
    assert [type(stage).__name__ for stage in env.stages] == names
    rollout = env.rollout(5, still, break_when_any_done=False)
    assert rollout["count"].flatten().tolist() == [0, 1, 0, 1, 0]
    assert rollout["step_count"].flatten().tolist() == [0, 1, 0, 1, 0]
    assert rollout["next", "episode_reward"].flatten().tolist() == [1, 2, 1, 2, 1]
    around = TransformedEnv(create(3, auto_reset=True), Compose(RewardSum(), StepCounter(2)))
    other = around.rollout(5, still, break_when_any_done=False)
    assert (other.exclude("done") == rollout.exclude("done")).all()


def test_the_first_stage_cannot_be_replaced() -> None:
    env = create(auto_reset=True).append_transform(StepCounter())
    for index in (0, -2):
        with pytest.raises(ChainError, match="first stage"):
            env.insert_transform(index, StepCounter())
    stage: Any = StepCounter()
    with pytest.raises(ArgumentError, match="must be an AutoResetTransform, got StepCounter"):
        env.transform = stage
    with pytest.raises(ArgumentError, match="must be an AutoResetTransform"):
        AutoResetEnv(SelfResetting(), stage)


def test_the_transform_needs_its_env() -> None:
    with pytest.raises(ChainError, match="AutoResetEnv"):
        TransformedEnv(SelfResetting(), AutoResetTransform()).reset()
    with pytest.raises(StoredDataError):
        AutoResetTransform()(TensorDict(count=torch.zeros(3, 1), batch_size=[3]))


def test_a_copy_does_not_share_observations() -> None:
    env = create(2, auto_reset=True)
    env.rollout(2, still)
    copied = deepcopy(env)
    assert copied.rollout(3, still, break_when_any_done=False)["count"].flatten().tolist() == [
        0,
        1,
        0,
    ]
    other = AutoResetEnv(SelfResetting(), env.transform.clone())
    other.step(TensorDict(action=torch.zeros(1)))
    other.reset()
    assert other.base_env.resets == 1


def test_agents_end_at_different_steps() -> None:
    env = TransformedEnv(AutoResetEnv(Agents()), StepCounter())
    rollout = env.rollout(4, break_when_any_done=False)
    counts = rollout["next", "agents", "count"].squeeze(-1)
    assert counts.nan_to_num(-9).tolist() == [[1, 1], [-9, 2], [1, -9], [-9, 1]]
    assert rollout["agents", "count"].squeeze(-1).tolist() == [[0, 0], [1, 1], [0, 2], [1, 0]]
    steps = rollout["agents", "step_count"].squeeze(-1)
    assert steps.tolist() == [[0, 0], [1, 1], [0, 2], [1, 0]]


def test_agents_begin_the_next_episode_with_their_env() -> None:
    env = TransformedEnv(AutoResetEnv(Team()), StepCounter())
    rollout = env.rollout(5, break_when_any_done=False)
    counts = rollout["next", "agents", "count"].squeeze(-1)
    assert counts.nan_to_num(-9).tolist() == [[1, 1], [2, 2], [-9, -9], [1, 1], [2, 2]]
    for key in (("agents", "count"), ("agents", "step_count")):
        values = rollout[key].squeeze(-1).tolist()
        assert values == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1]]


@pytest.mark.parametrize("fill", [True, False])
def test_parity(fill: bool) -> None:
    transforms = pytest.importorskip("torchrl.envs.transforms.transforms")
    stage = AutoResetTransform(replace=fill)
    twin = transforms.AutoResetTransform(replace=fill)
    assert repr(stage.fill_float) == repr(twin.fill_float)
    assert (stage.fill_int, stage.fill_bool) == (twin.fill_int, twin.fill_bool)
