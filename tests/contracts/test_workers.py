"""Contracts of vector envs whose wrappers run in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

import tdx
from tdx.foundation.errors import ArgumentError
from tests.contracts import envs as made
from tests.programs import exhaustive

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as envs:
        yield envs


def scaled(factor: float) -> Callable[[], Any]:
    return lambda: made.Mapped(made.Pendulum64(), lambda x: x / factor)


def gym_workers(opened: ExitStack, make: Callable[[], Any]) -> Any:
    env = AsyncVectorEnv([make] * 2, context="fork")
    opened.callback(env.close)
    return env


@exhaustive
def test_a_fault_in_the_workers_is_named(opened: ExitStack) -> None:
    contract = tdx.freeze(gym_workers(opened, scaled(8.0)), steps=3)
    assert "its env_fns create in this process" in contract.notes[0]
    report = tdx.check_contract(gym_workers(opened, scaled(4.0)), contract)
    assert report.first is not None
    assert (report.first.kind, report.first.name, report.first.key) == (
        *("scale", "Mapped", "observation"),
    )
    assert tdx.check_contract(gym_workers(opened, scaled(8.0)), contract).same


@exhaustive
def test_a_missing_wrapper_in_the_workers_is_a_difference(opened: ExitStack) -> None:
    env = gym_workers(opened, lambda: wrappers.NormalizeObservation(scaled(8.0)()))
    contract = tdx.freeze(env, steps=3)
    assert "without the workers' state" in contract.notes[0]
    assert not tdx.check_contract(gym_workers(opened, scaled(8.0)), contract).same
    assert env.reset(seed=0)[0].shape == (2, 3)


@exhaustive
def test_what_cannot_be_created_again_is_named_as_not_compared(opened: ExitStack) -> None:
    env = VecNormalize(SubprocVecEnv([scaled(8.0)] * 2, start_method="fork"))
    opened.callback(env.close)
    contract = tdx.freeze(env, steps=3)
    assert [stage.name for stage in contract.stages][1:] == ["VecNormalize"]
    assert "run in worker processes, so their stages are not shown" in contract.notes[0]
    report = tdx.check_contract(env, contract)
    assert report.same
    assert any("worker processes" in note for note in report.notes)


@exhaustive
def test_an_env_in_worker_processes_repeats_itself(opened: ExitStack) -> None:
    env = SubprocVecEnv([scaled(8.0)] * 2, start_method="fork")
    opened.callback(env.close)
    contract = tdx.freeze(env, steps=3)
    assert not any("does not repeat itself" in note for note in contract.notes)
    assert tdx.check_contract(env, contract).same


@exhaustive
def test_an_env_in_worker_processes_that_draws_anew_has_no_contract(opened: ExitStack) -> None:
    def make() -> Any:
        draw = np.random.default_rng().uniform
        return made.Mapped(made.Pendulum64(), lambda x: x + draw())

    env = SubprocVecEnv([make] * 2, start_method="fork")
    opened.callback(env.close)
    with pytest.raises(ArgumentError, match="no stages, and the env returns other values"):
        tdx.freeze(env, steps=3)
