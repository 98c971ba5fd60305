"""Lists of envs, and stages suggested for them."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from tdx.inspection.envs import list_envs, suggest_stages
from tdx.pipeline import EnvConfig, format_stage

NAME = "tdx-tests/OwnCounter-v0"


class OwnCounter(CartPoleEnv):
    """Truncates by a counter of its own, as the envs of MiniGrid do."""

    max_steps = 100


@pytest.fixture
def registered() -> Iterator[str]:
    gymnasium.register(NAME, f"{__name__}:OwnCounter")
    yield NAME
    del gymnasium.registry[NAME]


def test_env_without_a_declared_limit(registered: str) -> None:
    counter = suggest_stages(EnvConfig(registered))[-1]
    assert counter.stage.name == "StepCounter"
    assert counter.reason == "truncates episodes after 1000 steps; the env has no limit"


def test_env_with_a_declared_limit() -> None:
    counter = suggest_stages(EnvConfig("CartPole-v1"))[-1]
    assert counter.reason == "counts steps; the env truncates episodes after 500 steps"


def test_images_get_the_stages_that_networks_expect() -> None:
    found = suggest_stages(EnvConfig("CartPole-v1", from_pixels=True))
    assert [format_stage(each.stage) for each in found] == [
        *("ToTensorImage", "GrayScale", "Resize(w=84, h=84)", "CatFrames(N=4, dim=-3)"),
        *("InitTracker", "RewardSum", "StepCounter"),
    ]


def test_search_matches_every_word() -> None:
    assert [env.id for env in list_envs("CART pole v1")] == ["CartPole-v1"]
    assert list_envs("cart nonsense") == ()


def test_search_puts_the_nearest_names_first() -> None:
    found = [env.id for env in list_envs("pendulum")]
    assert found[:2] == ["Pendulum-v1", "tdx/Pendulum"]
    assert "InvertedPendulum-v5" in [env.id for env in list_envs("pendulum", missing=True)][2:]
    assert [env.id for env in list_envs("mountaincarc")] == ["MountainCarContinuous-v0"]
    lakes = [env.id for env in list_envs("v1 frozenlake")]
    assert lakes == ["FrozenLake-v1", "FrozenLake8x8-v1"]


def test_envs_of_missing_packages_are_listed_on_demand() -> None:
    all_envs = list_envs(missing=True)
    assert all(env.installed for env in list_envs())
    assert {env.id for env in list_envs()} <= {env.id for env in all_envs}
    assert all(env.hint for env in all_envs if not env.installed)
