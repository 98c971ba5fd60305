"""The lint rules for stacks report a fault in an env of each library, and not its correction.

The examples of the rules, which ``tests/inspection/lint`` runs, are Gymnasium's; these are rules on
a library that has no example of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torchrl.envs as rl
from gymnasium import spaces, wrappers
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector
from gymnasium.wrappers.utils import RunningMeanStd
from stable_baselines3.common.atari_wrappers import (
    AtariWrapper,
    ClipRewardEnv,
    MaxAndSkipEnv,
    NoopResetEnv,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

import tdx
from tdx.cli.process import run
from tdx.inspection.lint import stack_observation
from tdx.inspection.lint.linter import select_rules
from tests.programs import exhaustive, sampled

Make = Callable[[], Any]
# TorchRL warns about VecNorm.
pytestmark = pytest.mark.filterwarnings("ignore")


def codes(make: Make) -> list[tuple[str, str | None]]:
    """Return code and class of each finding of a check for an evaluation, and close the env."""
    env = make()
    found = tdx.check(env, seed=0, steps=12, evaluation=True).findings
    env.close()
    return [(each.code, each.where.transform) for each in found]


def vec(limit: int = 10, **options: Any) -> Any:
    kwargs = {"max_episode_steps": limit}
    return make_vec_env("Pendulum-v1", n_envs=2, env_kwargs=kwargs, **options)


def torchrl(*stages: Any) -> Any:
    return rl.TransformedEnv(rl.GymEnv("Pendulum-v1"), rl.Compose(*stages))


def native(*stages: Any) -> Any:
    return tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.Compose(*stages))


def trained(*keys: str) -> Any:
    """Return a frozen normalization with statistics."""
    norm = tdx.VecNorm(keys)
    native(norm).rollout(20)
    return norm.clone().freeze()


def sync(limit: int = 10) -> Any:
    return gym.make_vec(
        "Pendulum-v1", num_envs=2, vectorization_mode="sync", max_episode_steps=limit
    )


class Doubled(VecEnvWrapper):
    """Returns float64 beyond its space, also for the last observation."""

    def reset(self) -> Any:
        return self.venv.reset() * 200.0  # type: ignore[operator]

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        for info in infos:
            if "terminal_observation" in info:
                info["terminal_observation"] = info["terminal_observation"] * 200.0
        return observations * 200.0, rewards, dones, infos  # type: ignore[operator]


class Declared(Doubled):
    def __init__(self, venv: Any) -> None:
        space = venv.observation_space
        super().__init__(venv, spaces.Box(space.low * 200, space.high * 200, dtype=np.float32))


class Merged(gym.Wrapper[Any, Any, Any, Any]):
    """Merges the flags of the end."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, False, info


class _MergedFlags:
    """Merges the flags of the end."""

    def _step(self, tensordict: Any, next_tensordict: Any) -> Any:
        truncated = next_tensordict["truncated"]
        next_tensordict["terminated"] = next_tensordict["terminated"] | truncated
        return next_tensordict.set("truncated", truncated & False)


class MergedFlags(_MergedFlags, rl.Transform):  # type: ignore[misc]
    pass


class NativeMergedFlags(_MergedFlags, tdx.Transform):
    pass


class Unchanged(tdx.Transform):
    """Writes a copy of the observation."""

    def _call(self, next_tensordict: Any) -> Any:
        return next_tensordict.set("observation", next_tensordict["observation"].clone())


class Image(gym.Env[Any, Any]):
    """Random images."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...] = (36, 40, 3)) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        shape = self.observation_space.shape
        return self.np_random.integers(0, 256, shape, np.uint8), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 1.0, False, False, {}


class Cropped(gym.ObservationWrapper[Any, Any, Any]):
    """Takes every other row and column, as those of ``[H, W, C]``."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(
            0, 255, self._crop(env.observation_space.low).shape, np.uint8
        )

    def _crop(self, image: Any) -> Any:
        return image[::2, ::2]

    def observation(self, observation: Any) -> Any:
        return self._crop(observation)


