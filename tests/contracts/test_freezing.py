"""What ``freeze`` records and leaves unchanged, and how a check runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces, wrappers
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import tdx
from tests.contracts import envs as made
from tests.programs import exhaustive, sampled


class Counted(gym.Wrapper[Any, Any, Any, Any]):
    """Counts the calls of ``step``."""

    calls = 0

    def step(self, action: Any) -> Any:
        self.calls += 1
        return self.env.step(action)


class Noise(gym.ObservationWrapper[Any, Any, Any]):
    """Adds noise of the global generator, or of its own."""

    def __init__(self, env: gym.Env[Any, Any], *, own: bool) -> None:
        super().__init__(env)
        self.draw = np.random.default_rng(0) if own else np.random

    def observation(self, observation: Any) -> Any:
        return (observation + self.draw.normal(size=3)).astype(np.float32)


class AnySpace(gym.Env[Any, Any]):
    """Random values of given spaces."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {"lives": 3}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, False, False, {"lives": 2}


@exhaustive
def test_env_inside_runs_along_and_its_callers_get_the_recorded_results() -> None:
    contract = tdx.freeze(made.pendulum())
    base = made.Pendulum64()
    base.step = None  # type: ignore[method-assign,assignment]
    report = tdx.check_contract(wrappers.TransformObservation(base, lambda x: x, None), contract)
    # The env inside fails, and the stages are compared all the same.
    assert [each.name for each in report.differences][-1] == "TransformObservation"
    assert any("the env inside does not repeat its recorded results" in n for n in report.notes)
    assert base.__dict__["step"] is None


@exhaustive
def test_state_of_the_stages_is_restored() -> None:
    contract = tdx.freeze(Counted(made.pendulum()))
    env = Counted(made.pendulum())
    assert tdx.check_contract(env, contract).same
    assert env.calls == 0


def test_nothing_remains_attached() -> None:
    env = made.gym_normalized(learning=True)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    names = [sorted(vars(each)) for each in (env, env.env, env.unwrapped)]
    mean = env.obs_rms.mean
    tdx.freeze(env)
    assert [sorted(vars(each)) for each in (env, env.env, env.unwrapped)] == names
    assert env.obs_rms.mean is mean
    assert env.update_running_mean is True


@exhaustive
def test_statistics_that_two_envs_share_stay_shared() -> None:
    train = made.sb3_normalized(learning=True)
    evaluation = made.sb3_normalized()
    evaluation.obs_rms = train.obs_rms
    tdx.freeze(train)
    assert evaluation.obs_rms is train.obs_rms
    assert float(train.obs_rms.count) == 1000.0
    assert train.training is True


@exhaustive
def test_global_generators_are_restored() -> None:
    env = made.pendulum()
    contract = tdx.freeze(env)
    before = torch.get_rng_state(), str(np.random.get_state())
    tdx.check_contract(env, contract)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == str(np.random.get_state())


@exhaustive
def test_noise_that_follows_the_seed_is_compared() -> None:
    contract = tdx.freeze(Noise(made.pendulum(), own=False))
    assert contract.stages[-1].random == "seeded"
    assert tdx.check_contract(Noise(made.pendulum(), own=False), contract).same


@exhaustive
def test_noise_with_its_own_generator_is_compared() -> None:
    contract = tdx.freeze(wrappers.FlattenObservation(Noise(made.pendulum(), own=True)))
    assert [each.random for each in contract.stages[-2:]] == ["seeded", None]
    other = Noise(made.pendulum(), own=True)
    other.draw.normal(size=5)
    state = other.draw.bit_generator.state
    report = tdx.check_contract(wrappers.FlattenObservation(other), contract)
    assert report.same
    assert report.excluded == ()
    assert other.draw.bit_generator.state == state


@exhaustive
def test_tolerance_can_be_adjusted(tmp_path: Path) -> None:
    def make(scale: float) -> Any:
        return wrappers.TransformObservation(made.pendulum(), lambda x: x * scale, None)

    tdx.save_contract(tdx.freeze(make(1.0)), tmp_path / "c")
    assert not tdx.check_contract(make(1.01), tdx.load_contract(tmp_path / "c")).same
    document = tmp_path / "c" / "contract.yaml"
    document.write_text(document.read_text().replace("rtol: 1e-05", "rtol: 0.05"))
    assert tdx.check_contract(make(1.01), tdx.load_contract(tmp_path / "c")).same


def test_features_have_names_and_order() -> None:
    contract = tdx.freeze(made.Join(made.Arm(), ["velocity", "position"]))
    spec = contract.stages[-1].spec("observation")
    assert spec is not None
    assert spec.features == ("velocity[0]", "velocity[1]", "position[0]", "position[1]")


