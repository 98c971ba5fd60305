"""The same env and chain in both libraries, and what must be equal of the two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

import tdx

torchrl_data = pytest.importorskip("torchrl.data")
torchrl_envs = pytest.importorskip("torchrl.envs")
torchrl_record = pytest.importorskip("torchrl.record")

MODULES = (torchrl_record, torchrl_data, torchrl_envs)
ORACLE = SimpleNamespace(**{name: each for m in MODULES for name, each in vars(m).items()})
Stages = Callable[[Any], list[Any]]

# A sum leaves the bounds of what it sums; the oracle promises them for it all the same.
LOOSER_HERE = {"episode_reward"}


def chained(m: Any, env_id: str, stages: Stages, workers: int | None, **kwargs: Any) -> Any:
    """The same env with the same chain in one of the libraries."""
    make = partial(m.GymEnv, env_id, **kwargs)
    base = make() if workers is None else m.SerialEnv(workers, make)
    return m.TransformedEnv(base, m.Compose(*stages(m)))


def leaves(spec: Any) -> dict[Any, Any]:
    return dict(spec.items(True, True))


def assert_same_specs(ours: Any, theirs: Any) -> None:
    """The same keys with the same kind, shape, dtype and ends."""
    for part in ("observation", "reward", "done", "action", "state"):
        mine, wanted = (leaves(getattr(env, f"full_{part}_spec")) for env in (ours, theirs))
        assert mine.keys() == wanted.keys(), part
        for key, spec in wanted.items():
            found = mine[key]
            assert (found.shape, found.dtype) == (spec.shape, spec.dtype), key
            if key in LOOSER_HERE:
                assert isinstance(found, tdx.Unbounded), key
                continue
            assert type(found).__name__ == type(spec).__name__, key
            if isinstance(found, tdx.Bounded):
                assert torch.equal(found.low, spec.space.low), key
                assert torch.equal(found.high, spec.space.high), key


class Actions:
    """A policy of drawn actions, the same for both libraries."""

    def __init__(self, env: Any) -> None:
        ((self.key, self.spec),) = leaves(env.full_action_spec).items()
        self.generator = torch.Generator().manual_seed(11)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = self.spec.shape
        if self.spec.dtype.is_floating_point:
            low, high = self.spec.space.low, self.spec.space.high
            action = low + (high - low) * torch.rand(shape, generator=self.generator)
        else:
            drawn = torch.randint(shape[-1], shape[:-1], generator=self.generator)
            action = torch.nn.functional.one_hot(drawn, shape[-1]).to(self.spec.dtype)
        return tensordict.set(self.key, action)


def fixed_rollout(env: Any, steps: int) -> TensorDictBase:
    """A rollout from the second episode of a seed: the oracle's ``set_seed`` uses up the first."""
    env.set_seed(5, static_seed=True)
    if isinstance(env, tdx.TransformedEnv):
        env.reset()
    rollout = env.rollout(steps, Actions(env), break_when_any_done=False)
    assert isinstance(rollout, TensorDictBase)
    return rollout


def _at(key: Any, message: str) -> str:
    return f"{key}: {message}"


def assert_same_values(
    ours: TensorDictBase, theirs: TensorDictBase, rtol: float = 0.0, atol: float = 0.0
) -> None:
    mine, wanted = dict(ours.items(True, True)), dict(theirs.items(True, True))
    assert set(mine) == set(wanted)
    for key, value in wanted.items():
        message = partial(_at, key)
        torch.testing.assert_close(mine[key], value, rtol=rtol, atol=atol, msg=message)


class Doubles(gymnasium.Env[Any, Any]):
    """Draws its observations, which like the actions and rewards are float64."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-9, 9, 3), {}

    def step(self, action: Any) -> Any:
        assert action.dtype == np.float64
        return self.np_random.uniform(-9, 9, 3), float(action.sum()), False, False, {}