class Depth(gym.Env[Any, Any]):
    """Observes values of the whole range of an unsigned dtype."""

    action_space = spaces.Discrete(2)

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.high = dtype, min(int(np.iinfo(dtype).max), 2**63 - 1)
        self.observation_space = spaces.Box(0, self.high, (3,), dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        return self._observe(), 1.0, False, False, {}

    def _observe(self) -> Any:
        return self.np_random.integers(0, self.high, 3, np.uint64).astype(self.dtype)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("in_vector", [False, True])
def test_unsigned_observations_are_what_their_spec_declares(dtype: Any, in_vector: bool) -> None:
    def make() -> Any:
        return SyncVectorEnv([lambda: Depth(dtype)] * 2) if in_vector else Depth(dtype)

    assert codes(make) == []


def still(env: Any) -> Any:
    env.update_running_mean = False
    return env


CASES: dict[str, tuple[str, str, Make, Make]] = {
    "TDX401 SB3": ("TDX401", "Doubled", lambda: Doubled(vec()), lambda: Declared(vec())),
    "TDX402 Gymnasium vector": (
        "TDX402",
        "RescaleAction",
        lambda: vector.RescaleAction(sync(), -2.0, 2.0),
        lambda: vector.RescaleAction(sync(), -1.0, 1.0),
    ),
    "TDX402 SB3": (
        "TDX402",
        "VecFrameStack",
        lambda: VecFrameStack(vec(), 1),
        lambda: VecFrameStack(vec(), 2),
    ),
    "TDX402 TorchRL": (
        "TDX402",
        "DoubleToFloat",
        lambda: torchrl(rl.StepCounter(10), rl.DoubleToFloat()),
        lambda: torchrl(rl.StepCounter(10)),
    ),
    "TDX403 SB3": (
        "TDX403",
        "VecNormalize",
        lambda: VecFrameStack(VecNormalize(vec()), 3),
        lambda: VecNormalize(VecFrameStack(vec(), 3)),
    ),
    "TDX403 TorchRL": (
        "TDX403",
        "VecNorm",
        lambda: torchrl(
            rl.VecNorm(in_keys=["observation"]),
            rl.CatFrames(N=3, dim=-1, in_keys=["observation"]),
        ),
        lambda: torchrl(
            rl.CatFrames(N=3, dim=-1, in_keys=["observation"]),
            rl.VecNorm(in_keys=["observation"]),
        ),
    ),
    "TDX403 TorchRL, with statistics that stand still": (
        "TDX403",
        "VecNorm",
        lambda: torchrl(
            rl.VecNorm(in_keys=["observation"]),
            rl.CatFrames(N=3, dim=-1, in_keys=["observation"]),
        ),
        lambda: torchrl(
            rl.VecNorm(in_keys=["observation"]).freeze(),
            rl.CatFrames(N=3, dim=-1, in_keys=["observation"]),
        ),
    ),
    "TDX403 tdx": (
        "TDX403",
        "VecNorm",
        lambda: native(tdx.VecNorm(["observation"]), tdx.CatFrames(3, -1, in_keys=["observation"])),
        lambda: native(tdx.CatFrames(3, -1, in_keys=["observation"]), tdx.VecNorm(["observation"])),
    ),
    "TDX404 Gymnasium vector": (
        "TDX404",
        "NormalizeObservation",
        lambda: vector.NormalizeObservation(sync()),
        lambda: still(vector.NormalizeObservation(sync())),
    ),
    "TDX404 TorchRL": (
        "TDX404",
        "VecNorm",
        lambda: torchrl(rl.VecNorm(in_keys=["observation"])),
        lambda: torchrl(rl.VecNorm(in_keys=["observation"]).freeze()),
    ),
    "TDX404 tdx": (
        "TDX404",
        "VecNorm",
        lambda: native(tdx.VecNorm(["observation"])),
        lambda: native(tdx.VecNorm(["observation"]).freeze()),
    ),
    "TDX404 tdx, in an inner chain": (
        "TDX404",
        "VecNorm",
        lambda: tdx.TransformedEnv(native(tdx.VecNorm(["observation"])), tdx.StepCounter()),
        lambda: tdx.TransformedEnv(
            native(tdx.VecNorm(["observation"]).freeze()), tdx.StepCounter()
        ),
    ),
    "TDX404 TorchRL, second version": (
        "TDX404",
        "VecNormV2",
        lambda: torchrl(rl.VecNormV2(in_keys=["observation"])),
        lambda: torchrl(rl.VecNormV2(in_keys=["observation"]).freeze()),
    ),
    "TDX405 TorchRL": (
        "TDX405",
        "RewardScaling",
        lambda: torchrl(rl.RewardScaling(0.0, 0.1), rl.RewardScaling(0.0, 0.5)),
        lambda: torchrl(rl.RewardScaling(0.0, 0.05)),
    ),
    "TDX405 tdx": (
        "TDX405",
        "RewardScaling",
        lambda: native(tdx.VecNorm(["reward"]), tdx.RewardScaling(0.0, 0.5)),
        lambda: native(tdx.VecNorm(["reward"])),
    ),
    "TDX406 Gymnasium, in sub-envs": (
        "TDX406",
        "Merged",
        lambda: SyncVectorEnv([lambda: Merged(gym.make("Pendulum-v1", max_episode_steps=5))] * 2),
        lambda: SyncVectorEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=5)] * 2),
    ),
    "TDX406 SB3": (
        "TDX406",
        "Merged",
        lambda: vec(wrapper_class=Merged),
        vec,
    ),
    "TDX406 TorchRL": (
        "TDX406",
        "MergedFlags",
        lambda: torchrl(rl.StepCounter(5), MergedFlags()),
        lambda: torchrl(rl.StepCounter(5)),
    ),
    "TDX406 tdx": (
        "TDX406",
        "NativeMergedFlags",
        lambda: native(tdx.StepCounter(5), NativeMergedFlags()),
        lambda: native(tdx.StepCounter(5)),
    ),
    "TDX497 tdx": (
        "TDX497",
        "VecNorm",
        lambda: native(trained("observation", "reward")),
        lambda: native(trained("observation")),
    ),
    "TDX409 SB3": (
        "TDX409",
        "Cropped",
        lambda: make_vec_env(lambda: Cropped(Image((3, 36, 40))), n_envs=2),
        lambda: make_vec_env(lambda: Cropped(Image()), n_envs=2),
    ),
}


