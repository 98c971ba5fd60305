"""Traps 13 and 14 of the reference: instances, chains without an env, modes, spec violations."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    ActionScaling,
    Bounded,
    Compose,
    Composite,
    InitTracker,
    ObservationNorm,
    RewardScaling,
    RewardSum,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, ChainError, TdxError
from tdx.transforms import Transform
from tests.transforms.envs import RowsEnv

# Instances, chains before an env, modes


def test_one_instance_cannot_be_in_two_chains() -> None:
    counter = StepCounter()
    first = Compose(counter)
    for put in (Compose, lambda t: TransformedEnv(RowsEnv(), t), Compose(InitTracker()).append):
        with pytest.raises(ChainError, match="already part of a chain"):
            put(counter)
    env = TransformedEnv(RowsEnv(), first)
    with pytest.raises(ChainError, match="already part of a chain"):
        env.append_transform(counter)
    env.append_transform(InitTracker())


def test_stages_of_an_unused_copy_move_to_another_chain() -> None:
    env = TransformedEnv(RowsEnv(), Compose(StepCounter(), InitTracker()))
    copied = env.transform.clone()
    first, second = copied
    other = TransformedEnv(RowsEnv(), Compose(RewardSum(), first, second))
    assert list(other.transform)[1:] == [first, second]
    assert (len(copied), len(env.transform)) == (0, 2)
    with pytest.raises(ChainError, match="already part of a chain"):
        Compose(first)
    used = env.transform.clone()
    inside = TransformedEnv(RowsEnv(), used)
    with pytest.raises(ChainError, match="already part of a chain"):
        Compose(used[0])
    check_env_specs(inside)
    check_env_specs(other)


def test_a_chain_works_before_it_has_an_env() -> None:
    chain = Compose(RewardScaling(1.0, 2.0), ObservationNorm(0.0, 3.0, ["observation"]))
    data = chain(TensorDict(reward=torch.ones(1), observation=torch.ones(2)))
    assert data["reward"].item() == 3.0
    assert data["observation"].tolist() == [3.0, 3.0]
    env = TransformedEnv(RowsEnv(), chain)
    check_env_specs(env)


def test_stages_may_be_given_as_a_sequence() -> None:
    stages = [RewardScaling(1.0, 2.0), StepCounter()]
    assert list(Compose(transforms=stages)) == stages
    with pytest.raises(ArgumentError, match="stages twice"):
        Compose(RewardSum(), transforms=stages)


@pytest.mark.parametrize("kind", [IndexError, ValueError, TdxError])
def test_indices_outside_the_chain(kind: type[Exception]) -> None:
    chain = Compose(StepCounter(), RewardSum())
    for index in (3, -3):
        with pytest.raises(kind, match=f"index {index} is out"):
            chain.insert(index, InitTracker())
        with pytest.raises(kind, match=f"index {index} is out"):
            chain.pop(index)
    assert len(chain) == 2


@pytest.mark.parametrize("training", [True, False])
def test_appended_transform_inherits_the_training_mode(training: bool) -> None:
    env = TransformedEnv(RowsEnv(), Compose(StepCounter())).train(training)
    chain = Compose(StepCounter()).train(training)
    appended, put = RewardScaling(0.0, 1.0), RewardScaling(0.0, 1.0)
    env.append_transform(appended)
    chain.append(put)
    assert appended.training is training
    assert put.training is training


# Spec violations


class Declares(Transform):
    """Stage that declares a key without writing it."""

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        result = observation_spec.clone()
        result.unlock_()
        result["promised"] = Bounded(0.0, 1.0, shape=(1,))
        return result


class Writes(Transform):
    """Stage that writes an undeclared key."""

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.set("unannounced", torch.zeros(1))


@pytest.mark.parametrize(("wrong", "key"), [(Declares, "promised"), (Writes, "unannounced")])
def test_the_stage_that_violates_its_spec_is_named(wrong: type[Transform], key: str) -> None:
    chain = Compose(StepCounter(), ActionScaling(), wrong(), RewardSum())
    with pytest.raises(TdxError) as caught:
        check_env_specs(TransformedEnv(RowsEnv(), chain))
    assert caught.value.where.stage == 2
    assert caught.value.where.transform == wrong.__name__
    assert key in str(caught.value)


# Chains that are appended


def test_an_appended_chain_adds_its_stages() -> None:
    clip, track = RewardScaling(0.0, 2.0), InitTracker()
    added = Compose(clip, track)
    env = TransformedEnv(RowsEnv(), StepCounter()).eval()
    env.append_transform(added)
    assert env.stages[1:] == (clip, track)
    assert clip.container is env
    assert not clip.training
    check_env_specs(env)
    assert list(added) == [clip, track]
    with pytest.raises(ChainError, match="already part of a chain"):
        env.append_transform(added)
    for change in (lambda: added.append(StepCounter()), added.pop):
        with pytest.raises(ChainError, match="were appended to another one"):
            change()
    assert len(env.stages) == 3


def test_a_chain_is_free_again_when_the_one_it_was_appended_to_is_gone() -> None:
    added = Compose(RewardScaling(0.0, 2.0))
    env = TransformedEnv(RowsEnv()).append_transform(added)
    del env
    again = TransformedEnv(RowsEnv(), added)
    again.append_transform(InitTracker())
    assert again.transform is added
    assert added[0].container is again
    check_env_specs(again)


def test_a_chain_that_does_more_than_its_stages_is_one_stage() -> None:
    class Louder(Compose):
        def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super().forward(tensordict).apply(lambda value: 10 * value)

    chain = Compose()
    chain.append(Louder(RewardScaling(0.0, 2.0)))
    assert len(chain) == 1
    assert chain(TensorDict(reward=torch.ones(1)))["reward"].item() == 20.0
    inserted = Compose(StepCounter())
    inserted.insert(0, Compose(InitTracker(), RewardSum()))
    assert len(inserted) == 2


def test_an_unwrapped_env_has_the_stages_of_both_chains() -> None:
    env = TransformedEnv(RowsEnv(), StepCounter())
    both = TransformedEnv(env, Compose(InitTracker(), RewardSum()), auto_unwrap=True)
    assert [type(stage) for stage in both.stages] == [StepCounter, InitTracker, RewardSum]
