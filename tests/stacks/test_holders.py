"""An env that holds another one is a stage, and envs that stay hidden are named."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv

import tdx
from tdx.cli.process import run
from tdx.inspection.stack_import import import_stack
from tdx.stacks import open_stack
from tests.programs import exhaustive


class Holder(gym.Env[Any, Any]):
    """Steps an env that it keeps in an attribute, as emulation layers do."""

    def __init__(self, env: Any, name: str = "env") -> None:
        self.name = name
        setattr(self, name, env)
        # Part of the same env.
        self.simulator = env.unwrapped
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return getattr(self, self.name).reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, reward, *rest = getattr(self, self.name).step(action)
        return observation, 2 * reward, *rest


class Hiding(Holder):
    """Holds a second env, of another library, and some more in a list."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.twin = tdx.GymEnv("CartPole-v1")
        self.others = [gym.make("CartPole-v1"), gym.make("CartPole-v1")]


class Foreign:
    """An env of a library that tdx does not know."""

    action_space = "north or south"

    def reset(self) -> float:
        return 0.0

    def step(self, action: Any) -> float:
        return 0.0


class Bridge(gym.Env[Any, Any]):
    """Converts an env of another library."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.foreign = Foreign()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.low * self.foreign.reset(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.low * self.foreign.step(action), 0.0, False, False, {}


class Peeking(Holder):
    """Reads the env that it holds, and does not step it."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def scaled() -> Any:
    return wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 0.5 * float(reward))


def make_held() -> Holder:
    return Holder(gym.make("Pendulum-v1"), "world")


def names(target: Any) -> list[str]:
    return [stage.name for stage in open_stack(target).stages]


@pytest.mark.parametrize("name", ["env", "_env", "venv", "world"])
def test_env_in_an_attribute_is_followed(name: str) -> None:
    env = wrappers.TimeLimit(Holder(scaled(), name), 9)
    stack = open_stack(env)
    inside = names(scaled())
    assert [stage.name for stage in stack.stages] == [*inside, "Holder", "TimeLimit"]
    assert (stack.name, list(stack.notes)) == ("CartPole-v1", [])
    tracer: Any = tdx.trace(env)
    trace = tracer.step()
    index = len(inside)
    rewards = [stage.written["reward"].value for stage in trace.stages if "reward" in stage.written]
    assert [stage.index for stage in trace.stages if "reward" in stage.written][-1] == index
    assert [float(reward) for reward in rewards] == [1.0, 0.5, 1.0]


def test_held_env_in_each_sub_env_is_followed() -> None:
    for vector in (SyncVectorEnv, DummyVecEnv):
        env: Any = vector([lambda: Holder(scaled())] * 2)
        assert names(env)[:-1] == [*names(scaled()), "Holder"]
        assert open_stack(env).stages[0].rows == 2
        env.close()


@exhaustive
def test_fault_across_a_holder_is_reported() -> None:
    env = wrappers.TransformReward(
        Holder(gym.make("Pendulum-v1")), lambda reward: 3 * float(reward)
    )
    (finding,) = tdx.check(env, seed=0).findings
    assert (finding.code, finding.where.transform) == ("TDX405", "TransformReward")
    assert "(Holder) scales the reward already" in finding.message


def test_env_that_refers_to_its_holder_ends_the_search() -> None:
    inner: Any = gym.make("CartPole-v1").unwrapped
    env = inner.parent = Holder(inner)
    assert names(env) == ["Holder"]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            Hiding,
            [
                "Hiding holds an env of another library, GymEnv, in .twin, "
                "whose stages are not shown",
                "Hiding holds 2 envs in .others, whose stages are not shown",
            ],
        ),
        (
            Bridge,
            [
                "Bridge holds an env of another library, Foreign, in .foreign, "
                "whose stages are not shown"
            ],
        ),
        (
            lambda: Peeking(gym.make("CartPole-v1").unwrapped),
            ["Peeking calls neither reset nor step of the env that it holds"],
        ),
    ],
    ids=["several", "foreign", "not stepped"],
)
@exhaustive
def test_what_cannot_be_seen_is_named(make: Any, expected: list[str]) -> None:
    assert list(tdx.check(make(), seed=0).hidden) == expected


@pytest.mark.parametrize(
    ("factory", "verdict"),
    [("Bridge", "no issue in what is visible"), ("scaled", "all checks passed")],
)
@exhaustive
def test_hidden_stages_have_not_passed(
    factory: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", f"{__name__}:{factory}", "--allow-code"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert verdict in text
    assert ("note: Bridge holds" in text) == (factory == "Bridge")


@exhaustive
def test_registered_holder_is_imported_by_its_id() -> None:
    gym.register("Held-v0", f"{__name__}:make_held", max_episode_steps=9)
    try:
        env = gym.make("Held-v0")
        assert open_stack(env).name == "Held-v0"
        imported = import_stack(lambda: open_stack(gym.make("Held-v0")))
        assert imported.pipeline.env.id == "Held-v0"
    finally:
        gym.registry.pop("Held-v0")
        env.close()