class Game(gym.Env[Any, Any]):
    """Three lives of four steps each; the reward is that of a game with several prizes."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(0, 255, (4,), np.float32)

    def __init__(self, frameskip: Any = 1) -> None:
        self._frameskip = frameskip
        self.steps = 0

    def _observe(self) -> Any:
        return self.np_random.uniform(0, 255, 4).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {"lives": 3}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = (0.0, 10.0, 0.5, 30.0)[self.steps % 4]
        return self._observe(), reward, self.steps >= 12, False, {"lives": 3 - self.steps // 4}


class EpisodicLifeEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode with each life, and continues the game in the next one."""

    lives, is_over = 3, True

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs) if self.is_over else self.env.step(0)
        self.lives = result[-1]["lives"]
        return result[0], result[-1]

    def step(self, action: Any) -> Any:
        observation, reward, self.is_over, truncated, info = self.env.step(action)
        lost, self.lives = info["lives"] < self.lives, info["lives"]
        return observation, reward, self.is_over or lost, truncated, info


class Repeated(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, with an argument of its own name."""

    def __init__(self, env: Any, times: int) -> None:
        super().__init__(env)
        self.times = times

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self.times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class Whitened(gym.ObservationWrapper[Any, Any, Any]):
    """Normalizes by the observations so far, which it keeps in a list."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, env.observation_space.shape)
        self.history: list[Any] = []

    def observation(self, observation: Any) -> Any:
        self.history.append(np.asarray(observation, np.float64))
        values = np.stack(self.history)
        return ((values[-1] - values.mean(0)) / (values.std(0) + 1e-8)).astype(np.float32)


class Scaled(gym.ObservationWrapper[Any, Any, Any]):
    """Subtracts a constant and divides by another one."""

    def __init__(self, env: Any, offset: float, scale: float) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, env.observation_space.shape)
        self.parts = offset, scale

    def observation(self, observation: Any) -> Any:
        return ((observation - self.parts[0]) / self.parts[1]).astype(np.float32)


