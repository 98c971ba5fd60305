"""``step_mdp``: from the result of a step to the input of the next one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorClass, TensorDict, TensorDictBase, lazy_stack

from tdx import Composite, step_mdp
from tests.envs.mocks import CountingEnv, TwoGroupsEnv, WordsEnv


@pytest.fixture
def step() -> TensorDictBase:
    flags = {name: torch.zeros(1, dtype=torch.bool) for name in ("done", "terminated")}
    return TensorDict(
        observation=torch.zeros(1),
        action=torch.zeros(2),
        mine=torch.full((1,), 5.0),
        **flags,
        next=TensorDict(observation=torch.ones(1), reward=torch.ones(1), **flags),
    )


def test_next_entries_move_to_the_root(step: TensorDictBase) -> None:
    after = step_mdp(step)
    assert set(after.keys()) == {"observation", "mine", "done", "terminated"}
    assert after["observation"].item() == 1
    assert step["observation"].item() == 0
    assert "next" in step.keys()


@pytest.mark.parametrize(
    ("argument", "value", "changed"),
    [
        ("keep_other", False, {"mine"}),
        ("exclude_reward", False, {"reward"}),
        ("exclude_action", False, {"action"}),
        ("exclude_done", True, {"done"}),
    ],
)
def test_excluded_entries(
    step: TensorDictBase, argument: str, value: bool, changed: set[str]
) -> None:
    changes: dict[str, Any] = {argument: value}
    before, after = set(step_mdp(step).keys()), set(step_mdp(step, **changes).keys())
    assert before ^ after == changed


def test_custom_keys(step: TensorDictBase) -> None:
    after = step_mdp(step, reward_keys=["observation", ("no", "such")], action_keys="mine")
    assert set(after.keys()) == {"reward", "action", "done", "terminated"}


def test_it_can_write_into_a_given_tensordict(step: TensorDictBase) -> None:
    given = TensorDict(old=torch.zeros(1))
    assert step_mdp(step, given) is given
    assert set(given.keys()) == {"old", "observation", "mine", "done", "terminated"}


def test_nested_groups_are_merged() -> None:
    env = TwoGroupsEnv()
    step = env.rand_step(env.reset())
    step["a", "mine"] = torch.ones(1)
    after = env.step_mdp(step)
    assert set(after["a"].keys()) == {"observation", "done", "terminated", "mine", "action"}
    assert after["a", "observation"].item() == 1
    assert after["b"].batch_size == (2,)
    rewards = [("a", "reward"), ("b", "reward")]
    actions = [("a", "action"), ("b", "action")]
    after = step_mdp(step, reward_keys=rewards, action_keys=actions)
    assert set(after["a"].keys()) == {"observation", "done", "terminated", "mine"}
    after = step_mdp(
        step, reward_keys=rewards, action_keys=actions, keep_other=False, exclude_action=False
    )
    assert set(after["a"].keys()) == {"observation", "done", "terminated", "action"}


def test_the_action_stays_without_other_entries(step: TensorDictBase) -> None:
    after = step_mdp(step, keep_other=False, exclude_action=False)
    assert set(after.keys()) == {"observation", "done", "terminated", "action"}
    assert after["action"] is step["action"]


def test_nested_tensordicts_without_entries_are_left_out(step: TensorDictBase) -> None:
    step["group"] = TensorDict(action=torch.zeros(1))
    step["other"] = TensorDict()
    after = step_mdp(step, action_keys=["action", ("group", "action")])
    assert set(after.keys()) == {"observation", "mine", "done", "terminated"}


@pytest.mark.parametrize("keep_other", [True, False])
@pytest.mark.parametrize("exclude_action", [True, False])
def test_agents_of_different_sizes(keep_other: bool, exclude_action: bool) -> None:
    def agents(**sizes: int) -> TensorDictBase:
        rows = [
            TensorDict({key: torch.full((size + i,), i) for key, size in sizes.items()})
            for i in range(2)
        ]
        return lazy_stack(rows)

    step = TensorDict(
        agents=agents(observation=3, action=1, mine=2),
        next=TensorDict(agents=agents(observation=4, reward=1)),
    )
    after = step_mdp(
        step,
        reward_keys=("agents", "reward"),
        action_keys=("agents", "action"),
        keep_other=keep_other,
        exclude_action=exclude_action,
    )
    kept = {"observation"} | ({"mine"} if keep_other else set())
    kept |= set() if exclude_action else {"action"}
    for i, row in enumerate(after["agents"].tensordicts):
        assert set(row.keys()) == kept
        assert row["observation"].shape == (4 + i,)


def test_step_mdp_of_an_env_keeps_rewards_that_are_state() -> None:
    env = CountingEnv()
    env.state_spec = Composite(reward=env.reward_spec)
    after = env.step_mdp(env.rand_step(env.reset()))
    assert "reward" in after.keys()


def test_non_tensors_move_to_the_root() -> None:
    env = WordsEnv()
    after = env.step_mdp(env.rand_step(env.reset()))
    assert after["word"] == "count 1"
    assert isinstance(after.get("word"), (str, NonTensorData))


def test_step_mdp_of_an_env_drops_rewards() -> None:
    env = CountingEnv(batch_size=(2,))
    after = env.step_mdp(env.rand_step(env.reset()))
    assert "reward" not in after.keys()
    assert "action" in after.keys()
    assert after.batch_size == (2,)
    assert after.device == env.device


def test_tensorclass_is_one_entry() -> None:
    class Pose(TensorClass):  # type: ignore[misc]
        place: torch.Tensor

    root = TensorDict(pose=Pose(place=torch.zeros(2)), action=torch.zeros(1))
    root["next"] = TensorDict(pose=Pose(place=torch.ones(2)), reward=torch.zeros(1))
    following = step_mdp(root)["pose"]
    assert isinstance(following, Pose)
    assert following.place.tolist() == [1.0, 1.0]
