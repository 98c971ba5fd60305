"""Faults of ten kinds in stacks of many libraries: a contract of the sound stack finds each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import tdx
from tdx.contracts import Contract, ContractReport
from tdx.stacks import open_stack
from tests.programs import sampled
from tests.stacks import faulty_stacks as stacks
from tests.stacks.faulty_stacks import FAULTS, LIMIT, Plan, sound

LEAK = "leak over the episode boundary"
SAMPLES = [
    {"x": np.random.default_rng(index).uniform(-1, 1, 4).astype(np.float32)} for index in range(12)
]


@dataclass(frozen=True)
class Recipe:
    """A stack with the preprocessing.

    Args:
        make: Creates it.
        gain: A factor after which some values are clipped.
        meaningless: Kinds of faults that it cannot have, each with the reason.
        has_samples: True for a data pipeline.
    """

    make: Callable[[Plan], Any]
    gain: float = 1.0
    meaningless: tuple[tuple[str, str], ...] = ()
    has_samples: bool = False


_NO_EPISODES = ((LEAK, "it has no history"),)
_OWN_HISTORY = ((LEAK, "CatFrames clears its frames in each reset"),)


def _gym(function: Callable[[str, Plan], Any], env: str, gain: float, *args: Any) -> Recipe:
    return Recipe(partial(function, env), gain, *args)


RECIPES = {
    "Gymnasium, CartPole": _gym(stacks.single, "CartPole-v1", 6),
    "Gymnasium, Pendulum": _gym(stacks.single, "Pendulum-v1", 1),
    "Gymnasium, Acrobot": _gym(stacks.single, "Acrobot-v1", 1),
    "Gymnasium, MountainCar": _gym(stacks.single, "MountainCar-v0", 1),
    "Gymnasium, MountainCarContinuous": _gym(stacks.single, "MountainCarContinuous-v0", 1),
    "Gymnasium, InvertedPendulum": _gym(stacks.single, "InvertedPendulum-v5", 6),
    "Gymnasium, sub-envs, CartPole": _gym(stacks.in_sub_envs, "CartPole-v1", 6),
    "Gymnasium, sub-envs, Pendulum": _gym(stacks.in_sub_envs, "Pendulum-v1", 1),
    "Gymnasium, vector wrappers": _gym(stacks.outside, "CartPole-v1", 6),
    "Stable-Baselines3, sub-envs": _gym(stacks.vec_env, "CartPole-v1", 6),
    "Stable-Baselines3, VecEnv wrappers": _gym(stacks.outside_vec_env, "Pendulum-v1", 1),
    "tdx, CartPole": _gym(stacks.chain, "CartPole-v1", 6, _OWN_HISTORY),
    "tdx, Pendulum": _gym(stacks.chain, "Pendulum-v1", 1, _OWN_HISTORY),
    "TorchRL": _gym(stacks.torchrl, "Pendulum-v1", 1, _OWN_HISTORY),
    "list of callables": Recipe(stacks.callables, 1, _NO_EPISODES, has_samples=True),
    "Sequential": Recipe(stacks.sequential, 1, _NO_EPISODES, has_samples=True),
    "Compose": Recipe(stacks.compose, 1, _NO_EPISODES, has_samples=True),
    "PettingZoo": Recipe(stacks.parallel, 1, _NO_EPISODES),
    "Tianshou": _gym(stacks.tianshou, "CartPole-v1", 6),
    "PufferLib": _gym(stacks.puffer, "CartPole-v1", 6),
    "RLlib": _gym(stacks.rllib, "Pendulum-v1", 1, _NO_EPISODES),
}
_PACKAGES = {"PettingZoo", "PufferLib", "RLlib", "Tianshou"}
"""Stacks of libraries that the extra ``test`` does not install."""


def _open(name: str, plan: Plan) -> Any:
    recipe = RECIPES[name]
    return open_stack(recipe.make(plan), SAMPLES if recipe.has_samples else None)


@cache
def _contract(name: str) -> Contract:
    return tdx.freeze(_open(name, sound(RECIPES[name].gain)), steps=2 * LIMIT + 2)


def _check(name: str, plan: Plan) -> ContractReport:
    return tdx.check_contract(_open(name, plan), _contract(name))


def _marked(name: str, *values: str) -> Any:
    marks = [pytest.mark.programs] if name in _PACKAGES else []
    warnings = pytest.mark.filterwarnings("ignore")
    return pytest.param(name, *values, marks=[*marks, warnings], id=", ".join((name, *values)))


@pytest.mark.parametrize("name", [_marked(name) for name in RECIPES])
@sampled(3)
def test_sound_stack_shows_all_stages_and_keeps_its_contract(name: str) -> None:
    plan = sound(RECIPES[name].gain)
    stack = _open(name, plan)
    names = [stage.name for stage in stack.stages]
    kinds = [type(function).__name__ for function in plan.stages]
    assert [stage for stage in names if stage in kinds] == kinds
    report = _check(name, plan)
    assert report.verdict == "same"
    assert not report.excluded
    assert report.coverage.stages == report.coverage.all_stages


_PAIRS = [
    _marked(name, fault)
    for name, recipe in RECIPES.items()
    for fault in FAULTS
    if fault not in dict(recipe.meaningless)
]


@sampled(7)
@pytest.mark.parametrize(("name", "fault"), _PAIRS)
def test_planted_fault_is_found(name: str, fault: str) -> None:
    report = _check(name, FAULTS[fault](sound(RECIPES[name].gain)))
    assert report.verdict == "different"
    assert report.differences