class ByDataset(Scaled):
    """The same with another name."""


class ByKey(gym.ObservationWrapper[Any, Any, Any]):
    """Normalizes the entries for which it has statistics."""

    def __init__(self, env: Any, stats: dict[str, tuple[float, float]]) -> None:
        super().__init__(env)
        self.stats = stats

    def observation(self, observation: Any) -> Any:
        return {
            key: ((value - self.stats[key][0]) / self.stats[key][1]).astype(np.float32)
            if key in self.stats
            else value
            for key, value in observation.items()
        }


class NormalizeByKey(ByKey):
    """The same with a name that says so."""


def by_key(*keys: str) -> Any:
    env = gym.wrappers.TransformObservation(
        Game(), lambda value: {"state": value}, spaces.Dict(state=Game.observation_space)
    )
    return NormalizeByKey(env, dict.fromkeys(keys, (1.0, 2.0)))


def whitened(env: Any) -> Any:
    return wrappers.NormalizeObservation(env)


ROLES: dict[str, tuple[str, str, Make, Make]] = {
    "TDX475 env with a range": (
        "TDX475",
        "MaxAndSkipEnv",
        lambda: MaxAndSkipEnv(Game((2, 5)), skip=4),
        lambda: MaxAndSkipEnv(Game(1), skip=4),
    ),
    "TDX475 ALE": (
        "TDX475",
        "MaxAndSkipEnv",
        lambda: AtariWrapper(gym.make("ALE/Pong-v5"), terminal_on_life_loss=False),
        lambda: AtariWrapper(gym.make("ALE/Pong-v5", frameskip=1), terminal_on_life_loss=False),
    ),
    "TDX475 two wrappers": (
        "TDX475",
        "Repeated",
        lambda: Repeated(MaxAndSkipEnv(Game(), 2), 2),
        lambda: Repeated(NoopResetEnv(gym.make("ALE/Pong-v5", frameskip=1)), 4),
    ),
    "TDX475 SB3": (
        "TDX475",
        "Repeated",
        lambda: make_vec_env(lambda: Repeated(Game(4), 2), n_envs=2),
        lambda: make_vec_env(lambda: Repeated(Game(), 2), n_envs=2),
    ),
    "TDX475 tdx": (
        "TDX475",
        "FrameSkipTransform",
        lambda: tdx.TransformedEnv(tdx.GymWrapper(Game(4)), tdx.FrameSkipTransform(2)),
        lambda: tdx.TransformedEnv(tdx.GymWrapper(Game()), tdx.FrameSkipTransform(2)),
    ),
    "TDX476": (
        "TDX476",
        "RecordEpisodeStatistics",
        lambda: wrappers.RecordEpisodeStatistics(EpisodicLifeEnv(Game())),
        lambda: EpisodicLifeEnv(wrappers.RecordEpisodeStatistics(Game())),
    ),
    "TDX476 SB3": (
        "TDX476",
        "VecMonitor",
        lambda: VecMonitor(DummyVecEnv([lambda: EpisodicLifeEnv(Game())])),
        lambda: DummyVecEnv([lambda: EpisodicLifeEnv(Monitor(Game()))]),
    ),
    "TDX476 AtariPreprocessing": (
        "TDX476",
        "RecordEpisodeStatistics",
        lambda: wrappers.RecordEpisodeStatistics(preprocessed(terminal_on_life_loss=True)),
        lambda: wrappers.RecordEpisodeStatistics(preprocessed(terminal_on_life_loss=False)),
    ),
    "TDX477": (
        "TDX477",
        "EpisodicLifeEnv",
        lambda: make_vec_env(Game, n_envs=2, wrapper_class=EpisodicLifeEnv),
        lambda: make_vec_env(Game, n_envs=2),
    ),
    "TDX477 AtariPreprocessing": (
        "TDX477",
        "AtariPreprocessing",
        lambda: preprocessed(terminal_on_life_loss=True),
        lambda: preprocessed(terminal_on_life_loss=False),
    ),
    "TDX478": (
        "TDX478",
        "ClipRewardEnv",
        lambda: ClipRewardEnv(Game()),
        Game,
    ),
    "TDX478 by its effect": (
        "TDX478",
        "TransformReward",
        lambda: wrappers.TransformReward(Game(), lambda reward: min(max(float(reward), -1), 1)),
        lambda: wrappers.TransformReward(Game(), lambda reward: float(reward) + 1),
    ),
    "TDX479 SB3": (
        "TDX479",
        "NormalizeObservation",
        lambda: make_vec_env(Game, n_envs=2, wrapper_class=whitened),
        lambda: make_vec_env(Game, n_envs=1, wrapper_class=whitened),
    ),
    "TDX479 worker processes": (
        "TDX479",
        "NormalizeObservation",
        lambda: gym.vector.AsyncVectorEnv([lambda: whitened(Game())] * 2),
        lambda: vector.NormalizeObservation(gym.vector.AsyncVectorEnv([Game] * 2)),
    ),
    "TDX480 known and unknown": (
        "TDX480",
        "NormalizeObservation",
        lambda: wrappers.NormalizeObservation(Whitened(Game())),
        lambda: wrappers.NormalizeObservation(Scaled(Game(), 0.0, 255.0)),
    ),
    "TDX480 both unknown": (
        "TDX480",
        "Whitened",
        lambda: Whitened(Whitened(Game())),
        lambda: Scaled(Whitened(Game()), 0.0, 2.0),
    ),
    "TDX480 same constants": (
        "TDX480",
        "ByDataset",
        lambda: ByDataset(Scaled(Game(), 120.0, 70.0), 120.0, 70.0),
        lambda: ByDataset(Scaled(Game(), 120.0, 70.0), 0.0, 5.0),
    ),
    "TDX480 SB3": (
        "TDX480",
        "VecNormalize",
        lambda: VecNormalize(make_vec_env(Game, n_envs=1, wrapper_class=whitened)),
        lambda: VecNormalize(make_vec_env(Game, n_envs=1)),
    ),
    "TDX485 statistics by key": (
        "TDX485",
        "NormalizeByKey",
        lambda: by_key("observation.state", "observation.image"),
        lambda: by_key("state", "other"),
    ),
    "TDX405 clip of a single reward": (
        "TDX405",
        "TransformReward",
        lambda: wrappers.TransformReward(
            wrappers.TransformReward(gym.make("Pendulum-v1"), lambda reward: 2.0 * float(reward)),
            lambda reward: 0.1 * float(reward),
        ),
        lambda: wrappers.TransformReward(
            wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 10.0 * float(reward)),
            lambda reward: float(np.sign(float(reward))),
        ),
    ),
    "TDX408": (
        "TDX408",
        "FrameStackObservation",
        lambda: wrappers.FrameStackObservation(Image(), 4),
        lambda: wrappers.ReshapeObservation(
            wrappers.FrameStackObservation(Image(), 4), (36, 40, 12)
        ),
    ),
}


