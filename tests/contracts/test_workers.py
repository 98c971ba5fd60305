"""Contracts of vector envs whose wrappers run in worker processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

import tdx
from tdx.foundation.errors import ArgumentError
from tdx.stacks import open_stack
from tests.contracts import envs as made

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as envs:
        yield envs


def scaled(factor: float) -> Callable[[], Any]:
    return lambda: made.Mapped(made.Pendulum64(), lambda x: x / factor)


def learning(factor: float = 8.0) -> Callable[[], Any]:
    return lambda: wrappers.NormalizeObservation(scaled(factor)())


def gym_workers(opened: ExitStack, make: Callable[[], Any]) -> Any:
    env = AsyncVectorEnv([make] * 2, context="fork")
    opened.callback(env.close)
    return env


def sb3_workers(opened: ExitStack, make: Callable[[], Any]) -> Any:
    env = VecNormalize(SubprocVecEnv([make] * 2, start_method="fork"))
    opened.callback(env.close)
    return env


@pytest.mark.parametrize("create", [gym_workers, sb3_workers])
def test_a_fault_in_the_workers_is_named(create: Any, opened: ExitStack) -> None:
    contract = tdx.freeze(create(opened, scaled(8.0)), steps=3)
    assert "copies of Mapped were compared" in contract.notes[0]
    report = tdx.check_contract(create(opened, scaled(4.0)), contract)
    assert report.first is not None
    assert (report.first.kind, report.first.name, report.first.key) == (
        *("scale", "Mapped", "observation"),
    )
    assert tdx.check_contract(create(opened, scaled(8.0)), contract).same


def test_statistics_in_the_workers_are_compared_and_unchanged(opened: ExitStack) -> None:
    env = gym_workers(opened, learning())
    env.reset(seed=0)
    for _ in range(5):
        env.step(np.zeros((2, 1), np.float32))
    before = open_stack(env).state()
    contract = tdx.freeze(env, steps=3)
    after = open_stack(env).state()
    assert before[1]["obs_rms.mean"].equal(after[1]["obs_rms.mean"])
    assert env.step(np.zeros((2, 1), np.float32))[0].shape == (2, 3), "it can be stepped on"
    first = tdx.check_contract(gym_workers(opened, learning()), contract).first
    assert first is not None
    assert (first.kind, first.name) == ("state fresh", "NormalizeObservation")


def test_the_log_of_a_monitor_is_not_written(opened: ExitStack, tmp_path: Path) -> None:
    path = tmp_path / "log"
    env = sb3_workers(opened, lambda: Monitor(scaled(8.0)(), str(path)))
    size = path.with_suffix(".monitor.csv").stat().st_size
    assert "Monitor" in tdx.freeze(env, steps=3).notes[0]
    assert path.with_suffix(".monitor.csv").stat().st_size == size


def locked() -> Any:
    env = scaled(8.0)()
    env.lock = threading.Lock()
    return env


def test_an_env_that_cannot_be_copied_is_refused_in_a_sentence(opened: ExitStack) -> None:
    contract = tdx.freeze(scaled(8.0)(), steps=3)
    env = gym_workers(opened, locked)
    for refused in (lambda: tdx.freeze(env), lambda: tdx.check_contract(env, contract)):
        with pytest.raises(ArgumentError, match=r"Mapped run in worker .* cannot pickle") as caught:
            refused()
        assert "SyncVectorEnv" in str(caught.value.hint)
    assert env.reset(seed=0)[0].shape == (2, 3)
