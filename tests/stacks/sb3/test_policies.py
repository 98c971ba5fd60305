"""Models of Stable-Baselines3 as policies of tdx."""

from __future__ import annotations

import base64
import json
import random
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tdx import (
    ArgumentError,
    CodeNotAllowedError,
    EnvConfig,
    GymEnv,
    ObservationNorm,
    Pipeline,
    RewardSum,
    TransformedEnv,
    open_dump,
    record_dump,
)
from tdx.inspection.values_report import inspect_values
from tdx.rollouts.policies.policy import load_actor, load_policy
from tdx.stacks import open_stack
from tests.programs import exhaustive
from tests.stacks.sb3.envs import Images

MODELS: dict[str, Callable[[Any], BaseAlgorithm]] = {
    "PPO": lambda env: PPO("MlpPolicy", env, device="cpu"),
    "A2C": lambda env: A2C("MlpPolicy", env, device="cpu"),
    "DQN": lambda env: DQN("MlpPolicy", env, device="cpu", buffer_size=10),
    "SAC": lambda env: SAC("MlpPolicy", env, device="cpu", buffer_size=10),
    "TD3": lambda env: TD3("MlpPolicy", env, device="cpu", buffer_size=10),
}


class OwnPolicy(ActorCriticPolicy):
    """A policy class of a user."""


def save(folder: Path, model: BaseAlgorithm) -> str:
    """Save a model, and return the name of its policy."""
    model.save(folder / "model")
    return f"sb3:{folder / 'model.zip'}"


@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize("name", MODELS)
def test_actions_are_those_of_predict(tmp_path: Path, name: str, num_envs: int | None) -> None:
    env_id = "Pendulum-v1" if name in ("SAC", "TD3") else "CartPole-v1"
    model = MODELS[name](env_id)
    policy = save(tmp_path, model)
    pipeline = Pipeline.of(EnvConfig(env_id, num_envs=num_envs), "RewardSum")
    record_dump(pipeline, tmp_path / "dump", steps=20, policy=policy, seed=0, allow_code=True)
    data = open_dump(tmp_path / "dump").data
    observations = data["observation"].flatten(0, -2).numpy()
    expected = torch.as_tensor(model.predict(observations, deterministic=True)[0])
    actions = data["action"].flatten(0, -2)
    if name in ("PPO", "A2C", "DQN"):
        actions = actions.argmax(-1)
    torch.testing.assert_close(actions, expected)


def test_model_needs_allow_code(tmp_path: Path) -> None:
    policy = save(tmp_path, MODELS["PPO"]("CartPole-v1"))
    env = GymEnv("CartPole-v1")
    with pytest.raises(CodeNotAllowedError, match="model of Stable-Baselines3") as caught:
        load_policy(policy, env)
    assert "--allow-code" in str(caught.value.hint)


def test_stochastic_actions_on_request(tmp_path: Path) -> None:
    policy = save(tmp_path, MODELS["PPO"]("CartPole-v1"))
    env = GymEnv("CartPole-v1")

    def actions(name: str) -> torch.Tensor:
        act = load_policy(name, env, allow_code=True).start_at(0)
        observation = env.reset(seed=0)
        return torch.stack([act(observation.clone())["action"].argmax() for _ in range(40)])

    assert len(actions(policy).unique()) == 1
    file = policy.removeprefix("sb3:")
    assert len(actions(f'sb3("{file}", deterministic=False)').unique()) == 2


@pytest.mark.parametrize(
    ("env_id", "stages", "message"),
    [
        ("Pendulum-v1", (), "takes float [4], the env gives float [3] in 'observation'"),
        ("CartPole-v1", ("UnsqueezeTransform(-1, in_keys=['observation'])",), "gives float [4, 1]"),
        ("Acrobot-v1", (), "takes float [4], the env gives float [6]"),
        ("MountainCar-v0", (), "takes float [4], the env gives float [2]"),
    ],
)
def test_other_observations_are_refused_before_a_step(
    tmp_path: Path, env_id: str, stages: tuple[str, ...], message: str
) -> None:
    policy = save(tmp_path, MODELS["PPO"]("CartPole-v1"))
    with pytest.raises(ArgumentError) as caught:
        record_dump(
            Pipeline.of(env_id, *stages), tmp_path / "d", steps=5, policy=policy, allow_code=True
        )
    assert message in caught.value.message
    assert not (tmp_path / "d").exists()
    with pytest.raises(ArgumentError, match="the env gives"):
        load_actor(
            Pipeline.of("f:make"), open_stack(gym.make("Pendulum-v1")), name=policy, allow_code=True
        )


def test_other_actions_are_refused_or_warned_of(tmp_path: Path) -> None:
    policy = save(tmp_path, MODELS["SAC"]("Pendulum-v1"))
    pipeline = Pipeline.of("f:make")

    def limit(space: spaces.Space[Any]) -> gym.Env[Any, Any]:
        return gym.wrappers.TransformAction(gym.make("Pendulum-v1"), lambda action: action, space)

    with pytest.raises(
        ArgumentError, match=r"gives float \[1\], the env takes one of 5 categories"
    ):
        load_actor(pipeline, open_stack(limit(spaces.Discrete(5))), name=policy, allow_code=True)
    halved = limit(spaces.Box(-1.0, 1.0, (1,)))
    with pytest.warns(UserWarning, match="range -2 … 2, its range in the env is -1 … 1"):
        load_actor(pipeline, open_stack(halved), name=policy, allow_code=True)


