"""TransformedEnv: building and changing a chain, and the env API around it."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from tdx import (
    ArgumentError,
    ChainError,
    Compose,
    Composite,
    GymEnv,
    InitTracker,
    KeyNotFoundError,
    ObservationNorm,
    PendulumEnv,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    Transform,
    TransformedEnv,
    Unbounded,
)
from tdx.engine import stage_specs
from tests.envs.mocks import CountingEnv, TwoGroupsEnv


def names(env: TransformedEnv) -> list[str]:
    return [type(stage).__name__ for stage in env.stages]


def add_square(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("square", tensordict["observation"] ** 2)


class Adds(Transform):
    """Adds a number to the reward; a parameter, so that it can be saved and moved."""

    def __init__(self, number: float) -> None:
        super().__init__(in_keys=["reward"])
        self.number = nn.Parameter(torch.tensor(number), requires_grad=False)

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + self.number


def zero_action(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.zeros(*tensordict.batch_size, 2))


def rewards(env: TransformedEnv) -> list[float]:
    return env.rollout(1, zero_action)["next", "reward"].flatten().tolist()


# Building


def test_the_documented_example_of_a_chain() -> None:
    env = GymEnv("Pendulum-v1")
    transforms = Compose(RewardScaling(1.0, 1.0), RewardClipping(-2.0, 2.0))
    transformed = TransformedEnv(env, transforms)
    rollout = transformed.rollout(10)
    assert rollout["next", "reward"].abs().max() <= 2
    assert transformed.base_env is env
    assert transformed.transform is transforms
    env.close()


def test_stages_run_in_order() -> None:
    env = TransformedEnv(CountingEnv(), Compose(Adds(1.0), RewardScaling(0.0, 10.0)))
    assert rewards(env) == [10.0]
    env = TransformedEnv(CountingEnv(), Compose(RewardScaling(0.0, 10.0), Adds(1.0)))
    assert rewards(env) == [1.0]


def test_without_a_transform_it_is_the_env() -> None:
    env = TransformedEnv(CountingEnv())
    assert env.stages == ()
    assert env.output_spec == env.base_env.output_spec
    assert env.rollout(5).shape == (3,)


def test_a_function_is_a_transform() -> None:
    env = TransformedEnv(CountingEnv(), add_square)
    rollout = env.rollout(3)
    assert rollout["square"].flatten().tolist() == [0, 1, 4]
    assert rollout["next", "square"].flatten().tolist() == [1, 4, 9]


def test_append_and_insert() -> None:
    env = TransformedEnv(CountingEnv(), StepCounter())
    assert env.append_transform(RewardSum()) is env
    assert env.insert_transform(0, InitTracker()) is env
    env.insert_transform(-1, add_square)
    assert names(env) == ["InitTracker", "StepCounter", "CallableTransform", "RewardSum"]
    rollout = env.rollout(2)
    assert {"is_init", "step_count", "square", "episode_reward"} <= set(rollout.keys())
    assert isinstance(env.transform, Compose)
    assert isinstance(env.transform[0], InitTracker)
    assert isinstance(env.transform[-1], RewardSum)
    with pytest.raises(IndexError, match="index 9 is outside a chain of 4 stages"):
        env.insert_transform(9, InitTracker())


def test_appending_to_an_env_leaves_it_as_it_is() -> None:
    env = CountingEnv()
    transformed = env.append_transform(StepCounter())
    assert isinstance(transformed, TransformedEnv)
    assert transformed.base_env is env
    assert "step_count" not in env.observation_spec.keys()


def test_a_new_stage_shows_in_the_specs_at_once() -> None:
    env = TransformedEnv(CountingEnv(), Compose())
    assert "step_count" not in env.observation_spec.keys()
    env.append_transform(StepCounter())
    assert "step_count" in env.observation_spec.keys()
    assert isinstance(env.transform, Compose)
    env.transform.append(RewardSum())
    assert "episode_reward" in env.observation_spec.keys()
    assert "episode_reward" in env.rollout(1).keys()
    env.transform.pop()
    assert "episode_reward" not in env.observation_spec.keys()
    assert "episode_reward" not in env.rollout(1).keys()


def test_another_chain_takes_the_place_of_the_first() -> None:
    first = StepCounter()
    env = TransformedEnv(CountingEnv(), first)
    env.rollout(1)
    env.transform = RewardSum()
    assert "episode_reward" in env.rollout(1).keys()
    assert "step_count" not in env.rollout(1).keys()
    assert env.transform.container is env
    assert first.container is None
    TransformedEnv(CountingEnv(), first)


def test_a_slice_of_a_chain_goes_into_another_env() -> None:
    env = TransformedEnv(CountingEnv(), Compose(StepCounter(2), RewardSum(), InitTracker()))
    assert isinstance(env.transform, Compose)
    part = TransformedEnv(CountingEnv(), env.transform[:2])
    assert names(part) == ["StepCounter", "RewardSum"]
    assert part.rollout(9).shape == (2,)
    assert names(env) == ["StepCounter", "RewardSum", "InitTracker"]


@pytest.mark.parametrize("second", [TransformedEnv, lambda env, stage: Compose(stage)])
def test_one_instance_in_two_chains_is_an_error(second: Any) -> None:
    stage = StepCounter()
    env = TransformedEnv(CountingEnv(), Compose(stage))
    with pytest.raises(ChainError, match="StepCounter is already part of a chain") as caught:
        second(CountingEnv(), stage)
    assert caught.value.hint == "put transform.clone() into the second place"
    second(CountingEnv(), stage.clone())
    assert stage.container is env


def test_one_instance_twice_in_a_chain_is_an_error() -> None:
    stage = RewardSum()
    with pytest.raises(ChainError, match="already part of a chain"):
        Compose(stage, stage)
    env = TransformedEnv(CountingEnv(), stage)
    with pytest.raises(ChainError, match="already part of a chain"):
        env.append_transform(stage)
    assert names(env) == ["RewardSum"]


def test_what_is_no_env_and_no_transform_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="env must be an env, got int"):
        TransformedEnv(3, StepCounter())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a chain takes transforms and functions, got int"):
        TransformedEnv(CountingEnv(), 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"StepCounter is a class.*StepCounter\(\.\.\.\)"):
        TransformedEnv(CountingEnv(), StepCounter)


# Container and parent


def test_the_parent_is_the_env_before_the_stage() -> None:
    env = TransformedEnv(CountingEnv(), Compose(StepCounter(), RewardSum(), InitTracker()))
    seen = []
    for stage in env.stages:
        parent = stage.parent
        assert isinstance(parent, TransformedEnv)
        assert parent.base_env is env.base_env
        seen.append(names(parent))
        assert stage.container is env
    assert seen == [[], ["StepCounter"], ["StepCounter", "RewardSum"]]
    assert env.transform.container is env


def test_the_parents_specs_are_those_that_the_stage_sees() -> None:
    env = TransformedEnv(
        CountingEnv(), Compose(RenameTransform(["observation"], ["seen"]), StepCounter())
    )
    parent = env.stages[1].parent
    assert parent is not None
    assert "seen" in parent.observation_spec.keys()
    assert "step_count" not in parent.observation_spec.keys()


def test_stages_of_a_nested_compose_have_parents_too() -> None:
    inner = RewardSum()
    env = TransformedEnv(CountingEnv(), Compose(StepCounter(), Compose(InitTracker(), inner)))
    parent = inner.parent
    assert isinstance(parent, TransformedEnv)
    assert {"step_count", "is_init"} <= set(parent.observation_spec.keys())
    assert inner.container is env


def test_outside_an_env_there_is_no_parent() -> None:
    chain = Compose(StepCounter())
    assert chain.parent is None
    assert chain[0].parent is None
    assert chain[0].container is chain
    assert StepCounter().container is None


def test_a_chain_does_not_keep_its_env_alive() -> None:
    chain = Compose(StepCounter())
    env = TransformedEnv(CountingEnv(), chain)
    env.rollout(2)
    gone = weakref.ref(env)
    del env
    gc.collect()
    assert gone() is None
    assert chain.container is None
    assert TransformedEnv(CountingEnv(), chain).rollout(2).shape == (2,)


# Nesting


def test_transformed_envs_nest() -> None:
    inner = TransformedEnv(CountingEnv(), Compose(StepCounter(2), Adds(1.0)))
    env = TransformedEnv(inner, Compose(RewardScaling(0.0, 3.0), RewardSum()))
    rollout = env.rollout(9, zero_action)
    assert env.base_env is inner
    assert rollout["next", "reward"].flatten().tolist() == [3.0, 3.0]
    assert rollout["next", "episode_reward"].flatten().tolist() == [3.0, 6.0]
    assert rollout["next", "truncated"].flatten().tolist() == [False, True]
    assert [stage.name for stage in stage_specs(env)] == [
        "CountingEnv", "StepCounter", "Adds", "RewardScaling", "RewardSum",
    ]  # fmt: skip


def test_a_change_of_the_inner_chain_shows_outside() -> None:
    inner = TransformedEnv(CountingEnv(), Compose())
    env = TransformedEnv(inner, RewardSum())
    assert "step_count" not in env.observation_spec.keys()
    inner.append_transform(StepCounter())
    assert "step_count" in env.observation_spec.keys()
    assert "step_count" in env.rollout(1).keys()


def test_a_change_of_the_base_specs_shows_outside() -> None:
    env = TransformedEnv(CountingEnv(), StepCounter())
    assert env.action_spec.shape == (2,)
    env.base_env.action_spec = Unbounded((7,))
    assert env.action_spec.shape == (7,)
    assert env.rand_action()["action"].shape == (7,)


# Env API


def test_attributes_of_the_env_inside_are_found() -> None:
    env = TransformedEnv(CountingEnv(stop=7), StepCounter())
    assert env.stop == 7
    assert env.is_training()
    with pytest.raises(AttributeError, match="nowhere"):
        _ = env.nowhere


def test_specs_are_set_on_the_env_inside() -> None:
    env = TransformedEnv(CountingEnv(), StepCounter())
    with pytest.raises(ChainError, match=r"env\.base_env\.action_spec = "):
        env.action_spec = Unbounded(1)
    env.base_env.reward_spec = Unbounded((1,), dtype=torch.float64)
    assert env.reward_spec.dtype is torch.float64


def test_the_base_specs_are_never_changed() -> None:
    base = PendulumEnv(batch_size=[2])
    before = (base.input_spec.clone(), base.output_spec.clone())
    env = TransformedEnv(
        base, Compose(RenameTransform(["observation"], ["seen"]), RewardScaling(0.0, 2.0))
    )
    env.rollout(3)
    assert (base.input_spec, base.output_spec) == before
    assert "seen" in env.observation_spec.keys()


def test_specs_are_locked() -> None:
    env = TransformedEnv(CountingEnv(), StepCounter())
    assert env.output_spec.is_locked
    assert env.input_spec.is_locked


def test_a_preset_value_prevails_over_the_chain() -> None:
    env = TransformedEnv(CountingEnv(), RewardScaling(0.0, 10.0))
    tensordict = zero_action(env.reset())
    tensordict["next"] = TensorDict(reward=torch.full((1,), 9.0))
    assert env.step(tensordict)["next", "reward"].item() == 9


def test_partial_resets_reach_every_stage() -> None:
    env = TransformedEnv(CountingEnv(9, (2,)), Compose(StepCounter(), RewardSum(), InitTracker()))
    tensordict = env.reset()
    for _ in range(3):
        tensordict = env.step_mdp(env.rand_step(tensordict))
    total = tensordict["episode_reward"].clone()
    mask = torch.tensor([[False], [True]])
    kept = mask.clone()
    result = env.reset(tensordict.set("_reset", mask))
    assert torch.equal(mask, kept)
    assert result["step_count"].flatten().tolist() == [3, 0]
    assert result["is_init"].flatten().tolist() == [False, True]
    assert result["episode_reward"].flatten().tolist() == [total[0].item(), 0.0]
    assert env.rand_step(result)["next", "step_count"].flatten().tolist() == [4, 1]


def test_reset_arguments_and_seeds_reach_the_env() -> None:
    env = TransformedEnv(CountingEnv(), StepCounter())
    assert env.reset(start=5)["observation"].item() == 5
    assert env.set_seed(3) == 4


def test_closing_closes_everything() -> None:
    closed: list[str] = []

    class Closes(Transform):
        def close(self) -> None:
            closed.append("transform")

    env = TransformedEnv(CountingEnv(), Compose(Closes()))
    env.close()
    assert closed == ["transform"]
    assert env.is_closed
    assert env.base_env.is_closed


def test_several_groups_keep_their_keys() -> None:
    env = TransformedEnv(TwoGroupsEnv(), RewardSum())
    assert env.done_keys == env.base_env.done_keys
    rollout = env.rollout(6, break_when_any_done=False)
    assert rollout["next", "a", "observation"].flatten().tolist() == [1, 2, 1, 2, 1, 2]


def test_the_fake_tensordict_is_like_a_step() -> None:
    env = TransformedEnv(CountingEnv(9, (2, 3)), Compose(StepCounter(), RewardSum()))
    fake, real = env.fake_tensordict(), env.rand_step(env.reset())
    assert set(fake.keys(True, True)) == set(real.keys(True, True))
    assert all(fake[key].shape == real[key].shape for key in fake.keys(True, True))


# Module


def test_train_and_eval_are_taken_over_by_what_is_added() -> None:
    env = TransformedEnv(CountingEnv())
    env.eval()
    env.append_transform(Compose(StepCounter(), RewardSum()))
    assert [module.training for module in env.modules()] == [False] * len(list(env.modules()))
    env.train()
    assert env.base_env.training
    env.insert_transform(0, InitTracker())
    assert env.stages[0].training


def test_state_dict_round_trip() -> None:
    def make(loc: float) -> TransformedEnv:
        norm = ObservationNorm(torch.tensor([loc]), torch.ones(1), in_keys=["observation"])
        return TransformedEnv(CountingEnv(), Compose(StepCounter(), norm))

    env, other = make(2.0), make(0.0)
    assert {"transform.transforms.1.loc", "base_env.steps"} <= set(env.state_dict())
    other.load_state_dict(env.state_dict())
    assert torch.equal(other.reset()["observation"], env.reset()["observation"])


def test_moving_moves_env_and_chain() -> None:
    env = TransformedEnv(PendulumEnv(batch_size=[2]), Compose(Adds(1.0), StepCounter()))
    assert env.to("meta") is env
    assert env.device.type == env.base_env.device.type == "meta"
    assert next(env.transform.parameters()).is_meta
    assert env.observation_spec["step_count"].device.type == "meta"
    begun = env.reset().set("action", env.action_spec.zero())
    assert env.step(begun)["next", "reward"].is_meta


def test_the_device_argument_moves_the_env() -> None:
    env = TransformedEnv(PendulumEnv(), StepCounter(), device="meta")
    assert env.base_env.device.type == env.device.type == "meta"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("used", [False, True])
def test_a_copy_goes_its_own_way(copied: Any, used: bool) -> None:
    env = TransformedEnv(
        CountingEnv(9), Compose(StepCounter(), Compose(RewardSum(), add_square), Adds(1.0))
    )
    if used:
        env.rollout(2)
    other = copied(env)
    assert names(other) == names(env)
    assert other.stages[0].container is other
    assert other.base_env is not env.base_env
    other.append_transform(InitTracker())
    assert len(env.stages) == 3
    assert other.rollout(2)["next", "step_count"].flatten().tolist() == [1, 2]
    assert env.rollout(2)["next", "step_count"].flatten().tolist() == [1, 2]


def test_it_prints_its_env_and_its_stages() -> None:
    env = TransformedEnv(CountingEnv(), Compose(RewardSum(), add_square))
    assert str(env) == (
        "TransformedEnv(\n"
        "    env=CountingEnv(batch_size=torch.Size([]), device=cpu),\n"
        "    transform=Compose(\n"
        "            RewardSum(keys=['reward']),\n"
        "            CallableTransform(add_square)))"
    )


# Errors


def test_a_missing_in_key_is_found_without_a_step() -> None:
    env = TransformedEnv(
        CountingEnv(), Compose(StepCounter(), RewardScaling(0.0, 1.0, in_keys=["rewrd"]))
    )
    with pytest.raises(KeyNotFoundError) as caught:
        _ = env.output_spec
    assert str(caught.value).startswith(
        "stage 1 (RewardScaling), key 'rewrd': the env at this stage has no key 'rewrd' "
        "(keys there: reward, "
    )


def test_whatever_a_stage_raises_says_where() -> None:
    class Fails(Transform):
        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            raise ZeroDivisionError("on purpose")

        def transform_observation_spec(self, observation_spec: Composite) -> Composite:
            return observation_spec

    env = TransformedEnv(CountingEnv(), Compose(StepCounter(), Fails()))
    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        env.rollout(2)
    assert caught.value.__notes__ == ["tdx: raised in stage 1 (Fails) during a step"]