def preprocessed(**options: Any) -> Any:
    env = gym.make("ALE/Pong-v5", frameskip=1)
    return wrappers.AtariPreprocessing(env, screen_size=32, **options)


@pytest.mark.parametrize(("code", "stage", "wrong", "right"), ROLES.values(), ids=ROLES)
@sampled(5)
def test_rule_of_roles(code: str, stage: str, wrong: Make, right: Make) -> None:
    gym.register_envs(ale_py)
    assert (code, stage) in codes(wrong)
    assert [each for each in codes(right) if each[0] == code] == []


class TimeFeature(gym.ObservationWrapper[Any, Any, Any]):
    """Appends the time, and writes its space into the env inside."""

    def __init__(self, env: Any) -> None:
        shape = (env.observation_space.shape[0] + 1,)
        env.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        super().__init__(env)

    def observation(self, observation: Any) -> Any:
        return np.append(observation, np.float32(0.5))


class Objectives(Game):
    """Has a reward of two objectives."""

    reward_space = spaces.Box(-np.inf, np.inf, (2,))

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward, -1.0]), *rest


def weigh(reward: Any) -> float:
    return float(np.sum(reward))


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimeFeature(gym.make("Pendulum-v1")),
        Objectives,
        lambda: wrappers.TransformReward(Objectives(), weigh),
    ],
    ids=["space written into the env", "objectives", "weighted objectives"],
)
def test_a_shape_that_is_intended_is_no_violation(make: Make) -> None:
    assert tdx.check(make(), seed=0).findings == ()