@exhaustive
def test_training_with_vecnormalize_is_warned_of(tmp_path: Path) -> None:
    def make() -> DummyVecEnv:
        return DummyVecEnv([lambda: gym.make("Pendulum-v1")] * 2)

    model = PPO("MlpPolicy", VecNormalize(make()), device="cpu", n_steps=4, batch_size=8)
    policy = save(tmp_path, model.learn(8))
    env = GymEnv("Pendulum-v1")
    pipeline = Pipeline.of("f:make")
    for target in (env, TransformedEnv(env, RewardSum()), open_stack(make())):
        with pytest.warns(UserWarning, match="trained with VecNormalize, and no stage normalizes"):
            load_actor(pipeline, target, name=policy, allow_code=True)
    norm = ObservationNorm(0.0, 1.0, in_keys=["observation"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_actor(pipeline, TransformedEnv(env, norm), name=policy, allow_code=True)
        stack = open_stack(VecNormalize(make()))
        actor = load_actor(pipeline, stack, name=policy, allow_code=True)
    report = inspect_values(stack, steps=5, seed=0, policy=actor)
    assert report.error is None


def test_images_and_dicts(tmp_path: Path) -> None:
    # SB3 adds VecTransposeImage in training: the space in the file has the channels first.
    model = PPO("MultiInputPolicy", Images((36, 40, 3)), device="cpu", n_steps=4, batch_size=4)
    space: Any = model.observation_space
    assert space["image"].shape == (3, 36, 40)
    policy = save(tmp_path, model)
    stack = open_stack(Images((36, 40, 3)))
    actor = load_actor(Pipeline.of("f:make"), stack, name=policy, allow_code=True)
    assert inspect_values(stack, steps=3, seed=0, policy=actor).error is None
    env = stack.as_env()
    act: Any = load_policy(policy, env, allow_code=True).start_at(0)
    assert sorted(act.in_keys) == ["image", "speed"]
    start = env.reset(seed=0)
    observation = {key: start[key].numpy() for key in ("image", "speed")}
    expected = model.predict(observation, deterministic=True)[0]
    torch.testing.assert_close(act(start)["action"], torch.as_tensor(expected))


def test_loading_leaves_the_generators_alone(tmp_path: Path) -> None:
    policy = save(tmp_path, PPO("MlpPolicy", "CartPole-v1", device="cpu", seed=7))
    env = GymEnv("CartPole-v1")
    torch.manual_seed(0)
    before = (
        torch.get_rng_state(),
        np.random.get_state(legacy=False)["state"]["key"].tolist(),
        random.getstate(),
    )
    load_policy(policy, env, allow_code=True)
    after = (
        torch.get_rng_state(),
        np.random.get_state(legacy=False)["state"]["key"].tolist(),
        random.getstate(),
    )
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_policy_class_of_a_user(tmp_path: Path) -> None:
    model = A2C(OwnPolicy, "CartPole-v1", device="cpu")
    env = GymEnv("CartPole-v1")
    act = load_policy(save(tmp_path, model), env, allow_code=True).start_at(0)
    start = env.reset(seed=0)
    expected = model.predict(start["observation"].numpy(), deterministic=True)[0]
    assert int(act(start)["action"].argmax()) == int(expected)


class RememberingPolicy(ActorCriticPolicy):
    """A policy of a user that returns a state, as recurrent policies do."""

    def predict(self, *arguments: Any, **options: Any) -> tuple[np.ndarray[Any, Any], Any]:
        return super().predict(*arguments, **options)[0], (np.zeros(1),)


def refuse_recurrent(policy: str) -> None:
    with pytest.raises(ArgumentError, match="is a recurrent policy, whose state tdx") as caught:
        load_policy(policy, GymEnv("CartPole-v1"), allow_code=True)
    assert caught.value.hint == (
        "keep it in a function of your own: --policy FILE.py:NAME --allow-code"
    )


def test_recurrent_policies_are_refused(tmp_path: Path) -> None:
    refuse_recurrent(save(tmp_path, PPO(RememberingPolicy, "CartPole-v1", device="cpu")))


def test_recurrent_ppo_is_refused_without_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file describes the class of sb3-contrib, whose pickle cannot be read without it."""
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    described = {
        ":type:": "<class 'abc.ABCMeta'>",
        ":serialized:": base64.b64encode(
            b"csb3_contrib.common.recurrent.policies\nRecurrentActorCriticPolicy\n."
        ).decode(),
    }
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": described}))
    refuse_recurrent(f"sb3:{tmp_path / 'model.zip'}")


@pytest.mark.parametrize("content", [b"", b"no zip file"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.zip").write_bytes(content)
    with pytest.raises(ArgumentError, match="is not a model of Stable-Baselines3"):
        load_policy(f"sb3:{tmp_path / 'model.zip'}", GymEnv("CartPole-v1"), allow_code=True)
