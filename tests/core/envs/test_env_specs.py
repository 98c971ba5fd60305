"""The specs of an env and of an env with a chain, without the env's steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tdx import PendulumEnv, StepCounter, UnsqueezeTransform
from tdx.core.chain import ChainSpecs
from tdx.core.envs.env_specs import EnvSpecs
from tdx.foundation.errors import ChainError, KeyNotFoundError, SpecError
from tdx.specs import Composite, Unbounded


@pytest.fixture
def specs() -> EnvSpecs:
    return EnvSpecs(None, torch.Size([2]))


def test_lone_leaf_gets_the_name_of_its_part(specs: EnvSpecs) -> None:
    specs.set_part("full_reward_spec", Unbounded((2, 3)))
    assert specs.keys("full_reward_spec") == ["reward"]
    assert specs.leaf("full_reward_spec").shape == (2, 3)
    assert specs.part("full_reward_spec").is_locked


def test_each_change_increases_the_version_and_clears_the_cache(specs: EnvSpecs) -> None:
    versions = [specs.version]
    changes: list[Callable[[], None]] = [
        lambda: specs.set_part("full_action_spec", Unbounded((2, 1))),
        lambda: specs.set_specs(specs.input_spec, specs.output_spec),
        lambda: specs.set_batch_size(torch.Size([2])),
        lambda: specs.move(torch.device("meta")),
    ]
    for change in changes:
        specs.cache["derived"] = 1
        change()
        assert "derived" not in specs.cache
        versions.append(specs.version)
    assert versions == sorted(set(versions))


def test_keys_follow_a_change_of_the_spec(specs: EnvSpecs) -> None:
    assert specs.reset_keys() == ["_reset"]
    group = Composite(done=Unbounded((2, 1), dtype=torch.bool), shape=(2,))
    specs.set_part("full_done_spec", Composite(agents=group, shape=(2,)))
    assert specs.reset_keys() == [("agents", "_reset")]
    assert specs.keys("full_done_spec") == [("agents", "done")]


def test_specs_of_another_batch_size_are_rejected(specs: EnvSpecs) -> None:
    with pytest.raises(SpecError, match="must begin with the composite's"):
        specs.set_part("full_action_spec", Unbounded((3, 1)))
    with pytest.raises(SpecError, match="does not start with the env's batch size"):
        specs.set_part("full_action_spec", Composite(action=Unbounded(1)))


def test_fake_data_has_every_declared_key(specs: EnvSpecs) -> None:
    specs.set_part("full_action_spec", Unbounded((2, 1)))
    fake = specs.fake_tensordict()
    assert set(fake.keys(True, True)) == {
        *("done", "terminated", "truncated", "action"),
        *(("next", name) for name in ("done", "terminated", "truncated", "reward")),
    }


def test_attributes_derived_from_specs_are_read_only() -> None:
    env = PendulumEnv()
    for name in ("output_spec", "device", "ndim", "reset_keys"):
        with pytest.raises(AttributeError, match="follows from the specs"):
            setattr(env, name, None)
    with pytest.raises(KeyNotFoundError, match="the env has 2 action keys"):
        _ = EnvWithTwoActions().action_key


class EnvWithTwoActions(PendulumEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_spec = Composite(left=Unbounded(1), right=Unbounded(1))


def test_specs_of_a_chain_follow_the_env_inside_and_the_chain() -> None:
    env = PendulumEnv(batch_size=[2])
    specs = ChainSpecs(env, StepCounter())
    assert specs.keys("full_observation_spec") == ["observation", "step_count"]
    version = specs.version
    env.observation_spec = Composite(position=Unbounded((2, 3)), shape=(2,))
    assert specs.version > version
    assert specs.keys("full_observation_spec") == ["position", "step_count"]
    specs.chain = UnsqueezeTransform(-1, in_keys=["position"])
    specs.invalidate()
    assert specs.part("full_observation_spec")["position"].shape == (2, 3, 1)


def test_specs_of_a_chain_cannot_be_set() -> None:
    specs = ChainSpecs(PendulumEnv(), StepCounter())
    with pytest.raises(ChainError, match=r"env\.base_env\.reward_spec"):
        specs.set_part("full_reward_spec", Unbounded(1))
    with pytest.raises(ChainError, match=r"env\.base_env\.batch_size"):
        specs.set_batch_size(torch.Size([3]))
