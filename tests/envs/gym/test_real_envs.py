"""Real envs: the same trajectories as Gymnasium for the same seed and actions."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import InitTracker
from tdx.envs.gym import GymEnv, GymWrapper
from tdx.envs.gym.registry import find_env
from tests.envs.gym.trajectories import assert_observed, assert_same_trajectory
from tests.programs import sampled

CLASSIC = ["Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
TOY_TEXT = ["Blackjack-v1", "CliffWalking-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4"]
ATARI = ["ALE/Pong-v5", "ALE/Breakout-v5"]
MUJOCO = ["HalfCheetah-v5", "Ant-v5", "InvertedPendulum-v5"]
MINIGRID = ["MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0", "BabyAI-GoToLocal-v0"]

needs = {"ale_py": ATARI, "mujoco": MUJOCO, "minigrid": MINIGRID}
IDS = [
    *(pytest.param(env_id, id=env_id) for env_id in [*CLASSIC, *TOY_TEXT]),
    *(
        pytest.param(
            env_id,
            id=env_id,
            marks=pytest.mark.skipif(
                importlib.util.find_spec(module) is None, reason=f"{module} is not installed"
            ),
        )
        for module, env_ids in needs.items()
        for env_id in env_ids
    ),
]
each_env = pytest.mark.parametrize("env_id", IDS)


def make_bare(env_id: str, **kwargs: Any) -> Any:
    return gymnasium.make(find_env(env_id), disable_env_checker=True, **kwargs)


@each_env
def test_same_seed_gives_the_trajectory_of_gymnasium(env_id: str) -> None:
    with GymEnv(env_id) as env, make_bare(env_id) as bare:
        assert_same_trajectory(env, bare, seed=7, steps=60)


@each_env
def test_rollouts_are_in_the_specs(env_id: str) -> None:
    with GymEnv(env_id, num_envs=2, seed=0) as env:
        rollout = env.rollout(3, break_when_any_done=False)
        assert rollout.shape == torch.Size([2, 3])
        fake = env.fake_tensordict()
        assert set(rollout.keys(True)) == set(fake.keys(True))
        for key, spec in env.observation_spec.items(True, True):
            assert spec.is_in(rollout[..., 0].get(key)), key
        for key, spec in env.full_action_spec.items(True, True):
            assert spec.is_in(rollout[..., 0].get(key)), key


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Blackjack-v1", "Pendulum-v1"])
@pytest.mark.parametrize("mode", ["sync", "async"])
@sampled(3)
def test_a_vector_env_gives_the_rows_of_its_single_envs(env_id: str, mode: str) -> None:
    """Row ``i`` is a single env seeded with ``seed + i``, also across partial resets."""
    with GymEnv(env_id, num_envs=3, vectorization_mode=mode) as env:
        env.set_seed(5)
        rollout = env.rollout(40, break_when_any_done=False)
        actions = env.read_action(rollout.transpose(0, 1)[0].clone())
        assert len(actions) == 3
        for row in range(3):
            _assert_row(env_id, rollout[row], seed=5 + row)


def _assert_row(env_id: str, row: Any, seed: int) -> None:
    with GymEnv(env_id) as single, make_bare(env_id) as bare:
        observation, _ = bare.reset(seed=seed)
        for step in range(row.shape[0]):
            assert_observed(single, row[step], observation)
            result = bare.step(single.read_action(row[step]))
            observation, reward, terminated, truncated, _ = result
            assert_observed(single, row[step]["next"], observation)
            assert row[step]["next", "reward"].item() == np.float32(reward)
            assert row[step]["next", "terminated"].item() == terminated
            assert row[step]["next", "truncated"].item() == truncated
            if terminated or truncated:
                observation, _ = bare.reset()


def test_rewards_and_flags_have_the_documented_form() -> None:
    step = GymEnv("Pendulum-v1").rand_step()["next"]
    assert (step["reward"].shape, step["reward"].dtype) == (torch.Size([1]), torch.float32)
    for flag in ("done", "terminated", "truncated"):
        assert (step[flag].shape, step[flag].dtype) == (torch.Size([1]), torch.bool)


def test_a_time_limit_truncates_and_does_not_terminate() -> None:
    last = GymEnv("Pendulum-v1", max_episode_steps=5).rollout(10)[-1]["next"]
    assert last["truncated"].all()
    assert last["done"].all()
    assert not last["terminated"].any()


def test_the_seed_is_used_by_the_next_reset_only() -> None:
    env = GymEnv("Pendulum-v1", seed=3)
    first, second = env.reset(), env.reset()
    assert not torch.equal(first["observation"], second["observation"])
    env.set_seed(3)
    assert torch.equal(env.reset()["observation"], first["observation"])
    assert torch.equal(env.reset()["observation"], second["observation"])
    assert torch.equal(env.reset(seed=3)["observation"], first["observation"])


def test_options_reach_the_env() -> None:
    env = GymEnv("Pendulum-v1", seed=0)
    still = env.reset(options={"x_init": 0.0, "y_init": 0.0})["observation"]
    assert torch.equal(still, torch.tensor([1.0, 0.0, 0.0]))


def test_an_env_is_found_without_its_version_and_by_its_module() -> None:
    assert GymEnv("CartPole").spec.id == "CartPole-v1"
    assert GymEnv("gymnasium.envs.classic_control:CartPole-v1").spec.id == "CartPole-v1"


def test_attributes_are_those_of_the_gym_env() -> None:
    env = GymEnv("Pendulum-v1", g=9.81)
    assert env.spec.max_episode_steps == 200
    assert env.unwrapped.g == 9.81
    assert env.env_name == "Pendulum-v1"
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = env.no_such_thing


def test_repr() -> None:
    assert (
        repr(GymEnv("Pendulum-v1"))
        == "GymEnv(env=Pendulum-v1, batch_size=torch.Size([]), device=cpu)"
    )
    assert (
        repr(GymWrapper(gymnasium.make("CartPole-v1")))
        == "GymWrapper(env=CartPole-v1, batch_size=torch.Size([]), device=cpu)"
    )
    assert "batch_size=torch.Size([2])" in repr(GymEnv("CartPole-v1", num_envs=2))


def test_an_index_action_has_no_dim_and_a_one_hot_one_has_n() -> None:
    assert GymEnv("CartPole-v1").action_spec.shape == torch.Size([2])
    assert GymEnv("CartPole-v1", categorical_action_encoding=True).action_spec.shape == ()
    batched = GymEnv("CartPole-v1", categorical_action_encoding=True, num_envs=3)
    assert batched.action_spec.shape == torch.Size([3])


def test_frames_are_skipped_and_their_rewards_summed() -> None:
    skipping, plain = GymEnv("Pendulum-v1", frame_skip=3), GymEnv("Pendulum-v1")
    for env in (skipping, plain):
        env.set_seed(0)
    skipped, stepped = skipping.reset(), plain.reset()
    rewards = []
    skipped["action"] = action = torch.tensor([0.5])
    skipping.step(skipped)
    for _ in range(3):
        stepped["action"] = action
        stepped = plain.step(stepped)["next"]
        rewards.append(stepped["reward"].item())
    assert torch.equal(skipped["next", "observation"], stepped["observation"])
    assert skipped["next", "reward"].item() == pytest.approx(sum(rewards))


def test_every_env_of_a_vector_env_skips_frames() -> None:
    env = GymEnv("CartPole-v1", num_envs=2, frame_skip=3, seed=0)
    assert env.rand_step(env.reset())["next", "reward"].tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize(
    ("kwargs", "skipped"),
    [({}, 4), ({"frame_skip": 2}, 2), ({"frame_skip": 2, "frameskip": 3}, 6)],
)
def test_atari_skips_frames_itself(kwargs: dict[str, Any], skipped: int) -> None:
    pytest.importorskip("ale_py")
    env = GymEnv("ALE/Pong-v5", **kwargs)
    env.rand_step(env.reset())
    assert env.unwrapped.ale.getEpisodeFrameNumber() == skipped


def test_frame_skip_stops_at_the_end_of_an_episode() -> None:
    env = GymEnv("CartPole-v1", frame_skip=10, max_episode_steps=15)
    rewards = env.rollout(5, break_when_any_done=True)["next", "reward"].flatten()
    assert rewards.sum() <= 15


def test_gradient_of_the_action_is_detached() -> None:
    env = GymEnv("Pendulum-v1")
    start = env.reset()
    start["action"] = torch.zeros(1, requires_grad=True)
    assert not env.step(start)["next", "reward"].requires_grad


def test_the_env_can_be_copied_and_pickled() -> None:
    import copy
    import pickle

    env = GymEnv("Pendulum-v1")
    env.set_seed(1)
    first = env.reset()
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        twin.set_seed(1)
        assert torch.equal(twin.reset()["observation"], first["observation"])


def test_closing_twice_is_fine_and_closes_the_gym_env() -> None:
    class Closing(gymnasium.Wrapper[Any, Any, Any, Any]):
        closed = 0

        def close(self) -> None:
            Closing.closed += 1
            super().close()

    env = GymWrapper(Closing(gymnasium.make("CartPole-v1")))
    env.close()
    env.close()
    assert env.is_closed
    assert Closing.closed == 1


def test_the_ids_are_listed() -> None:
    assert "Pendulum-v1" in GymEnv.available_envs
    assert "Pendulum-v1" in GymEnv("Pendulum-v1").available_envs


def test_the_raw_methods_convert_nothing() -> None:
    env, bare = GymEnv("Pendulum-v1", seed=2), make_bare("Pendulum-v1")
    observation, info = env.raw_reset()
    expected, _ = bare.reset(seed=2)
    assert isinstance(observation, np.ndarray)
    assert np.array_equal(observation, expected)
    assert info == {}
    action = np.array([1.5], np.float32)
    for mine, theirs in zip(env.raw_step(action), bare.step(action), strict=True):
        assert np.array_equal(mine, theirs)


def test_no_warning_is_raised_by_an_unversioned_id() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert GymEnv("Pendulum").reset()["observation"].shape == torch.Size([3])


@pytest.mark.gpu
def test_results_are_on_the_envs_device() -> None:
    for rows in (0, 3):
        env = GymEnv("CartPole-v1", num_envs=rows, device="cuda:0", seed=0)
        twin = GymEnv("CartPole-v1", num_envs=rows, seed=0)
        current, expected = env.reset(), twin.reset()
        for _ in range(5):
            env.rand_action(current)
            expected["action"] = current["action"].cpu()
            current, expected = env.step(current)["next"], twin.step(expected)["next"]
            assert current.device == torch.device("cuda:0")
            assert current["observation"].device == torch.device("cuda:0")
            assert torch.equal(current["observation"].cpu(), expected["observation"])


@pytest.mark.parametrize("rows", [0, 2])
def test_the_first_step_resets_an_env_that_was_not(rows: int) -> None:
    env = GymEnv("Pendulum-v1", num_envs=rows, seed=3)
    env.set_seed(3)
    action = torch.zeros(*env.batch_size, 1)
    first = env.step(TensorDict(action=action, batch_size=env.batch_size))["next"]
    env.set_seed(3)
    start = env.reset()
    start["action"] = action
    assert torch.equal(env.step(start)["next", "observation"], first["observation"])


def test_a_subclass_can_change_the_step() -> None:
    class Doubled(GymEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            result = super()._step(tensordict)
            result["reward"] = 2 * result["reward"]
            return result

    env = Doubled("CartPole-v1")
    assert env.rand_step(env.reset())["next", "reward"].item() == 2.0
    assert env.append_transform(InitTracker()).rollout(3)["next", "reward"][0].item() == 2.0
