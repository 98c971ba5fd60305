"""Concatenating observations."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    Bounded,
    CatTensors,
    Composite,
    GymEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    Unbounded,
)
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout


def test_vectors_are_found_in_a_batch_of_envs() -> None:
    batch = TransformedEnv(SerialEnv(3, lambda: GymEnv("Pendulum-v1")), StepCounter())
    env = batch.append_transform(CatTensors())
    rollout = env.rollout(4)
    assert env.transform[1].in_keys == ["observation", "step_count"]
    assert rollout["next", "observation_vector"].shape == (3, 4, 4)
    assert rollout["next", "observation_vector"][..., -1].tolist() == [[1.0, 2.0, 3.0, 4.0]] * 3
    assert "step_count" not in rollout["next"].keys()


def test_the_spec_has_the_bounds_of_its_parts() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), CatTensors(["observation"], "vector"))
    found = env.observation_spec["vector"]
    wanted = env.base_env.observation_spec["observation"]
    assert isinstance(found, Bounded)
    assert torch.equal(found.high, wanted.high)
    wide = TransformedEnv(RowsEnv((2,)), CatTensors(["observation", "precise"], "vector"))
    assert wide.observation_spec["vector"] == Unbounded((2, 5), dtype=torch.float64)


def test_keys_in_the_order_given() -> None:
    data = TensorDict(a=torch.zeros(1), b=torch.ones(1))
    assert CatTensors(["b", "a"])(data.clone())["observation_vector"].tolist() == [0.0, 1.0]
    unsorted = CatTensors(["b", "a"], sort=False)
    assert unsorted(data.clone())["observation_vector"].tolist() == [1.0, 0.0]
    assert unsorted(a=torch.zeros(1), b=torch.ones(1)).tolist() == [1.0, 0.0]


def test_a_missing_dim_is_added_after_the_batch_dims() -> None:
    stages = CatTensors(["observation", "precise"], "rows", dim=-2)
    with pytest.raises(ArgumentError, match="no dim -2 after 2 batch dims"):
        TransformedEnv(RowsEnv((4, 1)), stages).output_spec  # noqa: B018
    env = TransformedEnv(
        RowsEnv((4,)), CatTensors(["observation"], "rows", dim=-2, unsqueeze_if_oor=True)
    )
    assert env.rollout(2)["rows"].shape == (4, 2, 1, 3)


def test_positive_dim() -> None:
    env = TransformedEnv(RowsEnv((4,)), CatTensors(["observation", "precise"], "vector", dim=1))
    planned = TransformedEnv(RowsEnv((4,)), CatTensors(["observation", "precise"], "vector"))
    assert_same(fixed_rollout(env), fixed_rollout(planned))


def test_a_dropped_sum_continues() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
    env.append_transform(CatTensors(["episode_reward", "observation"], "vector"))
    assert env.rollout(4)["next", "vector"][:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert "episode_reward" not in env.state_spec.keys()


def test_incompatible_entries_are_refused() -> None:
    with pytest.raises(ArgumentError, match="dim must be -1"):
        CatTensors(dim=-2)
    with pytest.raises(ArgumentError, match="dim must be an integer"):
        CatTensors(["a"], dim=True)
    with pytest.raises(ChainError, match="no in_keys"):
        CatTensors()(TensorDict(a=torch.zeros(1)))
    with pytest.raises(KeyNotFoundError, match="at this stage has no key 'reward'"):
        TransformedEnv(RowsEnv(), CatTensors(["observation", "reward"])).output_spec  # noqa: B018
    with pytest.raises(ArgumentError, match="different shapes"):
        TransformedEnv(RowsEnv(), CatTensors(["observation", "image"])).output_spec  # noqa: B018
    with pytest.raises(ChainError, match="already exists"):
        TransformedEnv(RowsEnv(), CatTensors(["observation"], "pixels")).output_spec  # noqa: B018


def test_missing_entries_can_be_tolerated() -> None:
    join = CatTensors(["a", "b"])
    join.set_missing_tolerance(True)
    data = TensorDict(a=torch.zeros(1))
    assert set(join(data.clone()).keys()) == {"a"}
    spec = Composite(a=Unbounded((1,)))
    assert join.transform_observation_spec(spec) == spec


def test_the_spec_of_a_lone_entry() -> None:
    spec = CatTensors(["x"], "y").transform_observation_spec(Bounded(0.0, 1.0, (3,)))
    assert spec == Bounded(0.0, 1.0, (3,))
