"""Envs and stages that fail or violate their specs at a given step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from tdx import PendulumEnv, TransformedEnv
from tdx.core.transforms import Transform
from tdx.envs import EnvBase
from tdx.specs import Bounded, Categorical, Composite, Unbounded

StepFunction = Callable[[TensorDictBase], TensorDictBase]


class At(Transform):
    """Applies a function in one step, counted from 0."""

    def __init__(self, step: int, function: StepFunction) -> None:
        super().__init__()
        self.step, self.function, self.steps = step, function, 0

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        return self.function(next_tensordict) if self.steps == self.step + 1 else next_tensordict


def raises(tensordict: TensorDictBase) -> TensorDictBase:
    raise ValueError("the stage is out of order")


def writes_nan(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("reward", torch.full_like(tensordict.get("reward"), torch.nan))


def writes_too_much(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("observation", tensordict.get("observation") * 0 + 99)


def pendulum(*stages: Transform) -> TransformedEnv:
    """Make a pendulum with these stages."""
    env = TransformedEnv(PendulumEnv())
    for stage in stages:
        env.append_transform(stage)
    return env


class Ragged(EnvBase):
    """Two rows whose episodes have different lengths, with small images."""

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
        return self._observation(torch.zeros_like(self.lengths))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        count = tensordict.get("count") + 1
        result = self._observation(count)
        result.set("reward", count * 10.0 ** torch.arange(len(self.lengths)).unsqueeze(-1))
        result.set("terminated", count >= self.lengths)
        return result

    def _observation(self, count: torch.Tensor) -> TensorDict:
        pixels = torch.zeros(*self.batch_size, 8, 12, 3, dtype=torch.uint8)
        pixels[..., 0] = 100 * (count + 1).reshape(-1, 1, 1).to(torch.uint8)
        return TensorDict({"count": count, "pixels": pixels}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        """Do nothing: the env is deterministic."""


class Team(EnvBase):
    """An env whose first agent ends after 2 steps, its second after 3, and which ends after 4."""

    def __init__(self) -> None:
        super().__init__()
        agents = Composite(count=Unbounded((2, 1)), shape=(2,))
        self.observation_spec = Composite(agents=agents)
        self.action_spec = Composite(agents=Composite(action=Unbounded((2, 1)), shape=(2,)))
        self.reward_spec = Unbounded((1,))
        flags = Categorical(2, shape=(2, 1), dtype=torch.bool)
        self.done_spec = Composite(
            agents=Composite(done=flags, shape=(2,)), done=Categorical(2, (1,), dtype=torch.bool)
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or bool(mask.any()):
            self.step_count = 0
        return TensorDict(agents=TensorDict(count=torch.zeros(2, 1), batch_size=[2]))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.step_count += 1
        count = torch.full((2, 1), float(self.step_count))
        done = count == torch.tensor([[2.0], [3.0]])
        agents = TensorDict(count=count, done=done, batch_size=[2])
        return TensorDict(
            agents=agents, reward=torch.ones(1), done=torch.tensor([self.step_count == 4])
        )

    def _set_seed(self, seed: int | None) -> None:
        return None
