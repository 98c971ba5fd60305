"""Emulated envs and vector envs of PufferLib: stages, values, contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import tdx
from tdx.core import StepTrace
from tdx.inspection.stack_import import import_stack
from tdx.stacks import open_stack
from tests.programs import require_package

pytestmark = [
    pytest.mark.programs,
    # PufferLib imports gym, and says that it runs without its extensions.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:PufferLib:UserWarning"),
]

LIMIT = 12


@pytest.fixture(scope="module")
def puffer() -> Any:
    """PufferLib with its modules."""
    require_package("pufferlib")
    import pufferlib.emulation
    import pufferlib.vector

    return pufferlib


def emulated_env(puffer: Any, low: float) -> Any:
    def create() -> Any:
        env = gymnasium.make("CartPole-v1", max_episode_steps=LIMIT)
        return gymnasium.wrappers.TransformObservation(
            env, lambda value: np.maximum(value, np.float32(low)), env.observation_space
        )

    return puffer.emulation.GymnasiumPufferEnv(env_creator=create)


@pytest.fixture
def make(puffer: Any) -> Callable[..., Any]:
    """Return a function that creates a vector env of two sub-envs in this process."""

    def create(low: float = -0.5, backend: str = "Serial") -> Any:
        return puffer.vector.make(
            lambda **_: emulated_env(puffer, low),
            num_envs=2,
            backend=getattr(puffer.vector, backend),
        )

    return create


def test_wrappers_inside_an_emulated_env_are_stages(puffer: Any) -> None:
    stack = open_stack(emulated_env(puffer, -0.5))
    assert [stage.name for stage in stack.stages][-2:] == [
        "TransformObservation",
        "GymnasiumPufferEnv",
    ]
    assert not stack.hidden
    assert tdx.check(stack, seed=0, steps=LIMIT).findings == ()
    contract = tdx.freeze(emulated_env(puffer, -0.01), steps=2 * LIMIT)
    assert tdx.check_contract(emulated_env(puffer, -0.01), contract).verdict == "same"
    assert tdx.check_contract(emulated_env(puffer, 0.0), contract).verdict == "different"


def test_wrappers_in_the_sub_envs_of_a_vector_env_are_stages(make: Callable[..., Any]) -> None:
    stack = open_stack(make())
    assert [stage.call for stage in stack.stages][-1] == "Serial"
    assert [stage.rows for stage in stack.stages] == [2] * (len(stack.stages) - 1) + [None]
    assert stack.name == "CartPole-v1"
    assert not stack.hidden
    # Episodes end within these steps.
    findings = tdx.check(stack, seed=0, steps=3 * LIMIT).findings
    # PufferLib returns its buffers.
    assert {finding.code for finding in findings} == {"TDX499"}


def test_values_are_those_of_steps_by_hand(make: Callable[..., Any]) -> None:
    def roll(env: Any) -> list[Any]:
        first = env.reset(seed=3)[0].copy()
        actions = (np.array([step % 2, 1]) for step in range(2 * LIMIT))
        return [first, *(env.step(action)[0].copy() for action in actions)]

    stack = open_stack(make())
    traces: list[StepTrace] = []
    with stack.attach(traces.append):
        observed = roll(stack.target)
    assert all(map(np.array_equal, observed, roll(make())))
    outer = len(stack.stages) - 1
    for trace, value in zip(traces, observed, strict=True):
        assert np.array_equal(trace.after(outer)["observation"].value, value)


def test_contract_is_kept_by_itself_and_finds_another_limit(make: Callable[..., Any]) -> None:
    contract = tdx.freeze(make(-0.01), steps=2 * LIMIT)
    report = tdx.check_contract(make(-0.01), contract)
    assert report.verdict == "same"
    assert not report.excluded
    assert tdx.check_contract(make(0.0), contract).verdict == "different"


def test_wrappers_in_the_sub_envs_become_a_pipeline_with_equal_values(puffer: Any) -> None:
    def create() -> Any:
        env = gymnasium.make("CartPole-v1", max_episode_steps=LIMIT)
        return gymnasium.wrappers.FrameStackObservation(env, 3)

    def emulated(**_: Any) -> Any:
        return puffer.emulation.GymnasiumPufferEnv(env_creator=create)

    converted = import_stack(
        lambda: open_stack(puffer.vector.make(emulated, num_envs=2, backend=puffer.vector.Serial)),
        steps=2 * LIMIT,
    )
    assert [stage.name for stage in converted.pipeline.transforms] == [
        *("UnsqueezeTransform", "CatFrames")
    ]
    assert converted.pipeline.env.num_envs == 2
    assert converted.is_equal
    assert not converted.missing
