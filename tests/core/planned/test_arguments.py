"""The arguments of ``rollout``, planned and eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from tdx import (
    CartPoleEnv,
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from tdx.core.plan import plan_of
from tests.core.planned.test_law import compared

ENVS: dict[str, Callable[[], EnvBase]] = {
    "single": lambda: GymEnv("CartPole-v1"),
    "serial": lambda: SerialEnv(3, lambda: GymEnv("CartPole-v1")),
    "native": lambda: CartPoleEnv(batch_size=[2]),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "lazy": {"return_contiguous": False},
    "lazy over ends": {"return_contiguous": False, "break_when_any_done": False},
    "truncated": {"set_truncated": True, "break_when_any_done": False},
    "truncated or ended": {"set_truncated": True},
    "all done": {"break_when_all_done": True},
    "cast": {"auto_cast_to_device": True, "break_when_any_done": False},
}


def made(name: str, planned: bool) -> TransformedEnv:
    chain = Compose(
        RewardSum(), StepCounter(7), InitTracker(), CatFrames(2, -1, in_keys=["observation"])
    )
    env = TransformedEnv(ENVS[name](), chain, planned=planned)
    env.set_seed(0)
    torch.manual_seed(0)
    return env


def compared_rows(mine: TensorDictBase, other: TensorDictBase, dim: int) -> None:
    assert isinstance(mine, LazyStackedTensorDict) is isinstance(other, LazyStackedTensorDict)
    if isinstance(mine, LazyStackedTensorDict):
        mine, other = (torch.stack(list(each.unbind(dim)), dim) for each in (mine, other))
    compared(mine, other)


@pytest.mark.parametrize("arguments", sorted(ARGUMENTS))
@pytest.mark.parametrize("name", sorted(ENVS))
def test_arguments_of_rollout(name: str, arguments: str) -> None:
    results = []
    for planned in (True, False):
        env = made(name, planned)
        results.append(env.rollout(12, **ARGUMENTS[arguments]))
    assert plan_of(made(name, planned=True)).executor == "planned"
    compared_rows(results[0], results[1], env.ndim)


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("name", sorted(ENVS))
def test_start_of_a_rollout(name: str, stop: bool) -> None:
    """The given root has an additional entry, which is kept."""
    results = []
    for planned in (True, False):
        env = made(name, planned)
        root = env.rand_step(env.reset())
        start = env.step_mdp(root).set("label", torch.full((*env.batch_size, 2), 3.0))
        kept = start.clone()
        rollout = env.rollout(9, auto_reset=False, tensordict=start, break_when_any_done=stop)
        compared(start, kept)
        again = env.rollout(3, tensordict=start, break_when_any_done=stop)
        results.append((rollout, again))
    for mine, other in zip(*results, strict=True):
        assert (mine["label"] == 3).all()
        compared(mine, other)


def _keep(seen: list[Any], env: EnvBase, step: TensorDictBase) -> None:
    seen.append(step["next", "step_count"].clone())


@pytest.mark.parametrize("name", sorted(ENVS))
def test_a_callback_sees_every_step(name: str) -> None:
    results = []
    for planned in (True, False):
        env = made(name, planned)
        seen: list[Any] = []
        # The callback sees the values of the rollout.
        rollout = env.rollout(5, callback=partial(_keep, seen))
        assert torch.equal(torch.stack(seen, env.ndim), rollout["next", "step_count"])
        results.append(rollout)
    compared(*results)


def test_missing_start_is_an_error() -> None:
    env = made("single", planned=True)
    with pytest.raises(ValueError, match="auto_reset is off"):
        env.rollout(3, auto_reset=False)