@exhaustive
def test_end_of_life_that_only_marks_is_no_end_of_an_episode() -> None:
    gym.register_envs(ale_py)
    env = rl.TransformedEnv(rl.GymEnv("ALE/Pong-v5"), rl.EndOfLifeTransform())
    assert "TDX477" not in [code for code, _ in codes(lambda: env)]


def test_a_normalizer_without_its_key_is_an_error_and_no_note() -> None:
    report = tdx.check(by_key("observation.state"), seed=0)
    assert [(each.code, each.severity) for each in report.findings] == [("TDX485", "error")]
    assert report.notes == ()


@pytest.mark.parametrize("code", ["TDX488", "TDX490"])
@exhaustive
def test_a_mapping_of_actions_that_may_be_intended_is_a_suggestion(code: str) -> None:
    offset, scale = (1.6, 0.4) if code == "TDX488" else (0.0, 1.5)
    space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    env = wrappers.TransformAction(
        gym.make("Pendulum-v1"), lambda action: np.float32(scale * action + offset), space
    )
    report = tdx.check(env, seed=0)
    assert [each.code for each in report.findings] == [code]
    assert report.ok


@exhaustive
def test_statistics_that_are_only_logged_do_not_learn() -> None:
    class Logged(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.reward_rms = RunningMeanStd(shape=())

        def step(self, action: Any) -> Any:
            result = self.env.step(action)
            self.reward_rms.update(np.array([result[1]]))
            return result

    assert codes(lambda: Logged(gym.make("Pendulum-v1"))) == []


@pytest.mark.parametrize(("code", "stage", "wrong", "right"), CASES.values(), ids=CASES)
def test_rule(code: str, stage: str, wrong: Make, right: Make) -> None:
    assert (code, stage) in codes(wrong)
    assert [each for each in codes(right) if each[0] == code] == []


class Ignoring(rl.Transform):  # type: ignore[misc]
    """Does nothing in these steps."""

    def _call(self, next_tensordict: Any) -> Any:
        return next_tensordict

    _reset = rl.Transform._reset


class Masked(gym.Wrapper[Any, Any, Any, Any]):
    """Tells an algorithm which actions are valid, and changes no value."""

    def action_masks(self) -> Any:
        return np.ones(2, np.bool_)


class Wide(VecEnvWrapper):
    """Clips observations far outside of their range."""

    def reset(self) -> Any:
        observations: Any = self.venv.reset()
        return np.clip(observations, -100, 100)

    def step_wait(self) -> Any:
        observations: Any
        observations, *rest = self.venv.step_wait()
        return np.clip(observations, -100, 100), *rest


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: wrappers.ClipReward(gym.make("Pendulum-v1"), -100, 100), "3 ClipReward"),
        (lambda: vector.ClipReward(sync(), -100, 100), "4 ClipReward"),
        (lambda: Masked(Masked(gym.make("CartPole-v1"))), "3 Masked, 4 Masked"),
        (lambda: Wide(vec()), "5 Wide"),
        (lambda: torchrl(Ignoring()), "0 Ignoring"),
        (lambda: native(Unchanged(), tdx.StepCounter()), "0 Unchanged"),
    ],
    ids=["Gymnasium", "Gymnasium vector", "passive", "SB3", "TorchRL", "tdx"],
)
def test_a_stage_that_was_not_triggered_is_a_note(make: Make, names: str) -> None:
    report = tdx.check(make(), seed=0, steps=20)
    assert [each.code for each in report.findings] == []
    assert report.exit_code(strict=True) == 0
    (note,) = report.notes
    assert note.endswith(f"steps: {names}")


