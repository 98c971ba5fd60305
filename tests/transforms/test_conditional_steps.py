"""``ConditionalSkip``, ``ConditionalPolicySwitch`` and ``MultiAction``: which steps are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

import tdx
from tdx import (
    ArgumentError,
    CartPoleEnv,
    ChainError,
    Compose,
    ConditionalPolicySwitch,
    ConditionalSkip,
    GymEnv,
    KeyNotFoundError,
    MultiAction,
    RewardSum,
    SerialEnv,
    SpecError,
    StepCounter,
    TransformedEnv,
)
from tdx.core.envs import EnvBase
from tests.inspection.live.stages import Team
from tests.transforms.envs import GroupsEnv, RowsEnv, SteppedRowsEnv, still


def played(env: EnvBase, name: str = "played") -> TransformedEnv:
    return TransformedEnv(env, StepCounter(step_count_key=name))


def odd(tensordict: TensorDictBase) -> Tensor:
    return tensordict["steps"] % 2 == 1


def chunks(tensordict: TensorDictBase) -> TensorDictBase:
    action = torch.ones(*tensordict.batch_size, 3, 2)
    return tensordict.set("action", action)


# ConditionalSkip


def test_skipped_steps_repeat_the_input_without_a_reward() -> None:
    inner = played(RowsEnv(endless=True)).append_transform(ConditionalSkip(odd))
    env = TransformedEnv(inner, StepCounter(step_count_key="steps"))
    result = env.rollout(6, still)
    following = result["next"]
    assert following["steps"].flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert following["played"].flatten().tolist() == [1, 1, 2, 2, 3, 3]
    assert (following["reward"].flatten() == 0).tolist() == [False, True] * 3
    torch.testing.assert_close(following["pixels"][1], result["pixels"][1])
    tdx.check_env_specs(env)


def test_rows_are_skipped_one_by_one() -> None:
    def second(tensordict: TensorDictBase) -> Tensor:
        return torch.tensor([False, True])

    env = played(SerialEnv(2, lambda: RowsEnv(endless=True)), "steps")
    env = TransformedEnv(env.base_env, ConditionalSkip(second))
    result = env.rollout(3, still)["next"]
    assert result["observation"][..., 0].tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
    assert result["reward"][1].flatten().tolist() == [0.0, 0.0, 0.0]


def test_a_batch_that_steps_as_a_whole_cannot_skip_a_row() -> None:
    env = TransformedEnv(RowsEnv((2,)), ConditionalSkip(lambda td: torch.tensor([True, False])))
    with pytest.raises(ChainError, match="RowsEnv cannot step some rows") as raised:
        env.rollout(1, still)
    assert "envs of the batch" in str(raised.value)


# ConditionalPolicySwitch


def test_other_policy_acts_after_the_reset_of_an_env_without_that_of_its_agents() -> None:
    def is_first(tensordict: TensorDictBase) -> bool:
        return bool((tensordict["agents", "count"] == 0).all())

    base = Team()
    switch = ConditionalPolicySwitch(base.rand_action, is_first)
    rollout = TransformedEnv(base, switch).rollout(6, break_when_any_done=False)
    assert rollout["next", "done"].flatten().tolist() == [False, False, True] * 2


def test_the_other_policy_moves_where_the_condition_holds() -> None:
    def left(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", torch.full((*tensordict.batch_size, 2), -1.0))

    env = played(RowsEnv(endless=True), "steps")
    env.append_transform(ConditionalPolicySwitch(left, odd))
    env.append_transform(StepCounter(step_count_key="turns"))
    result = env.rollout(3, still)["next"]
    assert result["steps"].flatten().tolist() == [2, 4, 6]
    assert result["turns"].flatten().tolist() == [1, 2, 3]
    assert result["observation"][:, 2].tolist() == [-1.0, -1.0, -1.0]
    tdx.check_env_specs(env)


def test_the_other_policy_does_not_move_after_the_end() -> None:
    def always(tensordict: TensorDictBase) -> bool:
        return True

    env = played(SteppedRowsEnv(), "steps").append_transform(ConditionalPolicySwitch(still, always))
    result = env.rollout(10, still)
    assert result["steps"].flatten().tolist() == [1]
    assert result["next", "steps"].flatten().tolist() == [2]
    assert result["next", "done"][-1].all()


def test_a_policy_returns_a_tensordict() -> None:
    env = TransformedEnv(RowsEnv(), ConditionalPolicySwitch(lambda td: None, lambda td: True))
    with pytest.raises(ArgumentError, match="returned NoneType"):
        env.reset()


# MultiAction


def test_every_action_of_a_chunk_is_a_step() -> None:
    env = played(RowsEnv(endless=True), "steps")
    env.append_transform(Compose(MultiAction(), StepCounter(step_count_key="chunks")))
    result = env.rollout(2, chunks)
    assert result["action"].shape == (2, 3, 2)
    assert result["next", "steps"].flatten().tolist() == [3, 6]
    assert result["next", "chunks"].flatten().tolist() == [1, 2]
    assert result["next", "reward"].squeeze(-1).tolist() == [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]
    tdx.check_env_specs(env)


def test_upstream_stages_map_every_action() -> None:
    scaled = tdx.ActionScaling(loc=0.0, scale=2.0)
    env = TransformedEnv(RowsEnv(endless=True), Compose(scaled, MultiAction()))
    result = env.rollout(1, chunks)["next"]
    assert result["reward"].flatten().tolist() == [5.0, 6.0, 7.0]


def test_rows_that_end_within_a_chunk_are_not_stepped_again() -> None:
    env = TransformedEnv(SteppedRowsEnv((2,)), MultiAction())
    result = env.rollout(1, chunks)["next"]
    # Row 0 ends in step 2, row 1 in step 3.
    assert result["observation"][..., 0].flatten().tolist() == [2.0, 13.0]
    assert result["reward"].squeeze(-1).tolist() == [[[3.0, 4.0, 0.0]], [[3.0, 4.0, 5.0]]]
    assert result["done"].flatten().tolist() == [True, True]


def test_the_last_reward_of_a_chunk() -> None:
    env = TransformedEnv(RowsEnv(endless=True), MultiAction(stack_rewards=False))
    assert env.rollout(2, chunks)["next", "reward"].flatten().tolist() == [5.0, 8.0]


def test_chunks_of_groups_of_agents() -> None:
    env = TransformedEnv(GroupsEnv((2,)), MultiAction())
    assert env.full_action_spec["pair", "action"].shape == (2, 2, -1, 2)
    tdx.check_env_specs(env)


def test_a_chunk_has_a_key_of_its_own() -> None:
    env = TransformedEnv(RowsEnv(endless=True), MultiAction.from_vla())
    assert list(env.full_action_spec.keys(True, True)) == [tdx.ACTION_CHUNK_KEY]
    with pytest.raises(KeyNotFoundError, match="vla_action"):
        env.step(env.reset())


@pytest.mark.parametrize(
    ("action", "message"),
    [(torch.zeros(0, 2), "holds no action"), (torch.zeros(2), "has one more dim, got")],
)
def test_invalid_chunks(action: Tensor, message: str) -> None:
    env = TransformedEnv(RowsEnv(), MultiAction())
    with pytest.raises(ArgumentError, match=message):
        env.step(env.reset().set("action", action))


# All of them


@pytest.mark.parametrize("kind", [ConditionalSkip, lambda c: ConditionalPolicySwitch(still, c)])
def test_conditions_have_one_value_for_each_row(kind: Any) -> None:
    with pytest.raises(ArgumentError, match="must be a function"):
        kind(3)
    env = TransformedEnv(RowsEnv(), kind(lambda td: torch.ones(5)))
    with pytest.raises(ArgumentError, match=r"returned shape \(5,\)"):
        env.rollout(1)


def test_gymnasium_env_with_a_chunk() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), MultiAction())
    result = env.step(env.reset().set("action", torch.zeros(50, dtype=torch.int64)))["next"]
    assert result["done"].all()
    assert 0 < int(result["reward"].sum()) < 20


def test_chunks_are_part_of_a_contract() -> None:
    def make() -> TransformedEnv:
        return TransformedEnv(GymEnv("Pendulum-v1"), Compose(RewardSum(), MultiAction()))

    assert tdx.check_contract(make(), tdx.freeze(make())).same


def test_rewards_of_an_unknown_number_have_no_sum() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(MultiAction(), RewardSum()))
    with pytest.raises(SpecError, match=r"stage 1 \(RewardSum\), key 'reward': .* unknown number"):
        env.reset()


def test_a_skipped_row_is_not_stepped_by_later_actions_of_a_chunk() -> None:
    base, skipped = CartPoleEnv(batch_size=[3]), torch.tensor([True, False, False])
    chain = Compose(ConditionalSkip(lambda _: skipped), MultiAction(stack_rewards=False))
    env = TransformedEnv(base, chain)
    start = env.reset()
    # The second row leaves the track in its first step.
    state = torch.tensor([[0.0] * 4, [2.39, 50.0, 0.0, 0.0], [0.0] * 4])
    base.set_state(state)
    action = base.full_action_spec["action"].zero()
    action[..., 0] = 1
    following = env.step(start.set("action", action.unsqueeze(1).expand(3, 4, -1)))["next"]
    assert following["done"].flatten().tolist() == [False, True, False]
    skipped[:] = torch.tensor([False, True, True])
    played = env.step(start.set("action", action.unsqueeze(1)))["next", "observation"][0]
    base.set_state(state)
    assert torch.equal(played, base.step(start.set("action", action))["next", "observation"][0])
