"""Growth of the cost of a step with the chain, the steps and the envs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.bars import Contestant
from tests.benchmarks.chains import (
    Library,
    chain_6_env,
    chain_env,
    native_env,
    serial_env,
)
from tests.benchmarks.conftest import Measure
from tests.benchmarks.growth import LENGTH, NATIVE, SERIAL, STEPS, Growth

CONTESTANTS: tuple[Contestant, ...] = ("TorchRL", "tdx eager", "tdx")
CHAIN_STEPS: dict[Contestant, int] = {"TorchRL": 25, "tdx eager": 100, "tdx": 2000}
BATCH_STEPS: dict[Contestant, int] = {"TorchRL": 10, "tdx eager": 50, "tdx": 500}
# A large batch needs no more env steps.
MOST_ENV_STEPS = 200_000
TORCHRL_STEPS = 1_000
TORCHRL_STAGES = 16
# From this size on, eager contestants run one round per turn.
MANY_STEPS = 1_000


def whose(contestant: Contestant) -> tuple[Library, dict[str, Any]]:
    """The library, and what its ``TransformedEnv`` is given."""
    if contestant == "TorchRL":
        return "TorchRL", {}
    return "tdx", {"planned": contestant == "tdx"}


def measure_rollout(
    measure: Measure,
    growth: Growth,
    size: int,
    contestant: Contestant,
    env: Any,
    steps: int,
) -> None:
    """Time a rollout of one contestant at one size, per env step."""
    env.set_seed(0)
    made: list[Any] = []

    def rollout() -> None:
        made[:] = [env.rollout(steps, break_when_any_done=False)]

    envs = size if growth in (NATIVE, SERIAL) else 1
    is_slow = contestant != "tdx" and steps >= MANY_STEPS
    rounds = 1 if is_slow else 2
    measure(growth.at(size), contestant, rollout, rounds=rounds, units=steps * envs)
    assert made[0].numel() == steps * envs
    env.close()


@pytest.mark.parametrize("size", LENGTH.sizes)
@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_growth_with_the_chain(measure: Measure, size: int, contestant: Contestant) -> None:
    library, options = whose(contestant)
    if library == "TorchRL" and size > TORCHRL_STAGES:
        pytest.skip("takes half a minute to build")
    env = chain_env(library, size, **options)
    measure_rollout(measure, LENGTH, size, contestant, env, CHAIN_STEPS[contestant])


@pytest.mark.parametrize("size", STEPS.sizes)
@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_growth_with_the_steps(measure: Measure, size: int, contestant: Contestant) -> None:
    library, options = whose(contestant)
    if library == "TorchRL" and size > TORCHRL_STEPS:
        pytest.skip("would take longer than all the rest")
    env = chain_6_env(library, **options)
    measure_rollout(measure, STEPS, size, contestant, env, size)


@pytest.mark.parametrize("size", NATIVE.sizes)
@pytest.mark.parametrize("contestant", ["tdx eager", "tdx"])
def test_growth_with_native_envs(measure: Measure, size: int, contestant: Contestant) -> None:
    env = native_env(size, planned=contestant == "tdx")
    steps = min(BATCH_STEPS[contestant], max(MOST_ENV_STEPS // size, 10))
    measure_rollout(measure, NATIVE, size, contestant, env, steps)


@pytest.mark.parametrize("size", SERIAL.sizes)
@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_growth_with_envs_in_turns(measure: Measure, size: int, contestant: Contestant) -> None:
    library, options = whose(contestant)
    env = serial_env(library, size, **options)
    measure_rollout(measure, SERIAL, size, contestant, env, BATCH_STEPS[contestant])