class Pressed(gym.Wrapper[Any, Any, Any, Any]):
    """Starts each episode with a step, like a game that waits for a button."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.env.reset(seed=seed, options=options)
        observation, *_, info = self.env.step(self.env.action_space.sample())
        return observation, info


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pressed(gym.make("Pendulum-v1")),
        lambda: wrappers.ClipAction(Pressed(gym.make("Pendulum-v1"))),
        lambda: make_vec_env("Pendulum-v1", 2, wrapper_class=Pressed),
    ],
)
@exhaustive
def test_a_stage_that_steps_at_a_reset_was_triggered(make: Make) -> None:
    assert "Pressed" not in " ".join(tdx.check(make(), seed=0, steps=20).notes)


def test_the_check_reaches_the_step_limit_and_says_when_it_had_no_time_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def notes() -> tuple[str, ...]:
        env = wrappers.ClipReward(gym.make("Pendulum-v1", max_episode_steps=70), -100, 100)
        return tdx.check(env, seed=0).notes

    assert notes() == ("changed nothing in 71 steps: 3 ClipReward",)
    monkeypatch.setattr(stack_observation, "MAX_CHECK_SECONDS", -1.0)
    changed_nothing, stopped = notes()
    assert changed_nothing == "changed nothing in 50 steps: 3 ClipReward"
    assert stopped.startswith("stopped after 50 of 71 steps")


@exhaustive
def test_a_note_belongs_to_its_rule() -> None:
    env = wrappers.ClipReward(gym.make("Pendulum-v1"), -100, 100)
    assert tdx.check(env, seed=0, rules=select_rules(ignore=["TDX402"])).notes == ()


def test_a_limit_above_one_whose_truncation_is_hidden_has_an_effect() -> None:
    env = wrappers.TimeLimit(Merged(gym.make("Pendulum-v1", max_episode_steps=5)), 9)
    assert "TDX402" not in [each.code for each in tdx.check(env, seed=0).findings]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: native(tdx.RewardScaling(0.0, 0.1), trained("reward")),
            ["TDX425", "TDX497"],
        ),
        (
            lambda: native(tdx.RewardScaling(0.0, 0.1), tdx.RewardScaling(0.0, 0.1)),
            ["TDX493"],
        ),
        (
            lambda: native(tdx.RewardScaling(0.0, 0.1), tdx.RewardScaling(0.0, 0.5)),
            ["TDX405"],
        ),
        (
            lambda: native(trained("reward"), tdx.CatFrames(3, -1, ["observation"])),
            ["TDX497"],
        ),
        (lambda: native(tdx.RewardClipping(-100, 100), tdx.StepCounter()), ["TDX478"]),
    ],
    ids=["undone", "repeated", "scaled twice", "other keys", "clipped"],
)
def test_a_fault_of_a_native_chain_is_reported_once(make: Make, expected: list[str]) -> None:
    assert [code for code, _ in codes(make)] == expected


class Rewards(gym.Wrapper[Any, Any, Any, Any]):
    """Returns these rewards in turn."""

    def __init__(self, *rewards: float) -> None:
        super().__init__(gym.make("CartPole-v1").unwrapped)
        self._turns = itertools.cycle(rewards)

    def step(self, action: Any) -> Any:
        observation, _, *rest = self.env.step(action)
        return observation, next(self._turns), *rest


def scaled_by(factor: float, env: Any) -> Any:
    return wrappers.TransformReward(env, lambda reward: factor * float(reward))


def binarized(env: Any) -> Any:
    return wrappers.TransformReward(env, lambda reward: float(float(reward) > 0))


def signed(env: Any) -> Any:
    return wrappers.TransformReward(env, lambda reward: float(np.sign(float(reward))))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: binarized(Rewards(-3.0, -1.0)), "-3 to -1"),
        (lambda: binarized(Rewards(-1.0)), "-1"),
        # The first stage that does it.
        (lambda: signed(binarized(Rewards(-3.0, 0.0))), "-3"),
        (lambda: wrappers.NormalizeReward(binarized(Rewards(-3.0, -1.0))), "-3 to -1"),
        (lambda: native(tdx.RewardScaling(0.0, 0.5), tdx.RewardClipping(0, 1)), None),
    ],
    ids=["binarized", "constant", "first stage", "normalized", "native"],
)
def test_a_stage_that_makes_every_reward_0_is_found(make: Make, expected: str | None) -> None:
    (finding,) = tdx.check(make(), seed=0, steps=20).findings
    assert (finding.code, finding.severity) == ("TDX495", "suggestion")
    assert finding.where.transform in ("TransformReward", "RewardClipping")
    text = "the reward is 0 in each of 20 steps; before this stage it was "
    assert finding.message.startswith(text)
    assert expected is None or finding.message == text + expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: binarized(Rewards(-1.0, 1.0)),
        # Most rewards of the env are 0.
        lambda: binarized(Rewards(-1.0, 0.0, 0.0)),
        # An outer stage adds a reward of its own.
        lambda: Bonus(binarized(Rewards(-1.0))),
    ],
    ids=["kept", "sparse", "bonus"],
)
def test_rewards_that_reach_the_policy_are_no_finding(make: Make) -> None:
    assert tdx.check(make(), seed=0, steps=20).findings == ()


class Bonus(gym.Wrapper[Any, Any, Any, Any]):
    """Adds a reward of its own."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) + float(np.abs(observation).sum()), *rest


