"""Arguments of an env that have the name of a parameter of ``GymEnv`` or ``gymnasium.make``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tdx.envs.gym import GymEnv
from tdx.foundation.errors import ArgumentError
from tdx.pipeline import Pipeline, build_checked_env, from_python, to_python
from tdx.pipeline.model import EnvConfig
from tests.envs.gym.mocks import SpaceEnv

GIVEN: dict[str, Any] = {
    "env_name": "maze",
    "num_envs": 7,
    "device": "robot",
    "env": "inner",
    "frame_skip": 3,
    "seed": 9,
    "id": "first",
    "kwargs": "none",
    "row": 1,
}


class NamesEnv(SpaceEnv):
    """Env whose arguments have the names of parameters of ``GymEnv``."""

    def __init__(
        self,
        env_name: str = "",
        num_envs: int = 0,
        device: str = "",
        env: str = "",
        frame_skip: int = 0,
        seed: int = 0,
        id: str = "",
        kwargs: str = "",
        row: int = 0,
    ) -> None:
        super().__init__()
        names: Any = (env_name, num_envs, device, env, frame_skip, seed, id, kwargs, row)
        self.given = dict(zip(GIVEN, names, strict=True))


@pytest.fixture(autouse=True)
def registered(register_env: Callable[[str, Any], None]) -> None:
    register_env("Names-v0", NamesEnv)


@pytest.mark.parametrize(("num_envs", "batching"), [(None, "vector"), (2, "vector"), (2, "serial")])
def test_the_kwargs_of_a_pipeline_reach_the_env(num_envs: int | None, batching: Any) -> None:
    pipeline = Pipeline(EnvConfig("Names-v0", GIVEN, num_envs=num_envs, batching=batching))
    env: Any = build_checked_env(pipeline).base_env
    inner = env
    if batching == "serial":
        inner = env._envs[1]
    raw = inner._env.envs[1] if num_envs and batching == "vector" else inner._env
    assert raw.unwrapped.given == GIVEN
    assert env.batch_size == (() if num_envs is None else (num_envs,))
    assert from_python(to_python(pipeline)) == pipeline


def test_env_kwargs_are_passed_to_the_env() -> None:
    env = GymEnv("Names-v0", row=4, env_kwargs={"env_name": "maze", "frame_skip": 2})
    given = env.unwrapped.given
    assert (given["env_name"], given["frame_skip"], given["row"]) == ("maze", 2, 4)
    with pytest.raises(ArgumentError, match="row is given twice"):
        GymEnv("Names-v0", row=4, env_kwargs={"row": 1})


def test_an_argument_that_only_gym_env_has() -> None:
    with pytest.raises(ArgumentError) as caught:
        build_checked_env(Pipeline(EnvConfig("Pendulum-v1", {"num_envs": 3})))
    assert caught.value.message == "the env has no argument 'num_envs'"
    assert "field of env, next to kwargs" in str(caught.value.hint)


def test_the_length_of_an_episode_is_still_an_argument() -> None:
    assert GymEnv("Pendulum-v1", max_episode_steps=5).rollout(9).shape == (5,)
