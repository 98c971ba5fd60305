"""The stages that are suggested for an env."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from tdx.inspection.envs import suggest_stages
from tdx.pipeline import EnvConfig

NAME = "tdx-tests/OwnCounter-v0"


class OwnCounter(CartPoleEnv):
    """Truncates by a counter of its own, as the envs of MiniGrid do."""

    max_steps = 100


@pytest.fixture
def registered() -> Iterator[str]:
    gymnasium.register(NAME, f"{__name__}:OwnCounter")
    yield NAME
    del gymnasium.registry[NAME]


def test_nothing_is_claimed_of_an_env_whose_limit_is_not_declared(registered: str) -> None:
    counter = suggest_stages(EnvConfig(registered))[-1]
    assert counter.stage.name == "StepCounter"
    assert counter.reason == "truncates an episode after 1000; the env declares no limit of its own"


def test_a_declared_limit_is_named() -> None:
    counter = suggest_stages(EnvConfig("CartPole-v1"))[-1]
    assert counter.reason == "counts steps; the env itself truncates an episode after 500"
