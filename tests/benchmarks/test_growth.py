"""Growth of the cost of a step with the number of stages, steps and envs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.bars import Contestant
from tests.benchmarks.chains import (
    Library,
    chain_6_env,
    chain_env,
    libraries,
    native_env,
    serial_env,
)
from tests.benchmarks.conftest import Compare, Run
from tests.benchmarks.growth import LENGTH, NATIVE, SERIAL, STEPS

CONTESTANTS: tuple[Contestant, ...] = ("TorchRL", "tdx eager", "tdx")
CHAIN_STEPS: dict[Contestant, int] = {"TorchRL": 25, "tdx eager": 100, "tdx": 2000}
BATCH_STEPS: dict[Contestant, int] = {"TorchRL": 10, "tdx eager": 50, "tdx": 500}
# Limits the number of steps of large batches.
MOST_ENV_STEPS = 200_000
TORCHRL_STEPS = 1_000
TORCHRL_STAGES = 16
ROUNDS = 5


def whose(contestant: Contestant) -> tuple[Library, dict[str, Any]]:
    """Return the library and the arguments of its ``TransformedEnv``."""
    if contestant == "TorchRL":
        return "TorchRL", {}
    return "tdx", {"planned": contestant == "tdx"}


def contestants() -> tuple[Contestant, ...]:
    """Return the contestants whose library is installed."""
    return tuple(each for each in CONTESTANTS if whose(each)[0] in libraries())


def rollout(env: Any, steps: int, envs: int = 1) -> Run:
    """Return a run of a rollout, timed per env step."""
    env.set_seed(0)

    def work() -> None:
        made = env.rollout(steps, break_when_any_done=False)
        assert made.numel() == steps * envs

    return Run(work, steps * envs)


@pytest.mark.parametrize("size", LENGTH.sizes)
def test_growth_with_the_number_of_stages(compare: Compare, size: int) -> None:
    runs = {}
    for contestant in contestants():
        library, options = whose(contestant)
        # Longer chains take half a minute to build in TorchRL.
        if library == "tdx" or size <= TORCHRL_STAGES:
            env = chain_env(library, size, **options)
            runs[contestant] = rollout(env, CHAIN_STEPS[contestant])
    compare(LENGTH.at(size), runs, rounds=ROUNDS)


@pytest.mark.parametrize("size", STEPS.sizes)
def test_growth_with_the_number_of_steps(compare: Compare, size: int) -> None:
    runs = {}
    for contestant in contestants():
        library, options = whose(contestant)
        # Longer rollouts of TorchRL would take most of the time of this test.
        if library == "tdx" or size <= TORCHRL_STEPS:
            runs[contestant] = rollout(chain_6_env(library, **options), size)
    compare(STEPS.at(size), runs, rounds=ROUNDS)


@pytest.mark.parametrize("size", NATIVE.sizes)
def test_growth_with_the_number_of_native_envs(compare: Compare, size: int) -> None:
    runs = {}
    for contestant in ("tdx eager", "tdx"):
        env = native_env(size, planned=contestant == "tdx")
        steps = min(BATCH_STEPS[contestant], max(MOST_ENV_STEPS // size, 10))
        runs[contestant] = rollout(env, steps, size)
    compare(NATIVE.at(size), runs, rounds=ROUNDS)


@pytest.mark.parametrize("size", SERIAL.sizes)
def test_growth_with_the_number_of_serial_envs(compare: Compare, size: int) -> None:
    runs = {}
    for contestant in contestants():
        library, options = whose(contestant)
        env = serial_env(library, size, **options)
        runs[contestant] = rollout(env, BATCH_STEPS[contestant], size)
    compare(SERIAL.at(size), runs, rounds=ROUNDS)
