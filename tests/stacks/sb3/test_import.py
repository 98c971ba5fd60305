"""Stable-Baselines3 stacks as pipelines: counterparts, and the comparison of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from stable_baselines3.common.atari_wrappers import ClipRewardEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from tdx.foundation.errors import ArgumentError
from tdx.inspection.stack_import import StackImport, import_stack
from tdx.stacks import open_stack
from tdx.stacks.conversion import Convertible
from tdx.stacks.refusals import Missing
from tests.programs import exhaustive
from tests.stacks.bad_stacks import Passing
from tests.stacks.comparing import proofs, stages

Make = Callable[[], Any]
FRAMES = ("CatFrames",)


def converted(make: Make, steps: int = 60) -> StackImport:
    return import_stack(lambda: open_stack(make()), steps=steps)


def cart_poles(count: int = 2, limit: int = 20) -> DummyVecEnv:
    return DummyVecEnv([lambda: gym.make("CartPole-v1", max_episode_steps=limit)] * count)


def evaluated() -> Any:
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=30)] * 2))
    statistics: Any = env.obs_rms
    statistics.mean, statistics.var = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0])
    env.ret_rms.var = np.array(250.0)
    env.clip_obs, env.training = 1.5, False
    return env


@exhaustive
def test_evaluation_is_normalized_by_the_frozen_statistics() -> None:
    found = converted(evaluated, steps=200)
    assert found.pipeline.env.num_envs == 2
    assert stages(found) == [
        "ObservationNorm(loc=[0.1, 0.2, 0.3], scale=[1.0, 1.4142135, 1.7320508], "
        'in_keys=["observation"], standard_normal=True, eps=1e-12)',
        'RewardClipping(clamp_min=-1.5, clamp_max=1.5, in_keys=["observation"])',
        "RewardScaling(loc=0.0, scale=0.06324555)",
        "RewardClipping(clamp_min=-10.0, clamp_max=10.0)",
    ]
    assert found.is_equal, proofs(found)
    assert not found.gap


def test_training_is_marked_and_the_stages_above_are_compared_on_top_of_it() -> None:
    found = converted(lambda: VecFrameStack(VecNormalize(cart_poles()), 3), steps=50)
    missing = found.stages[4].result
    assert isinstance(missing, Missing)
    assert missing.reason.startswith("its statistics start with mean 0")
    assert missing.suggestion is not None
    assert stages(found) == ['CatFrames(N=3, dim=-1, in_keys=["observation"], padding="constant")']
    assert proofs(found) == [
        "stages 0 to 3: equal for 50 steps",
        "stage 5 on top of stage 4: equal for 50 steps",
    ]
    assert found.gap.startswith("compared 5 of 6 stages; not converted: 4 VecNormalize; ")


def images() -> Any:
    def make() -> Any:
        env = gym.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=4)
        return wrappers.AddRenderObservation(env)

    return VecFrameStack(VecTransposeImage(DummyVecEnv([make])), 2)


class Reach(gym.Env[Any, Any]):
    """Observes a dict."""

    observation_space = gym.spaces.Dict(
        state=gym.spaces.Box(-1, 1, (2,), np.float32), goal=gym.spaces.Box(-1, 1, (1,), np.float64)
    )
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def _observe(self) -> dict[str, Any]:
        draw = self.np_random.uniform
        return {"state": draw(-1, 1, 2).astype(np.float32), "goal": draw(-1, 1, 1)}

    def step(self, action: Any) -> Any:
        ended = bool(self.np_random.random() < 0.1)
        return self._observe(), float(action), ended, False, {}


def dicts() -> Any:
    if "Reach-v0" not in gym.registry:
        gym.register("Reach-v0", f"{__name__}:Reach")
    return DummyVecEnv([lambda: gym.make("Reach-v0")] * 3)


def normalized_dicts() -> Any:
    env = VecNormalize(dicts(), training=False, norm_obs_keys=["goal"], norm_reward=False)
    statistics: Any = env.obs_rms
    statistics["goal"].mean = np.array([0.5])
    return env


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: VecMonitor(cart_poles()), ["RewardSum", "StepCounter"]),
        (lambda: make_vec_env("FrozenLake-v1", 2), ["RewardSum", "StepCounter"]),
        (
            lambda: VecMonitor(VecFrameStack(cart_poles(), 2)),
            ["CatFrames", "RewardSum", "StepCounter"],
        ),
        (lambda: VecCheckNan(cart_poles(3), raise_exception=True), []),
        (lambda: VecNormalize(cart_poles(), norm_obs=False, norm_reward=False), []),
        (images, ["PermuteTransform", "CatFrames"]),
        (lambda: VecExtractDictObs(dicts(), "state"), ["SelectTransform"]),
        (normalized_dicts, ["ObservationNorm", "DTypeCastTransform", "RewardClipping"]),
        (lambda: VecFrameStack(dicts(), 2), ["CatFrames"]),
    ],
)
def test_wrappers_are_equal(make: Make, names: list[str]) -> None:
    found = converted(make)
    assert found.is_equal, proofs(found)
    assert not found.gap
    assert [each.name for each in found.pipeline.transforms] == names


def test_signs_of_rewards_and_normalized_rewards_are_marked() -> None:
    def make() -> Any:
        inner = DummyVecEnv([lambda: ClipRewardEnv(gym.make("CartPole-v1"))])
        return VecMonitor(VecNormalize(inner, norm_obs=False))

    found = converted(make, steps=20)
    reasons = [each.result.reason for each in found.stages if isinstance(each.result, Missing)]
    assert reasons == [
        "it returns the sign of the reward, RewardClipping a value between",
        "it divides by the deviation of discounted returns, VecNorm by that of rewards",
    ]
    assert not found.has_difference, proofs(found)
    assert not found.is_equal


def different() -> Any:
    one = lambda: gym.make("CartPole-v1")  # noqa: E731
    return DummyVecEnv([one, lambda: wrappers.ClipReward(gym.make("CartPole-v1"), -1.0)])


def unregistered() -> Any:
    return DummyVecEnv([Reach])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (different, "the sub-envs have different wrappers"),
        (unregistered, "the env inside, Reach, was not created by an id"),
        (
            lambda: Passing(cart_poles(limit=500)),
            "no stage has a counterpart: Passing: it is a class",
        ),
    ],
)
def test_stacks_that_cannot_be_converted(make: Make, message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        converted(make, steps=3)
    assert raised.value.message.startswith(message)
    assert raised.value.hint


@pytest.mark.filterwarnings("ignore:The environment is already wrapped:UserWarning")
def test_outer_monitor_replaces_the_statistics_of_the_inner_one() -> None:
    found = converted(lambda: VecMonitor(evaluated_with_monitor()))
    assert found.is_equal, proofs(found)
    assert stages(found)[-1] == 'StepCounter(step_count_key="step_count_2")'


def evaluated_with_monitor() -> Any:
    env = VecNormalize(make_vec_env("CartPole-v1", 2), training=False)
    env.ret_rms.var = np.array(16.0)
    return env


def test_sub_envs_that_differ_are_found() -> None:
    def make() -> Any:
        ends = iter((0.5, 0.25))
        return DummyVecEnv(
            [lambda: wrappers.ClipReward(gym.make("CartPole-v1"), -1.0, next(ends))] * 2
        )

    found = converted(make, steps=5)
    assert str(found.comparisons[0]) == (
        "first difference at step 0: TDX511 value: stage 3 (ClipReward), key 'reward': "
        "it is 0.5 instead of 0.25, and 0.5 is kept"
    )


def test_sub_envs_in_worker_processes_are_refused() -> None:
    def make() -> Any:
        return gym.make("CartPole-v1")

    env = SubprocVecEnv([make], start_method="fork")
    try:
        stack = open_stack(env)
        assert isinstance(stack, Convertible)
        with pytest.raises(ArgumentError, match="the sub-envs of SubprocVecEnv cannot be read"):
            stack.convert()
    finally:
        env.close()
