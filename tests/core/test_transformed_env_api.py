"""``TransformedEnv`` as an env and a module, and its error messages."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    CatFrames,
    ChainError,
    Compose,
    Composite,
    InitTracker,
    KeyNotFoundError,
    ObservationNorm,
    PendulumEnv,
    RenameTransform,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    Transform,
    TransformedEnv,
    Unbounded,
)
from tests.core.stages import Adds, add_square, names, zero_action
from tests.envs.mocks import CountingEnv, TwoGroupsEnv, WordsEnv


def test_attributes_of_the_inner_env_are_accessible() -> None:
    env = TransformedEnv(CountingEnv(stop=7), StepCounter())
    assert env.stop == 7
    assert env.is_training()
    with pytest.raises(AttributeError, match="nowhere"):
        _ = env.nowhere


def test_specs_are_set_on_the_inner_env() -> None:
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


def test_preset_value_takes_precedence_over_the_chain() -> None:
    env = TransformedEnv(CountingEnv(), RewardScaling(0.0, 10.0))
    tensordict = zero_action(env.reset())
    tensordict["next"] = TensorDict(reward=torch.full((1,), 9.0))
    assert env.step(tensordict)["next", "reward"].item() == 9


def test_subclass_can_extend_step_and_reset() -> None:
    class Noted(TransformedEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("noted", torch.ones(1))

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            return super()._reset(tensordict, **kwargs).set("noted", torch.zeros(1))

    rollout = Noted(CountingEnv(), Compose(StepCounter(), RewardSum())).rollout(3, zero_action)
    assert rollout["noted"].flatten().tolist() == [0, 1, 1]
    assert rollout["next", "step_count"].flatten().tolist() == [1, 2, 3]
    plain = TransformedEnv(CountingEnv(), StepCounter())
    assert plain._step(zero_action(plain._reset()))["step_count"].item() == 1


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


def test_objects_go_through_a_chain() -> None:
    def chain() -> Compose:
        frames = CatFrames(2, -1, in_keys=["observation"])
        return Compose(frames, StepCounter(), RenameTransform(["word"], ["said"], create_copy=True))

    stops = (2, 3)
    batch = SerialEnv(2, [partial(WordsEnv, stop) for stop in stops])
    together = TransformedEnv(batch, chain()).rollout(5, break_when_any_done=False)
    for row, stop in enumerate(stops):
        alone = TransformedEnv(WordsEnv(stop), chain()).rollout(5, break_when_any_done=False)
        assert together["said"][row] == alone["word"] == alone["said"]
        assert together["next", "word"][row] == alone["next", "said"]
        assert torch.equal(together["observation"][row], alone["observation"])


def test_reset_arguments_and_seeds_reach_the_env() -> None:
    env = TransformedEnv(CountingEnv(), StepCounter())
    assert env.reset(start=5)["observation"].item() == 5
    assert env.set_seed(3) == 4


def test_close_closes_all_inner_envs() -> None:
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


def test_added_stage_inherits_the_training_mode() -> None:
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
    assert env.device == env.base_env.device == torch.device("meta")
    assert next(env.transform.parameters()).is_meta
    assert env.observation_spec["step_count"].device.type == "meta"
    first = env.reset().set("action", env.action_spec.zero())
    assert env.step(first)["next", "reward"].is_meta


def test_the_device_argument_moves_the_env() -> None:
    env = TransformedEnv(PendulumEnv(), StepCounter(), device="meta")
    assert env.base_env.device == env.device == torch.device("meta")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("used", [False, True])
def test_copy_is_independent(copied: Any, used: bool) -> None:
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


def in_the_middle() -> tuple[TransformedEnv, TensorDictBase]:
    """Return an env with a stateful chain, and the input of its third step with a graph."""
    chain = Compose(
        CatFrames(3, -1, in_keys=["observation"]),
        StepCounter(),
        RenameTransform(["step_count"], ["renamed"]),
        RewardSum(),
    )
    env = TransformedEnv(PendulumEnv(batch_size=[2]), chain)
    current = env.reset()
    for _ in range(2):
        current.set("action", torch.ones(2, 1, requires_grad=True))
        current = env.step_mdp(env.step(current))
    return env, current.detach().set("action", torch.zeros(2, 1))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copy_continues_in_the_middle_of_an_episode(copied: Any) -> None:
    env, current = in_the_middle()
    other = copied(env)
    expected = env.step(current.clone())["next"]
    assert (other.step(current.clone())["next"] == expected).all()
    assert expected["renamed"].flatten().tolist() == [3, 3]


@pytest.mark.parametrize("how", ["made there", "device argument", "appended", "moved"])
def test_stages_move_to_the_device_of_their_data(how: str) -> None:
    norm = ObservationNorm(torch.zeros(3), torch.ones(3))
    base = PendulumEnv(device="cpu" if how in ("device argument", "moved") else "meta")
    if how == "appended":
        env = TransformedEnv(base, StepCounter())
        env.append_transform(Compose(norm))
    else:
        device = "meta" if how == "device argument" else None
        env = TransformedEnv(base, Compose(norm), device=device)
    if how == "moved":
        base.to("meta")
    assert env.observation_spec["observation"].device == torch.device("meta")
    following = env.step(env.reset().set("action", torch.zeros(1, device="meta")))["next"]
    assert following["observation"].device.type == "meta"


def test_state_of_a_chain_moves_with_it() -> None:
    env, current = in_the_middle()
    env.to("meta")
    following = env.step(current.to("meta"))["next"]
    assert all(value.device.type == "meta" for value in following.values())
    env, current = in_the_middle()
    env.double()
    assert env.step(current)["next", "observation"].dtype is torch.float32


def test_repr_has_env_and_stages() -> None:
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
        "(did you mean reward? existing keys: reward, "
    )


def test_error_of_a_stage_names_its_place() -> None:
    class Fails(Transform):
        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            raise ZeroDivisionError("on purpose")

        def transform_observation_spec(self, observation_spec: Composite) -> Composite:
            return observation_spec

    env = TransformedEnv(CountingEnv(), Compose(StepCounter(), Fails()))
    start = env.reset()
    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        env.rand_step(start)
    assert caught.value.__notes__ == ["tdx: raised in stage 1 (Fails) during a step"]
    with pytest.raises(ChainError, match="ZeroDivisionError: on purpose") as located:
        env.rollout(2)
    assert str(located.value).startswith("stage 1 (Fails), step 0: ")
    assert isinstance(located.value.__cause__, ZeroDivisionError)
