"""An env is an nn.Module: devices, states and hooks."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from tdx import Bounded, Categorical, Composite, DeviceError, EnvBase
from tests.envs.mocks import CountingEnv


class LearnedEnv(EnvBase):
    """Env that observes the output of a layer for the action."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("offset", torch.ones(3))
        self.observation_spec = Composite(observation=Bounded(-9.0, 9.0, (3,)))
        self.action_spec = Bounded(-1.0, 1.0, (2,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(observation=torch.zeros(3, device=self.device), device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict(
            observation=self.layer(tensordict["action"]) + self.offset,
            reward=torch.zeros(1, device=self.device),
            done=torch.zeros(1, dtype=torch.bool, device=self.device),
            device=self.device,
        )

    def _set_seed(self, seed: int | None) -> None:
        return None


def test_parameters_and_buffers_are_listed() -> None:
    env = LearnedEnv()
    assert [name for name, _ in env.named_parameters()] == ["layer.weight", "layer.bias"]
    assert [name for name, _ in env.named_buffers()] == ["offset"]
    assert [name for name, _ in env.named_children()] == ["layer"]
    assert env.get_submodule("layer") is env.layer
    assert env.get_parameter("layer.bias") is env.layer.bias
    assert env.get_buffer("offset") is env.offset


def test_state_dict_round_trip() -> None:
    env, other = LearnedEnv(), LearnedEnv()
    other.load_state_dict(env.state_dict())
    assert set(env.state_dict()) == {"layer.weight", "layer.bias", "offset"}
    assert torch.equal(env.layer.weight, other.layer.weight)


def test_modules_can_be_added_and_applied_to() -> None:
    env = LearnedEnv()
    env.add_module("extra", nn.Linear(1, 1))
    env.register_module("more", nn.Identity())
    assert [name for name, _ in env.named_children()] == ["layer", "extra", "more"]
    seen: list[str] = []
    env.apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "Linear", "Identity", "LearnedEnv"]


def test_train_and_eval_reach_submodules() -> None:
    env = LearnedEnv()
    assert env.eval() is env
    assert not env.training
    assert not env.layer.training
    assert env.train().layer.training


def test_hooks_run_around_a_call() -> None:
    env = LearnedEnv()
    calls: list[str] = []
    env.register_forward_pre_hook(lambda module, args: calls.append("before"))
    handle = env.register_forward_hook(lambda module, args, result: calls.append("after"))
    env(env.rand_action(env.reset()))
    handle.remove()
    env(env.rand_action(env.reset()))
    assert calls == ["before", "after", "before"]


def test_gradients_flow_through_a_step() -> None:
    env = LearnedEnv()
    env.rand_step(env.reset())["next", "observation"].sum().backward()
    assert env.layer.weight.grad is not None
    env.zero_grad()
    assert env.layer.weight.grad is None
    env.requires_grad_(False)
    assert not env.layer.weight.requires_grad


def test_floating_parameters_can_be_cast() -> None:
    env = LearnedEnv().double()
    assert env.layer.weight.dtype is torch.float64
    assert env.to(torch.float32).layer.weight.dtype is torch.float32
    assert env.device == torch.device("cpu")


def test_moving_an_env_moves_its_specs_and_parameters() -> None:
    env = LearnedEnv()
    assert env.to("meta") is env
    assert env.device == torch.device("meta")
    assert env.layer.weight.is_meta
    for spec in (env.action_spec, env.observation_spec, env.reward_spec, env.input_spec):
        assert spec.device is not None
        assert spec.device.type == "meta"
    first = env.reset().set("action", env.action_spec.zero())
    assert env.step(first)["next", "observation"].is_meta
    assert env.fake_tensordict()["observation"].is_meta


def test_moving_keeps_keys_and_settings() -> None:
    env = CountingEnv()
    env.done_spec = Categorical(2, (1,), dtype=torch.bool)
    env.to("meta")
    assert env.done_keys == ["done"]
    assert env.done_spec.device == torch.device("meta")


@pytest.mark.gpu
def test_a_step_takes_a_tensordict_from_another_device() -> None:
    env = LearnedEnv().cuda()
    tensordict = env.step(TensorDict(action=torch.zeros(2), device="cpu"))
    assert tensordict.device is not None
    assert tensordict.device.type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
def test_missing_device_is_an_error(device: str) -> None:
    with pytest.raises(DeviceError, match=f"device {device} is not available"):
        CountingEnv(device=device)
    with pytest.raises(DeviceError, match=f"device {device} is not available"):
        CountingEnv().to(device)
    with pytest.raises(DeviceError, match=r"device cuda.* is not available"):
        CountingEnv().cuda()


def test_invalid_device_name_is_an_error() -> None:
    with pytest.raises(DeviceError, match="unknown device 'nowhere'"):
        CountingEnv(device="nowhere")


@pytest.mark.gpu
def test_an_env_moves_to_an_accelerator_and_back() -> None:
    env = LearnedEnv().cuda()
    assert env.device == torch.device("cuda", torch.cuda.current_device())
    assert env.rollout(3)["next", "observation"].is_cuda
    assert env.cpu().rollout(3)["next", "observation"].device.type == "cpu"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copy_is_independent(copied: Any) -> None:
    env = CountingEnv(100)
    tensordict = env.rand_step(env.reset())
    other = copied(env)
    assert other.rand_step(other.step_mdp(tensordict))["next", "observation"].item() == 2
    assert env.rand_step(env.step_mdp(tensordict))["next", "observation"].item() == 2
    other.action_spec = Categorical(3)
    assert env.action_spec != other.action_spec


def test_repr_has_batch_size_and_device() -> None:
    assert repr(CountingEnv(batch_size=(2,))) == (
        "CountingEnv(batch_size=torch.Size([2]), device=cpu)"
    )