@exhaustive
def test_learning_statistics_are_marked() -> None:
    frozen, learning = (
        tdx.freeze(made.sb3_normalized(learning=learning)).stages[-1] for learning in (False, True)
    )
    assert {each.name: each.changes for each in frozen.state}["obs_rms.mean"] is False
    assert {each.name: each.changes for each in learning.state}["obs_rms.mean"] is True


SPACES = {
    "Dict": spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Dict({"c": spaces.Discrete(3)})}),
    "Tuple": spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,), np.float64))),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(4),
    "Discrete": spaces.Discrete(4, start=2),
    "scalar": spaces.Box(-1, 1, ()),
}


@pytest.mark.parametrize("name", SPACES)
@sampled(3)
def test_spaces_are_replayed(name: str) -> None:
    def make() -> Any:
        return wrappers.OrderEnforcing(AnySpace(SPACES[name], SPACES[name]))

    assert tdx.check_contract(make(), tdx.freeze(make())).differences == ()


@pytest.mark.parametrize("name", ["Dict", "MultiDiscrete", "Discrete"])
def test_spaces_are_replayed_in_tdx(name: str) -> None:
    action = SPACES["Discrete" if name == "Dict" else name]

    def make() -> Any:
        return tdx.TransformedEnv(tdx.GymWrapper(AnySpace(SPACES[name], action)), tdx.StepCounter())

    assert tdx.check_contract(make(), tdx.freeze(make())).differences == ()


@exhaustive
def test_algorithm_is_frozen() -> None:
    from stable_baselines3 import PPO

    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu")
    contract = tdx.freeze(model)
    assert [each.name for each in contract.stages][-1] == "VecNormalize"


@pytest.mark.parametrize("name", ["FrameSkip", "Twice"])
def test_a_missing_repetition_of_actions_is_a_difference(name: str) -> None:
    class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            rewards = 0.0
            for _ in range(2):
                observation, reward, *rest = self.env.step(action)
                rewards += float(reward)
            return observation, rewards, *rest

    FrameSkip.__name__ = name
    contract = tdx.freeze(FrameSkip(made.pendulum()), steps=4)
    assert tdx.check_contract(FrameSkip(made.pendulum()), contract).verdict == "same"
    (missing,) = tdx.check_contract(made.pendulum(), contract).differences
    assert (missing.kind, missing.name) == ("missing stage", name)
    assert not tdx.check_contract(FrameSkip(made.pendulum()), tdx.freeze(made.pendulum())).same


@exhaustive
def test_frame_skip_and_reset_of_an_inner_limit_are_replayed() -> None:
    def make(frames: int) -> Any:
        return wrappers.MaxAndSkipObservation(made.pendulum(max_episode_steps=3), skip=frames)

    contract = tdx.freeze(make(2))
    assert tdx.check_contract(make(2), contract).same
    first = tdx.check_contract(make(4), contract).first
    assert first is not None
    assert first.name == "MaxAndSkipObservation"


def test_stage_that_raises_is_named() -> None:
    contract = tdx.freeze(made.gym_normalized())
    broken = made.gym_normalized()
    broken.obs_rms.mean = np.zeros(4)
    report = tdx.check_contract(broken, contract)
    assert report.first is not None
    assert (report.first.kind, report.first.stage) == ("spec", 3)
    assert "obs_rms.mean has the shape [4] instead of [3]" in report.first.message
    assert "it fails with the inputs of the contract" in report.follows[0].message


def limited(steps: int = 100, gamma: float | None = 0.9) -> Any:
    env: Any = wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, steps)
    return env if gamma is None else wrappers.NormalizeReward(env, gamma=gamma)


def clipped(limit: float) -> tdx.TransformedEnv:
    return tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.RewardClipping(-limit, limit))


@exhaustive
def test_stage_that_is_not_compared_and_differs_is_noted() -> None:
    contract = tdx.freeze(limited())
    shorter = tdx.check_contract(limited(50), contract)
    assert shorter.same
    assert shorter.notes == (
        "not compared: stage 0 (TimeLimit): max_episode_steps is 50 instead of 100",
    )
    only = "not compared: only the contract has stage 1 (NormalizeReward); "
    assert only + "rewards are compared with --compare reward" in (
        tdx.check_contract(limited(gamma=None), contract).notes
    )
    assert not tdx.check_contract(limited(gamma=None), contract, evaluation=True).notes
    assert not tdx.check_contract(limited(), contract).notes


@exhaustive
def test_bounds_of_rewards_that_are_not_compared_are_noted() -> None:
    contract = tdx.freeze(clipped(1.0))
    report = tdx.check_contract(clipped(2.0), contract)
    assert report.same
    assert "stage 0 (RewardClipping): clamp_min is -2 instead of -1" in report.notes[0]
    assert not tdx.check_contract(clipped(1.0), contract).notes


