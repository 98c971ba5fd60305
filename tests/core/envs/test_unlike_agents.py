"""Agents of one env with different specs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from tdx import (
    Bounded,
    Categorical,
    Composite,
    EnvBase,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)

AGENTS = 3


class UnlikeAgents(EnvBase):
    """Env whose agent ``i`` has observations and actions of size ``i + 1``."""

    def __init__(self, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=batch_size)
        rows, stacked = batch_size, len(batch_size)
        observations: list[Any] = [
            Composite(seen=Unbounded((*rows, index + 1)), shape=rows) for index in range(AGENTS)
        ]
        actions: list[Any] = [
            Composite(action=Bounded(-1.0, 1.0, shape=(*rows, index + 1)), shape=rows)
            for index in range(AGENTS)
        ]
        groups: Any = torch.stack(observations, stacked), torch.stack(actions, stacked)
        self.observation_spec = Composite(agents=groups[0], shape=rows)
        self.action_spec = Composite(agents=groups[1], shape=rows)
        reward = Composite(reward=Unbounded((*rows, AGENTS, 1)), shape=(*rows, AGENTS))
        self.reward_spec = Composite(agents=reward, shape=rows)
        self.done_spec = Categorical(2, (*rows, 1), dtype=torch.bool)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.observation_spec.zero().update(self.full_done_spec.zero())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        following = self.observation_spec.rand().update(self.full_done_spec.zero())
        return following.update(self.full_reward_spec.zero())

    def _set_seed(self, seed: int | None) -> None:
        return None


@pytest.mark.parametrize("batch_size", [(), (2,)])
def test_steps_and_rollouts_of_unlike_agents(batch_size: tuple[int, ...]) -> None:
    env = UnlikeAgents(batch_size)
    assert env.action_keys == [("agents", "action")]
    stepped = env.rand_step(env.reset())
    third = stepped["agents"][..., 2]
    assert third["action"].shape == (*batch_size, 3)
    rollout = env.rollout(3, return_contiguous=False)
    assert isinstance(rollout, LazyStackedTensorDict)
    assert rollout[..., 1]["next", "agents"][..., 0]["seen"].shape == (*batch_size, 1)


@pytest.mark.parametrize("batch_size", [(), (2,)])
def test_a_policy_of_unlike_agents(batch_size: tuple[int, ...]) -> None:
    env = TransformedEnv(UnlikeAgents(batch_size), StepCounter())

    def act(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.update(env.full_action_spec.one())

    last = env.rollout(3, act, return_contiguous=False)[..., -1]
    assert last["agents"][..., 1]["action"].eq(1).all()
    assert last["next", "step_count"].eq(3).all()
    check_env_specs(env, return_contiguous=False)


def test_a_batch_of_envs_of_unlike_agents() -> None:
    env = SerialEnv(2, lambda: UnlikeAgents((3,)))
    rollout = env.rollout(4, return_contiguous=False)
    assert (rollout.shape, rollout.names[-1]) == ((2, 3, 4), "time")
    assert rollout[..., 2]["next", "agents"][..., 1]["seen"].shape == (2, 3, 2)
