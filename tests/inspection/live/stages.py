"""Envs and stages that misbehave, each in its own way and at its own step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from tdx import PendulumEnv, TransformedEnv
from tdx.core.transforms import Transform
from tdx.envs import EnvBase
from tdx.specs import Bounded, Categorical, Composite, Unbounded

Deed = Callable[[TensorDictBase], TensorDictBase]


class At(Transform):
    """Does something in one step, counted from 0, and nothing in all others."""

    def __init__(self, step: int, deed: Deed) -> None:
        super().__init__()
        self.step, self.deed, self.made = step, deed, 0

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self.made += 1
        return self.deed(next_tensordict) if self.made == self.step + 1 else next_tensordict


def raises(tensordict: TensorDictBase) -> TensorDictBase:
    raise ValueError("the stage is out of order")


def writes_nan(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("reward", torch.full_like(tensordict.get("reward"), torch.nan))


def writes_too_much(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("observation", tensordict.get("observation") * 0 + 99)


def pendulum(*stages: Transform) -> TransformedEnv:
    """A pendulum behind these stages."""
    env = TransformedEnv(PendulumEnv())
    for stage in stages:
        env.append_transform(stage)
    return env


class Ragged(EnvBase):
    """Two rows whose episodes end after different numbers of steps, with small images."""

    def __init__(self, lengths: tuple[int, ...] = (2, 3)) -> None:
        rows = len(lengths)
        super().__init__(batch_size=[rows])
        self.lengths = torch.tensor(lengths).unsqueeze(-1)
        self.observation_spec = Composite(
            count=Unbounded((rows, 1), dtype=torch.int64),
            pixels=Bounded(0, 255, (rows, 8, 12, 3), dtype=torch.uint8),
            shape=(rows,),
        )
        self.action_spec = Categorical(3, (rows,))
        self.reward_spec = Unbounded((rows, 1))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._given(torch.zeros_like(self.lengths))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        count = tensordict.get("count") + 1
        found = self._given(count)
        found.set("reward", count * 10.0 ** torch.arange(len(self.lengths)).unsqueeze(-1))
        found.set("terminated", count >= self.lengths)
        return found

    def _given(self, count: torch.Tensor) -> TensorDict:
        pixels = torch.zeros(*self.batch_size, 8, 12, 3, dtype=torch.uint8)
        pixels[..., 0] = 100 * (count + 1).reshape(-1, 1, 1).to(torch.uint8)
        return TensorDict({"count": count, "pixels": pixels}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        """Nothing is random."""