def test_step_limit_of_one_side_is_noted() -> None:
    contract = tdx.freeze(tdx.GymEnv("Pendulum-v1"))
    counted = tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.StepCounter(20))
    notes = tdx.check_contract(counted, contract).notes
    assert (
        "not compared: only the target has stage 0 (StepCounter), which limits the steps of an "
        "episode"
    ) in notes
    counted.stages[0].max_steps = None
    assert not any("not compared" in note for note in tdx.check_contract(counted, contract).notes)


def clamped(limit: float) -> Any:
    env = gym.make("CartPole-v1")
    return wrappers.TransformObservation(
        env, lambda seen: np.clip(seen, -limit, limit), env.observation_space
    )


@exhaustive
def test_function_that_changes_nothing_in_the_recorded_steps_is_noted() -> None:
    report = tdx.check_contract(clamped(50.0), tdx.freeze(clamped(100.0)))
    assert report.same
    assert any("TransformObservation) changed nothing in the recorded" in n for n in report.notes)
    acting = tdx.check_contract(clamped(0.01), tdx.freeze(clamped(0.01)))
    assert not any("changed nothing" in note for note in acting.notes)
    # That of the target does something in them.
    different = tdx.check_contract(clamped(0.01), tdx.freeze(clamped(100.0)))
    assert not different.same
    assert not any("changed nothing" in note for note in different.notes)


def rewarded(function: Callable[[Any], Any], name: str = "Pendulum-v1") -> Any:
    return wrappers.TransformReward(gym.make(name), function)


@exhaustive
def test_reward_functions_that_differ_are_noted() -> None:
    contract = tdx.freeze(rewarded(lambda reward: reward / 10))
    (note,) = tdx.check_contract(rewarded(lambda reward: reward), contract).notes
    assert note == (
        "not compared: stage 3 (TransformReward), key 'reward': the target passes on what it "
        "receives (it is multiplied by 10), in 12 of 12 calls; rewards are compared with "
        "--compare reward"
    )
    assert not tdx.check_contract(rewarded(lambda reward: reward / 10), contract).notes
    idle = tdx.freeze(rewarded(lambda reward: max(reward, -100)))
    (note,) = tdx.check_contract(rewarded(lambda reward: max(reward, -50)), idle).notes
    assert "TransformReward) changed nothing in the recorded steps" in note


@exhaustive
def test_rounding_of_a_mean_near_zero_is_no_difference() -> None:
    def shifted(size: float) -> Any:
        env = made.gym_normalized()
        env.obs_rms.mean = np.array([0.3, -0.2, 1e-3 + size])
        return env

    contract = tdx.freeze(shifted(0.0))
    assert tdx.check_contract(shifted(1e-8), contract).same
    assert not tdx.check_contract(shifted(1e-4), contract).same


@exhaustive
def test_arguments_of_rewards_count_where_rewards_are_compared() -> None:
    contract = tdx.freeze(limited(), compare=("observation", "reward"))
    (cause,) = tdx.check_contract(limited(gamma=0.5), contract).causes
    assert cause.message.startswith("gamma is 0.5 instead of 0.9")
    assert tdx.check_contract(limited(gamma=0.5), contract, evaluation=True).same
    assert tdx.check_contract(limited(gamma=0.5), tdx.freeze(limited())).same


@exhaustive
def test_reward_function_that_passes_rewards_on_is_a_stage() -> None:
    contract = tdx.freeze(rewarded(lambda reward: 2 * reward), compare=("reward",))
    (cause,) = tdx.check_contract(rewarded(lambda reward: reward), contract).causes
    assert (cause.stage, cause.kind) == (3, "scale")


@exhaustive
def test_reward_functions_of_a_chain_are_noted() -> None:
    def scaled(factor: float) -> tdx.TransformedEnv:
        stage = tdx.UnaryTransform(["reward"], ["reward"], fn=lambda reward: factor * reward)
        return tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.Compose(stage, tdx.RewardSum()))

    (note,) = tdx.check_contract(scaled(3.0), tdx.freeze(scaled(2.0))).notes
    assert "stage 0 (UnaryTransform), key 'reward': it is multiplied by 1.5; rewards" in note
    assert not tdx.check_contract(scaled(2.0), tdx.freeze(scaled(2.0))).notes
    (note,) = tdx.check_contract(scaled(1.0), tdx.freeze(scaled(1.0))).notes
    assert "UnaryTransform) changed nothing in the recorded steps" in note


@exhaustive
def test_constant_reward_has_no_made_up_cause() -> None:
    contract = tdx.freeze(rewarded(lambda reward: 3 * reward, "CartPole-v1"), compare=("reward",))
    report = tdx.check_contract(rewarded(lambda reward: 2 * reward, "CartPole-v1"), contract)
    (cause,) = report.causes
    assert cause.sentence == (
        "stage 3 (TransformReward), key 'reward': it is always 2 instead of 3, in 12 of 12 calls"
    )
