"""Envs that start the next episode themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    AutoResetEnv,
    Composite,
    EnvBase,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.errors import ArgumentError


class SelfResetting(EnvBase):
    """Counts up to ``length``; the step after that returns the first count, 0."""

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


create: Any = SelfResetting


def still(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.zeros(*tensordict.batch_size, 1))


def test_first_observations_begin_the_next_episode() -> None:
    env = create(auto_reset=True)
    assert isinstance(env, AutoResetEnv)
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
    filled = AutoResetEnv(SelfResetting(), fill_float=7.0, fill_int=None)
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


def test_a_limit_outside_resets_the_env_inside() -> None:
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