@pytest.mark.parametrize(
    "limited",
    [
        lambda env: wrappers.ClipReward(env, 0.0, 1.0),
        lambda env: wrappers.ClipReward(env, -1.0, 2.0),
        lambda env: wrappers.ClipReward(env, -1.0, 0.0),
        signed,
        binarized,
    ],
    ids=["clip to 0", "clip", "clip to -1", "sign", "binarization"],
)
@pytest.mark.parametrize(
    "rewards",
    [(5.0,), (0.0, 5.0), (-5.0, 0.0), (-10.0, 20.0), (-16.0, -9.0), (3.0, 30.0), (-7.0, 3.0, 9.0)],
    ids=str,
)
def test_a_limit_is_not_a_second_scaling(
    limited: Callable[[Any], Any], rewards: tuple[float, ...]
) -> None:
    found = tdx.check(limited(scaled_by(2.0, Rewards(*rewards))), seed=0, steps=12).findings
    assert "TDX405" not in [each.code for each in found]


@pytest.mark.parametrize("rewards", [(1.0, 3.0), (-1.0, -0.5, 0.0), (-1.0, 2.0, 1.0)], ids=str)
def test_two_scalings_around_a_clip_are_reported(rewards: tuple[float, ...]) -> None:
    clipped = wrappers.ClipReward(scaled_by(0.5, Rewards(*rewards)), -1.0, 1.0)
    (found,) = tdx.check(scaled_by(4.0, clipped), seed=0, steps=12).findings
    assert (found.code, found.where.transform) == ("TDX405", "TransformReward")


def test_a_stage_that_raises_after_some_steps_is_a_finding() -> None:
    class Late(tdx.Transform):
        steps = 0

        def _call(self, next_tensordict: Any) -> Any:
            self.steps += 1
            if self.steps > 20:
                raise ValueError("too late")
            return next_tensordict

    (found,) = tdx.check(native(Late()), seed=0).findings
    assert (found.code, found.check, found.where.transform) == ("TDX202", "steps", "Late")
    assert "too late" in found.message


def test_evaluation_of_a_pipeline_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "version: 1\nenv: Pendulum-v1\ntransforms:\n  - VecNorm: {in_keys: [observation]}\n",
        encoding="utf-8",
    )
    assert run(["check", str(path)]) == 0
    assert "TDX404" not in capsys.readouterr().out
    assert run(["check", str(path), "--eval"]) == 1
    assert "TDX404 " in capsys.readouterr().out
