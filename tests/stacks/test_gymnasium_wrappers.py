"""Chains of Gymnasium's wrappers: attached and bare runs are equal, nothing remains attached."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers

from tdx.core import StepTrace
from tdx.core.tracing import TraceChecker
from tdx.stacks import open_stack
from tests.programs import exhaustive, sampled
from tests.stacks.comparing import (
    assert_equal_states,
    is_equal,
    make_seeded,
    methods,
    run,
)

Make = Callable[[], Any]
LONG, SHORT = 300, 80


def _classic() -> Any:
    env = gym.make("CartPole-v1", max_episode_steps=30)
    env = wrappers.TimeAwareObservation(env)
    env = wrappers.NormalizeObservation(env)
    env = wrappers.FrameStackObservation(env, 3)
    env = wrappers.FlattenObservation(env)
    env = wrappers.DtypeObservation(env, np.float64)
    env = wrappers.NormalizeReward(env)
    return wrappers.RecordEpisodeStatistics(wrappers.ClipReward(env, -1.0, 1.0))


def _continuous() -> Any:
    env = gym.make("Pendulum-v1", max_episode_steps=40)
    env = wrappers.ClipAction(wrappers.RescaleAction(env, np.float32(-1), np.float32(1)))
    env = wrappers.StickyAction(env, 0.2)
    env = wrappers.RescaleObservation(env, np.float32(-1), np.float32(1))
    env = wrappers.DelayObservation(env, 2)
    env = wrappers.TransformObservation(env, lambda value: value / 2, None)
    env = wrappers.TransformReward(env, lambda value: float(value) / 10)
    return wrappers.ReshapeObservation(env, (3, 1))


def _discretized() -> Any:
    env = gym.make("MountainCarContinuous-v0", max_episode_steps=50)
    env = wrappers.DiscretizeAction(env, 7)
    env = wrappers.DiscretizeObservation(env, 9)
    return wrappers.TransformAction(env, lambda action: action, spaces.Discrete(7))


def _skipping() -> Any:
    env = gym.make("Acrobot-v1", max_episode_steps=60)
    return wrappers.Autoreset(wrappers.MaxAndSkipObservation(env, 3))


def _repeating() -> Any:
    return wrappers.RepeatAction(gym.make("Pendulum-v1", max_episode_steps=40), 2)


def _grid() -> Any:
    return gym.make("FrozenLake-v1")


def _tuple() -> Any:
    return gym.make("Blackjack-v1")


def _rendered() -> Any:
    env = gym.make("Taxi-v4", render_mode="rgb_array", max_episode_steps=20)
    env = wrappers.AddWhiteNoise(env, 0.3)
    env = wrappers.ObstructView(env, 0.3, 4)
    return wrappers.RenderCollection(wrappers.AddRenderObservation(env, render_only=False))


def _images() -> Any:
    pytest.importorskip("minigrid")
    env: Any = gym.make("MiniGrid-Empty-5x5-v0", max_episode_steps=25)
    env = wrappers.FilterObservation(env, ["image", "direction"])
    env = wrappers.TransformObservation(
        env, lambda value: value["image"], env.observation_space["image"]
    )
    env = wrappers.AddWhiteNoise(
        wrappers.GrayscaleObservation(env), probability_of_noise_per_pixel=0.3
    )
    return wrappers.FrameStackObservation(env, 4)


def _dict() -> Any:
    pytest.importorskip("minigrid")
    return gym.make("MiniGrid-Empty-5x5-v0", max_episode_steps=25)


def _mujoco() -> Any:
    pytest.importorskip("mujoco")
    env = gym.make("InvertedPendulum-v5", max_episode_steps=30)
    return wrappers.NormalizeReward(wrappers.NormalizeObservation(wrappers.ClipAction(env)))


def _atari() -> Any:
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1, max_episode_steps=200)
    env = wrappers.MaxAndSkipObservation(env, 4)
    env = wrappers.GrayscaleObservation(env)
    return wrappers.FrameStackObservation(wrappers.ClipReward(env, -1, 1), 4)


STACKS: list[tuple[Make, int]] = [
    (_classic, LONG),
    (_continuous, LONG),
    (_discretized, LONG),
    (_skipping, SHORT),
    (_repeating, SHORT),
    (_grid, LONG),
    (_tuple, SHORT),
    (_rendered, 12),
    (_images, SHORT),
    (_dict, SHORT),
    (_mujoco, LONG),
    (_atari, 40),
]
NAMES = [make.__name__.strip("_") for make, _ in STACKS]


@pytest.mark.parametrize(("make", "steps"), STACKS, ids=NAMES)
@sampled(5)
def test_attached_run_equals_the_bare_run(make: Make, steps: int) -> None:
    actions: list[Any] = []
    bare = make_seeded(make)
    expected = run(bare, steps, actions)
    env = make_seeded(make)
    before = methods(env)
    stack = open_stack(env)
    checker = TraceChecker(stack)
    traces = counted = 0
    problems: dict[str, Any] = {}

    def on_trace(trace: StepTrace) -> None:
        nonlocal traces, counted
        traces += 1
        counted += sum(bool(stage.written) for stage in trace.stages)
        if traces <= SHORT:
            for each in checker.check(trace):
                problems.setdefault(f"{each.by.place} {each.violation.key}", each.violation)

    with stack.attach(on_trace):
        found = run(env, steps, actions)
    assert is_equal(found, expected)
    assert traces == len(expected)
    assert counted >= traces
    assert not problems, problems
    assert methods(env) == before
    assert all(own is None for own, _ in before)
    assert_equal_states(bare, env)
    bare.close()
    env.close()


@exhaustive
def test_preprocessing_inside_the_vector_env_of_ale_is_named() -> None:
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)
    make = partial(gym.make_vec, "ALE/Pong-v5", 2, vectorization_mode="vector_entry_point")
    env = wrappers.vector.ClipReward(make(frameskip=2), -1, 1)
    try:
        stack = open_stack(env)
        assert [stage.name for stage in stack.stages] == ["ClipReward"]
        assert stack.env_arguments["frameskip"] == 2
        # Not given, so that the class decides.
        assert stack.env_arguments["stack_num"] == 4
        assert "frameskip=2" in stack.hidden[0]
        assert "stages are not shown" in stack.hidden[0]
    finally:
        env.close()


def test_arguments_that_the_vector_env_of_ale_does_not_keep_are_not_guessed() -> None:
    pytest.importorskip("ale_py")
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv("pong", num_envs=1, frameskip=2)
    try:
        stack = open_stack(env)
        assert "frameskip" not in stack.env_arguments
        assert "gymnasium.make_vec" in stack.hidden[0]
    finally:
        env.close()
