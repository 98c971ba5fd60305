"""Entries and groups of agents under one key: values, specs, done flags, actions and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    Bounded,
    Composite,
    EnvBase,
    SerialEnv,
    Stack,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, KeyNotFoundError
from tdx.specs import Categorical

AGENTS = [("agents", f"agent_{index}") for index in range(3)]


class Agents(EnvBase):
    """Each of three agents has its own group with observation, reward, done flag and action."""

    def __init__(self, batch_size: tuple[int, ...] = (), length: int = 3) -> None:
        super().__init__(batch_size=batch_size)
        b, self.length = tuple(batch_size), length
        parts: list[dict[str, Any]] = [{}, {}, {}, {}]
        for index, (_, name) in enumerate(AGENTS):
            flag = Categorical(2, (*b, 1), dtype=torch.bool)
            observed, acted = Bounded(-1.0, 9.0 + index, (*b, 4)), Bounded(-2.0, 2.0, (*b, 2))
            leaves = (
                {"observation": observed},
                {"reward": Unbounded((*b, 1))},
                {"done": flag, "terminated": flag.clone()},
                {"action": acted},
            )
            for part, leaf in zip(parts, leaves, strict=True):
                part[name] = Composite(leaf, shape=b)
        specs = [Composite(agents=Composite(part, shape=b), shape=b) for part in parts]
        self.observation_spec, self.reward_spec, self.done_spec, self.action_spec = specs
        self.count = 0

    def _observe(self) -> TensorDict:
        result = TensorDict({}, batch_size=self.batch_size)
        for index, key in enumerate(AGENTS):
            value = torch.full((*self.batch_size, 4), float(self.count + index))
            result[*key, "observation"] = value
        return result

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count = 0
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        result = self._observe()
        for key in AGENTS:
            result[*key, "reward"] = tensordict[*key, "action"].sum(-1, keepdim=True)
            ended = torch.full((*self.batch_size, 1), self.count >= self.length)
            result[*key, "done"], result[*key, "terminated"] = ended, ended.clone()
        return result

    def _set_seed(self, seed: int | None) -> None:
        pass


def stacked(**kwargs: Any) -> Stack:
    return Stack(AGENTS, "team", "team", AGENTS, **kwargs)


@pytest.mark.parametrize("batch_size", [(), (2,)])
def test_groups_of_agents(batch_size: tuple[int, ...]) -> None:
    env = TransformedEnv(Agents(batch_size), stacked())
    check_env_specs(env)
    b = batch_size
    assert list(env.observation_spec.keys()) == ["team"]
    observed = env.observation_spec["team", "observation"]
    assert observed.shape == (*b, 3, 4)
    assert observed.high[..., 0].flatten().tolist()[:3] == [9.0, 10.0, 11.0]
    assert env.action_spec.shape == (*b, 3, 2)
    assert env.full_done_spec["team", "done"].shape == (*b, 3, 1)
    rollout = env.rollout(6, break_when_any_done=False)
    assert rollout.shape == (*b, 6)
    action, reward = rollout["team", "action"], rollout["next", "team", "reward"]
    torch.testing.assert_close(reward, action.sum(-1, keepdim=True))
    values = rollout["next", "team", "observation"][..., 0].reshape(-1, 6, 3)[0]
    assert values[:, 0].tolist() == [1, 2, 3, 1, 2, 3]
    assert (values - values[:, :1] == torch.arange(3)).all()
    assert "agents" not in rollout.keys()


def test_in_the_envs_of_a_batch() -> None:
    env = SerialEnv(2, lambda: TransformedEnv(Agents(), stacked()))
    check_env_specs(env)
    assert env.rollout(4)["team", "action"].shape == (2, 3, 3, 2)


def test_chosen_agents_leave_the_others() -> None:
    env = TransformedEnv(Agents(), Stack(AGENTS[:2], "pair", "pair", AGENTS[:2]))
    check_env_specs(env)
    rollout = env.rollout(2)
    assert rollout["pair", "observation"].shape == (2, 2, 4)
    assert rollout["agents", "agent_2", "observation"].shape == (2, 4)


def test_entries_of_an_env_that_stay() -> None:
    keys = [(*key, "observation") for key in AGENTS]
    env = TransformedEnv(Agents((2,)), Stack(keys, "seen", del_keys=False))
    check_env_specs(env)
    assert env.observation_spec["seen"].shape == (2, 4, 3)
    rollout = env.rollout(2)
    assert (rollout["seen"][..., 1] == rollout["agents", "agent_1", "observation"]).all()


def test_positive_dims_count_after_the_batch_dims_of_an_env() -> None:
    keys = [(*key, "observation") for key in AGENTS]
    env = TransformedEnv(Agents((2,)), Stack(keys, "seen", dim=0, allow_positive_dim=True))
    check_env_specs(env)
    assert env.observation_spec["seen"].shape == (2, 3, 4)


def test_rewards_are_stacked_in_steps() -> None:
    keys = [(*key, "reward") for key in AGENTS]
    env = TransformedEnv(Agents(), Stack(keys, ("team", "reward"), dim=-2))
    check_env_specs(env)
    assert env.rollout(2)["next", "team", "reward"].shape == (2, 3, 1)


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'b' is one of in_keys"):
        Stack(["a", "b"], "b")
    with pytest.raises(ArgumentError, match="must both be given, or neither"):
        Stack(["a", "b"], "c", "c")
    with pytest.raises(ArgumentError, match="negative"):
        Stack(["a", "b"], "c", dim=0)
    with pytest.raises(KeyNotFoundError, match="nothing"):
        TransformedEnv(Agents(), Stack([AGENTS[0], "nothing"], "c")).observation_spec  # noqa: B018
    unlike = Stack([(*AGENTS[0], "observation"), (*AGENTS[1], "reward")], "c")
    with pytest.raises(ArgumentError, match="not in the same part of the specs"):
        TransformedEnv(Agents(), unlike).observation_spec  # noqa: B018
    with pytest.raises(ArgumentError, match="has 2 parts along dim -1, out_keys_inv has 3 keys"):
        stacked().inv(TensorDict(team=torch.zeros(2)))
