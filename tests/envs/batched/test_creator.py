"""Envs that share the state of their modules."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tdx.core.envs import EnvBase
from tdx.envs.batched import EnvCreator
from tdx.foundation.errors import ArgumentError, KeyNotFoundError
from tests.envs.batched.conftest import MakeBatch
from tests.envs.mocks import CountingEnv
from tests.programs import exhaustive

MORE = partial(CountingEnv, stop=100)


def test_envs_of_a_batch_share_statistics(make_batch: MakeBatch) -> None:
    creator = EnvCreator(MORE)
    env = make_batch(2, creator)
    env.rollout(5)
    steps = int(creator.state_dict()["steps"])
    # Two processes may add to the same number at once, and one of the steps is lost.
    assert 5 <= steps <= 10
    assert [int(value) for value in env.state_dict().values()] == [steps] * 2


def test_sharing_survives_a_function_around_the_creator(make_batch: MakeBatch) -> None:
    creator = EnvCreator(MORE)
    make_batch(2, lambda: creator()).rollout(5)
    assert 5 <= int(creator.state_dict()["steps"]) <= 10


def test_load_state_dict_updates_every_worker(make_batch: MakeBatch) -> None:
    creator = EnvCreator(MORE)
    env = make_batch(2, creator)
    creator.load_state_dict({"steps": torch.tensor(40)})
    assert [int(value) for value in env.state_dict().values()] == [40, 40]


def test_incomplete_state_dict_is_rejected() -> None:
    with pytest.raises(KeyNotFoundError, match="steps"):
        EnvCreator(MORE).load_state_dict({})


def test_state_of_another_shape_is_not_shared() -> None:
    creator = EnvCreator(lambda size: SizedEnv(size), size=2)
    assert creator(size=2).state_dict()["weights"].tolist() == [1.0, 1.0]
    assert creator(size=3).state_dict()["weights"].tolist() == [1.0, 1.0, 1.0]


class SizedEnv(CountingEnv):
    """Env with a parameter of the given size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(size))


def test_parameters_are_shared_too() -> None:
    creator = EnvCreator(lambda: SizedEnv(2))
    with torch.no_grad():
        creator().get_parameter("weights").fill_(5.0)
    assert creator().get_parameter("weights").tolist() == [5.0, 5.0]
    assert creator().get_parameter("weights").requires_grad


@exhaustive
def test_without_shared_memory_each_process_has_its_own(make_parallel: MakeBatch) -> None:
    creator = EnvCreator(MORE, share_memory=False)
    creator.load_state_dict({"steps": torch.tensor(3)})
    env = make_parallel(2, creator)
    env.rollout(5)
    assert [int(value) for value in env.state_dict().values()] == [8, 8]
    assert int(creator.state_dict()["steps"]) == 3


def test_arguments_reach_the_function() -> None:
    creator = EnvCreator(CountingEnv, {"stop": 5}, start=2)
    assert creator.create_env_kwargs == {"stop": 5, "start": 2}
    env = creator(stop=6)
    assert isinstance(env, CountingEnv)
    assert (env.stop, env.start) == (6, 2)


def test_a_variant_shares_the_state() -> None:
    creator = EnvCreator(CountingEnv)
    variant = creator.make_variant(stop=50)
    env = variant()
    assert isinstance(env, CountingEnv)
    assert env.stop == 50
    env.rollout(4)
    assert int(creator.state_dict()["steps"]) == 4
    assert creator.create_env_kwargs == {}


def test_meta_data_and_arguments() -> None:
    metadata = EnvCreator(partial(CountingEnv, batch_size=(3,))).meta_data
    assert metadata.batch_size == torch.Size([3])
    assert metadata.device == torch.device("cpu")
    assert metadata.output_spec["full_reward_spec", "reward"].shape == torch.Size([3, 1])


def test_repr_names_the_function() -> None:
    assert repr(EnvCreator(CountingEnv)).startswith("EnvCreator(<class ")


def test_function_that_does_not_return_an_env_is_rejected() -> None:
    def nothing() -> EnvBase:
        return None  # type: ignore[return-value]

    with pytest.raises(ArgumentError, match="returned a NoneType"):
        EnvCreator(nothing)
