"""Batches of envs against the oracle's, value by value.

The oracle resets one more time than requested after ``set_seed``, so here tdx resets twice. Its
chain of seeds is another one, so every env gets the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from tdx import EnvCreator, GymEnv, ParallelEnv, SerialEnv
from tests.programs import exhaustive, sampled

pytestmark = pytest.mark.filterwarnings("ignore")

oracle = pytest.importorskip("torchrl.envs")

Make = Callable[..., Any]

ENVS = ["Pendulum-v1", "CartPole-v1", "Acrobot-v1"]
# A fork has imported both libraries already.
FORK = "fork"
KINDS: dict[str, Make] = {
    "serial": SerialEnv,
    "parallel": partial(ParallelEnv, mp_start_method=FORK),
}
STEPS = 30


def gym(name: str) -> Make:
    return lambda: GymEnv(name)


def oracle_gym(name: str) -> Make:
    from torchrl.envs import GymEnv as OracleGymEnv

    return lambda: OracleGymEnv(name)


@pytest.fixture
def closing() -> Iterator[Callable[[Any], Any]]:
    """Closes what it is given when the test has ended."""
    envs: list[Any] = []

    def keep(env: Any) -> Any:
        envs.append(env)
        return env

    yield keep
    for env in envs:
        if not env.is_closed:
            env.close()


def seeded(mine: Any, theirs: Any, seed: int) -> None:
    theirs.set_seed(seed, static_seed=True)
    mine.set_seed(seed, static_seed=True)
    mine.reset()


def played(env: Any, actions: torch.Tensor) -> TensorDictBase:
    current, steps = env.reset(), []
    for action in actions:
        step, current = env.step_and_maybe_reset(current.set("action", action.clone()))
        steps.append(step.clone())
    return torch.stack(steps, len(env.batch_size))


def differing(mine: TensorDictBase, theirs: TensorDictBase) -> list[Any]:
    keys = set(mine.keys(True, True)) | set(theirs.keys(True, True))
    odd = []
    for key in keys:
        one, other = mine.get(key, None), theirs.get(key, None)
        if one is None or other is None or one.dtype != other.dtype or not torch.equal(one, other):
            odd.append(key)
    return odd


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ENVS)
@sampled(3)
def test_seeded_rollouts_are_equal(name: str, kind: str, closing: Callable[[Any], Any]) -> None:
    theirs = closing(oracle.SerialEnv(3, oracle_gym(name)))
    mine = closing(KINDS[kind](3, gym(name)))
    torch.manual_seed(0)
    actions = torch.stack([mine.action_spec.rand() for _ in range(STEPS)])
    seeded(mine, theirs, 7)
    assert differing(played(mine, actions), played(theirs, actions)) == []


@exhaustive
def test_seeded_rollouts_equal_those_of_the_oracles_processes(
    closing: Callable[[Any], Any],
) -> None:
    theirs = closing(
        oracle.ParallelEnv(2, oracle.EnvCreator(oracle_gym("CartPole-v1")), mp_start_method=FORK)
    )
    torch.manual_seed(0)
    actions = torch.stack([theirs.action_spec.rand() for _ in range(STEPS)])
    for kind in KINDS:
        mine = closing(KINDS[kind](2, EnvCreator(gym("CartPole-v1"))))
        seeded(mine, theirs, 7)
        assert differing(played(mine, actions), played(theirs, actions)) == [], kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ENVS)
def test_specs_are_equal(name: str, kind: str, closing: Callable[[Any], Any]) -> None:
    theirs = closing(oracle.SerialEnv(2, oracle_gym(name)))
    mine = closing(KINDS[kind](2, gym(name)))
    assert mine.batch_size == theirs.batch_size
    for side in ("output_spec", "input_spec"):
        one, other = getattr(mine, side), getattr(theirs, side)
        assert set(one.keys(True, True)) == set(other.keys(True, True))
        for key in one.keys(True, True):
            assert one[key].shape == other[key].shape
            assert one[key].dtype == other[key].dtype
            assert type(one[key]).__name__ == type(other[key]).__name__
    for key in ("low", "high"):
        bound = getattr(theirs.observation_spec["observation"], key)
        assert torch.equal(getattr(mine.observation_spec["observation"], key), bound)


@pytest.mark.parametrize("kind", KINDS)
@exhaustive
def test_partial_resets_are_equal(kind: str, closing: Callable[[Any], Any]) -> None:
    def nested(outer: Any, inner: Any, make: Make) -> Any:
        return closing(outer(2, lambda: inner(3, make)))

    theirs = nested(oracle.SerialEnv, oracle.SerialEnv, oracle_gym("CartPole-v1"))
    mine = nested(KINDS[kind], SerialEnv, gym("CartPole-v1"))
    mask = torch.zeros(2, 3, 1, dtype=torch.bool)
    mask[0, 1] = mask[1, 2] = True
    results = []
    seeded(mine, theirs, 3)
    for env in (mine, theirs):
        current = played(env, env.action_spec.zero()[None].clone())[:, :, 0]["next"].clone()
        current.set("_reset", mask.clone())
        results.append(env.reset(current.exclude("reward"))["observation"])
    assert torch.equal(*results)
