"""A policy that writes ``[*B]`` for an action spec ``[*B, 1]`` is understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule

from tdx import ActionScaling, EnvBase, GymEnv, PendulumEnv, SerialEnv, StepCounter, TransformedEnv
from tdx.foundation.errors import ArgumentError


def first_number(observation: torch.Tensor) -> torch.Tensor:
    return observation[..., 0]


def first_number_as_row(observation: torch.Tensor) -> torch.Tensor:
    return observation[..., :1]


def module(function: Callable[..., Any]) -> TensorDictModule:
    return TensorDictModule(function, in_keys=["observation"], out_keys=["action"])


def over_tensordict(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", first_number(tensordict["observation"]))


def pendulum() -> EnvBase:
    return GymEnv("Pendulum-v1")


ENVS: dict[str, Callable[[], EnvBase]] = {
    "gym": pendulum,
    "serial": lambda: SerialEnv(2, pendulum),
    "native": lambda: PendulumEnv(batch_size=[2]),
    "chain": lambda: TransformedEnv(pendulum(), StepCounter()),
    "inverse": lambda: TransformedEnv(SerialEnv(2, pendulum), ActionScaling()),
}


@pytest.mark.parametrize("policy", [module(first_number), over_tensordict], ids=["keyed", "any"])
@pytest.mark.parametrize("name", ENVS)
def test_rollouts_equal_those_with_the_dim(name: str, policy: Any) -> None:
    env = ENVS[name]()
    rollouts = []
    for each in (policy, module(first_number_as_row)):
        env.set_seed(3)
        torch.manual_seed(3)
        rollouts.append(env.rollout(4, each))
    flat, full = rollouts
    assert flat["action"].shape == (*env.batch_size, 4, 1)
    assert (flat == full).all()


def test_other_shapes_are_refused() -> None:
    def pairs(observation: torch.Tensor) -> torch.Tensor:
        return observation[..., :2]

    with pytest.raises(ArgumentError, match=r"of shape \(2,\).* the action spec says \(1,\)"):
        pendulum().rollout(2, module(pairs))


def test_kinds_of_numbers_are_checked_all_the_same() -> None:
    def whole(tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict(action=torch.tensor(1))

    with pytest.raises(ArgumentError, match="floats"):
        pendulum().rollout(2, whole)
