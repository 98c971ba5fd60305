"""``ModuleTransform``: keys, specs and gradients of a TensorDict module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from tdx import (
    CartPoleEnv,
    Categorical,
    Compose,
    ModuleTransform,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, KeyNotFoundError


def encoder(key: str = "features") -> TensorDictModule:
    return TensorDictModule(nn.Linear(4, 3), in_keys=["observation"], out_keys=[key])


def encoded(**arguments: Any) -> TransformedEnv:
    return TransformedEnv(CartPoleEnv(), ModuleTransform(module=encoder(), **arguments))


def test_an_entry_has_the_shape_that_the_module_returns() -> None:
    env = encoded(no_grad=True)
    assert env.observation_spec["features"] == Unbounded((3,))
    steps = env.rollout(4)
    module = env.transform.module.module
    assert torch.equal(steps["features"], module(steps["observation"]))
    check_env_specs(env)


def test_specs_shift_no_random_numbers() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    noisy = TensorDictModule(lambda x: x + torch.rand(1), in_keys=["observation"], out_keys=["o"])
    env = TransformedEnv(CartPoleEnv(), ModuleTransform(module=noisy))
    torch.manual_seed(0)
    assert "o" in env.observation_spec.keys()
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("no_grad", [False, True])
def test_gradients(no_grad: bool) -> None:
    transform = ModuleTransform(module=encoder(), no_grad=no_grad)
    data = transform(TensorDict(observation=torch.zeros(2, 4), batch_size=[2]))
    assert data["features"].requires_grad is not no_grad


def test_an_inverse_module_writes_the_action_of_the_env() -> None:
    flip = TensorDictModule(lambda choice: 1 - choice, in_keys=["choice"], out_keys=["action"])
    stage = ModuleTransform(
        module=flip,
        inverse=True,
        action_spec_transform=lambda spec: (
            spec.clone().update({"choice": spec["action"].clone()}).exclude("action")
        ),
    )
    env = TransformedEnv(CartPoleEnv(categorical_action_encoding=True), Compose(stage))
    assert isinstance(env.action_spec, Categorical)
    assert env.action_keys == ["choice"]
    steps = env.rollout(3)
    assert "choice" in steps.keys()


def test_a_state_dict_holds_the_module() -> None:
    first, second = encoded(), encoded()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.transform.module.module.weight, second.transform.module.module.weight)


def test_a_missing_entry_is_an_error() -> None:
    with pytest.raises(KeyNotFoundError, match="observation"):
        ModuleTransform(module=encoder())(TensorDict())
    module = TensorDictModule(torch.exp, in_keys=["nothing"], out_keys=["b"])
    with pytest.raises(KeyNotFoundError, match="nothing"):
        _ = TransformedEnv(CartPoleEnv(), ModuleTransform(module=module)).observation_spec


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either module or module_factory"),
        ({"module": encoder(), "module_factory": encoder}, "either module or module_factory"),
        ({"module": nn.Linear(1, 1)}, r"Linear has no in_keys \(wrap it: TensorDictModule"),
    ],
)
def test_invalid_modules_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ModuleTransform(**arguments)
