"""Stages and functions for tests of chains."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from tdx import TensorSpec, Transform, TransformedEnv


def names(env: TransformedEnv) -> list[str]:
    return [type(stage).__name__ for stage in env.stages]


def add_square(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("square", tensordict["observation"] ** 2)


class Adds(Transform):
    """Stage that adds a parameter to the reward."""

    def __init__(self, number: float) -> None:
        super().__init__(in_keys=["reward"])
        self.number = nn.Parameter(torch.tensor(number), requires_grad=False)

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + self.number


def zero_action(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.zeros(*tensordict.batch_size, 2))


class Shift(Transform):
    """Stage that adds 1 to each in-key and subtracts 1 in the inverse."""

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 1

    def _inv_apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor - 1

    def _transform_spec(self, spec: Any) -> TensorSpec:
        return spec.replace(low=spec.low + 1, high=spec.high + 1)

    _inv_transform_spec = _transform_spec


class Double(Transform):
    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    def _inv_apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor / 2
