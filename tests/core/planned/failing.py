"""Envs that fail at a given step, and rollouts of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from tdx import (
    Bounded,
    Compose,
    Composite,
    EnvBase,
    GymWrapper,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    TdxError,
    TransformedEnv,
    Unbounded,
)
from tdx.core.plan import plan_of
from tests.core.planned.test_law import compared

BAD_STEP = 5


class Counting(gymnasium.Env[np.ndarray[Any, Any], np.ndarray[Any, Any]]):
    """Gymnasium env that observes the number of steps and fails at given ones."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, bad_step: int = -1, bad_reset: int = -1, error: Any = ValueError) -> None:
        self.bad_step, self.bad_reset, self.error = bad_step, bad_reset, error
        self.steps = self.resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.resets == self.bad_reset:
            raise self.error("no more episodes\nand more of it")
        self.resets += 1
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.steps == self.bad_step:
            raise self.error("it broke\nand more of it")
        self.steps += 1
        observation = np.array([self.steps, float(action[0])], np.float32)
        return observation, 1.0, self.steps % 3 == 0, False, {}


class Plain(EnvBase):
    """Native env that fails at given steps."""

    step_reads: tuple[Any, ...] | None = ()

    def __init__(self, bad_step: int = -1, bad_reset: int = -1, error: Any = ValueError) -> None:
        super().__init__()
        self.inside = Counting(bad_step, bad_reset, error)
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        observation, _ = self.inside.reset()
        return TensorDict(observation=torch.from_numpy(observation))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation, reward, done, _, _ = self.inside.step(tensordict["action"].numpy())
        return TensorDict(
            observation=torch.from_numpy(observation),
            reward=torch.tensor([reward]),
            terminated=torch.tensor([done]),
        )

    def _set_seed(self, seed: int | None) -> None:
        return None


BASES: dict[str, Callable[..., EnvBase]] = {
    "Gymnasium": lambda **how: GymWrapper(Counting(**how)),
    "batch": lambda **how: SerialEnv(
        2, [lambda: GymWrapper(Counting()), lambda: GymWrapper(Counting(**how))]
    ),
    "plain": lambda **how: Plain(**how),
}


def chained(base: EnvBase, planned: bool, *stages: Any) -> TransformedEnv:
    env = TransformedEnv(
        base, Compose(ObservationNorm(0.0, 2.0), *stages, RewardSum()), planned=planned
    )
    assert planned == (plan_of(env, ["observation"]).executor == "planned")
    return env


def until_error(
    env: EnvBase, policy: Any = None, steps: int = 12, chunk: int = 4, **kwargs: Any
) -> tuple[list[TensorDictBase], BaseException]:
    """Return the chunks of a failing rollout and its error."""
    torch.manual_seed(3)
    parts: list[TensorDictBase] = []
    kwargs.setdefault("break_when_any_done", False)
    with pytest.raises(BaseException) as caught:  # noqa: PT011, PT012 - returned
        for part in env.iter_rollout(steps, policy, chunk_steps=chunk, **kwargs):
            parts.append(part)  # noqa: PERF402 - those before an error are kept
    return parts, caught.value


def both(
    make: Callable[[bool], EnvBase], policy: Callable[[], Any] = lambda: None, **kwargs: Any
) -> tuple[int, BaseException]:
    """Return the number of steps before an error, and the error; planned equals eager."""
    mine, error = until_error(make(True), policy(), **kwargs)
    other, expected = until_error(make(False), policy(), **kwargs)
    assert [part.shape for part in mine] == [part.shape for part in other]
    for ours, theirs in zip(mine, other, strict=True):
        compared(ours, theirs)
    assert type(error) is type(expected)
    if isinstance(error, TdxError):
        assert isinstance(expected, TdxError)
        assert "\n" not in str(error)
        assert error.where.step == expected.where.step
        assert error.where.stage == expected.where.stage
        assert (error.message, error.hint) == (expected.message, expected.hint)
    else:
        assert getattr(error, "__notes__", []) == getattr(expected, "__notes__", [])
    return sum(part.shape[-1] for part in mine), error


class Constant(nn.Module):
    """Policy with a constant action."""

    def __init__(self, action: float) -> None:
        super().__init__()
        self.action = action

    def forward(self, observation: Tensor) -> Tensor:
        return observation[..., :1] * 0 + self.action
