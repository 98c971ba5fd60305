"""Parts of the examples of transforms that act at resets and ends of episodes."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from tests.transforms.envs import GroupsEnv, RowsEnv


class SteppedRowsEnv(RowsEnv):
    """``RowsEnv`` that can step some of its rows alone."""

    _steps_some_rows = True

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows, before = tensordict.get("_step", None), self.count
        result = super()._step(tensordict)
        if rows is not None:
            self.count = torch.where(rows, self.count, before)
        return result


class SteppedGroupsEnv(GroupsEnv):
    """``GroupsEnv`` that can step some of its rows alone."""

    _steps_some_rows = True

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows, before = tensordict.get("_step", None), dict(self.counts)
        result = super()._step(tensordict)
        if rows is not None:
            for name, count in self.counts.items():
                self.counts[name] = torch.where(rows, count, before[name])
        return result


def same_size(tensordict: TensorDictBase) -> TensorDictBase:
    """Return the batch unchanged: the batch sizes of the tests differ."""
    reshaped: TensorDictBase = tensordict.reshape(tensordict.batch_size)
    return reshaped


def cubed(value: Tensor) -> Tensor:
    """Map one entry."""
    return value**3


def high(tensordict: TensorDictBase) -> Tensor:
    """Return True at some steps of ``RowsEnv``, ``[*B]``."""
    return tensordict["precise"][..., 0] > 0.9


def solo_high(tensordict: TensorDictBase) -> Tensor:
    """Return True at some steps of ``GroupsEnv``, ``[*B]``."""
    return tensordict["solo", "precise"][..., 0] > 0.6


class Adding(nn.Module):
    """Recurrent module whose state is the weighted sum of its inputs.

    Args:
        state: Key of the state.
    """

    def __init__(self, state: str = "hidden") -> None:
        super().__init__()
        self.in_keys: list[Any] = ["observation", state]
        self.out_keys: list[Any] = ["out", ("next", state)]
        self.state = state
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        time = tensordict.ndim - 1
        first = tensordict[self.state].narrow(time, 0, 1)
        state = first + (self.weight * tensordict["observation"]).cumsum(time)
        tensordict["out"] = state + 1
        tensordict["next", self.state] = state
        return tensordict


def sequences(batch: int = 2, steps: int = 6) -> TensorDict:
    """Return stored sequences ``[batch, steps]`` for :class:`Adding`."""
    return TensorDict(
        {
            "observation": torch.arange(float(batch * steps)).reshape(batch, steps, 1),
            "hidden": torch.zeros(batch, steps, 1),
            "number": torch.arange(steps).expand(batch, steps),
        },
        batch_size=[batch, steps],
    )
