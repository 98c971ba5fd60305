"""Gymnasium envs against TorchRL's: specs, and seeded rollouts value by value.

TorchRL resets one more time than requested after ``set_seed``: its first episode is the second one
that Gymnasium gives for that seed. tdx begins with Gymnasium's first, so here it resets twice.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tdx.envs.gym import GymEnv, GymWrapper, default_info_dict_reader
from tdx.envs.gym.numeric_spaces import CodecOptions
from tdx.envs.gym.spaces import codec_of
from tests.envs.gym.mocks import BOX
from tests.programs import exhaustive

torchrl_envs = pytest.importorskip("torchrl.envs")

pytestmark = pytest.mark.filterwarnings("ignore")


def installed(module: str, *env_ids: str) -> list[Any]:
    absent = importlib.util.find_spec(module) is None
    mark = pytest.mark.skipif(absent, reason=f"{module} is not installed")
    return [pytest.param(env_id, id=env_id, marks=mark) for env_id in env_ids]


IDS = [
    "Acrobot-v1",
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "CliffWalking-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    *installed("ale_py", "ALE/Pong-v5"),
    *installed("mujoco", "HalfCheetah-v5", "Ant-v5"),
]
each_env = pytest.mark.parametrize("env_id", IDS)
both_encodings = pytest.mark.parametrize("categorical", [False, True], ids=["one_hot", "index"])


@pytest.fixture(autouse=True)
def _atari_ids() -> None:
    if importlib.util.find_spec("ale_py") is not None:
        importlib.import_module("ale_py")


def leaf_form(spec: Any) -> tuple[Any, ...]:
    """What two specs of the two libraries must agree on."""
    bounds: tuple[Any, ...] = ()
    if type(spec).__name__.startswith("Bounded"):
        bounds = (spec.space.low.tolist(), spec.space.high.tolist())
    name = type(spec).__name__
    return (
        name,
        tuple(spec.shape),
        spec.dtype,
        spec.domain,
        getattr(spec.space, "n", None),
        bounds,
    )


def form(spec: Any) -> dict[Any, Any]:
    return {key: leaf_form(leaf) for key, leaf in spec.items(True, True)}


def assert_same_specs(mine: Any, theirs: Any) -> None:
    assert form(mine.output_spec) == form(theirs.output_spec)
    assert form(mine.input_spec) == form(theirs.input_spec)
    assert mine.batch_size == theirs.batch_size
    assert mine.action_keys == theirs.action_keys
    assert mine.reward_keys == theirs.reward_keys
    assert sorted(mine.done_keys) == sorted(theirs.done_keys)


def assert_same_entries(mine: Any, theirs: Any) -> None:
    assert set(mine.keys(True, True)) == set(theirs.keys(True, True))
    for key, value in mine.items(True, True):
        other = theirs.get(key)
        assert (value.dtype, value.shape) == (other.dtype, other.shape), key
        assert torch.equal(value, other), key


def assert_same_rollout(mine: Any, theirs: Any, steps: int) -> None:
    mine.set_seed(4)
    theirs.set_seed(4)
    mine.reset()
    left, right = mine.reset(), theirs.reset()
    for _ in range(steps):
        assert_same_entries(left, right)
        mine.rand_action(left)
        right.update(left.select(*mine.action_keys))
        left, right = mine.step(left), theirs.step(right)
        assert_same_entries(left["next"], right["next"])
        done = left["next", "done"].any()
        left, right = mine.step_mdp(left), theirs.step_mdp(right)
        if done:
            left, right = mine.reset(), theirs.reset()


@each_env
@both_encodings
def test_specs(env_id: str, categorical: bool) -> None:
    kwargs: dict[str, Any] = {"categorical_action_encoding": categorical}
    assert_same_specs(GymEnv(env_id, **kwargs), torchrl_envs.GymEnv(env_id, **kwargs))


@each_env
@both_encodings
def test_seeded_rollouts(env_id: str, categorical: bool) -> None:
    """TorchRL turns the frame skip of Atari's envs off, tdx leaves it as Gymnasium has it: 4."""
    kwargs: dict[str, Any] = {"categorical_action_encoding": categorical}
    skip = {"frame_skip": 4} if env_id.startswith("ALE/") else {}
    theirs = torchrl_envs.GymEnv(env_id, **skip, **kwargs)
    assert_same_rollout(GymEnv(env_id, **kwargs), theirs, steps=40)


@pytest.mark.parametrize("kwargs", [{}, {"pixels_only": False}], ids=["only", "both"])
def test_pixels(kwargs: dict[str, Any]) -> None:
    mine = GymEnv("CartPole-v1", from_pixels=True, **kwargs)
    theirs = torchrl_envs.GymEnv("CartPole-v1", from_pixels=True, **kwargs)
    assert_same_specs(mine, theirs)
    assert_same_rollout(mine, theirs, steps=4)


@pytest.mark.parametrize("env_id", ["CartPole-v1", *installed("ale_py", "ALE/Pong-v5")])
@exhaustive
def test_frame_skip(env_id: str) -> None:
    mine, theirs = GymEnv(env_id, frame_skip=3), torchrl_envs.GymEnv(env_id, frame_skip=3)
    assert_same_rollout(mine, theirs, steps=20)


def vector_env(mode: str) -> Any:
    return gymnasium.make_vec(
        "CartPole-v1",
        3,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode[mode]},
    )


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_specs_of_a_vector_env(mode: str) -> None:
    assert_same_specs(GymWrapper(vector_env(mode)), torchrl_envs.GymWrapper(vector_env(mode)))


def test_seeded_rollouts_of_a_vector_env() -> None:
    """With TorchRL's rows reset one by one, as tdx resets them."""
    mine, theirs = (m(vector_env("SAME_STEP")) for m in (GymWrapper, torchrl_envs.GymWrapper))
    mine.set_seed(1)
    theirs.set_seed(1)
    mine.reset()
    left, right = mine.reset(), theirs.reset()
    for _ in range(60):
        mine.rand_action(left)
        right.update(left.select("action"))
        left, left_root = mine.step_and_maybe_reset(left)
        right, right_root = theirs.step_and_maybe_reset(right)
        for key in ("observation", "reward", "done", "terminated", "truncated"):
            assert torch.equal(left["next", key], right["next", key]), key
        assert torch.equal(left_root["observation"], right_root["observation"])
        left, right = left_root, right_root


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(-np.inf, np.inf, (3,), np.float64),
        spaces.Box(0.0, np.inf, (2,), np.float32),
        spaces.Box(-1.0, 1.0, (), np.float32),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Box(-3, 5, (2,), np.int64),
        spaces.Box(0, 1, (2,), np.bool_),  # type: ignore[arg-type]
        spaces.Box(-128, 127, (2,), np.int8),
        spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (2,), np.float32),
        spaces.Discrete(3),
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete([3, 3]),
        spaces.MultiDiscrete([5]),
        spaces.MultiDiscrete(np.array([[2, 2], [2, 2]])),
        spaces.MultiBinary(3),
        spaces.Tuple((BOX, BOX)),
        spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))),
        spaces.Tuple((spaces.Tuple((BOX, BOX)), spaces.Tuple((BOX, BOX)))),
    ],
    ids=str,
)
@both_encodings
def test_specs_of_spaces(space: spaces.Space[Any], categorical: bool) -> None:
    gym_lib = pytest.importorskip("torchrl.envs.libs.gym")
    mine = codec_of(space, CodecOptions(None, categorical, remap_state=True)).spec
    theirs = gym_lib._gym_to_torchrl_spec_transform(space, categorical_action_encoding=categorical)
    assert leaf_form(mine) == leaf_form(theirs)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(a=BOX, b=spaces.Dict(c=spaces.Discrete(2))),
        spaces.Dict(state=BOX, other=BOX),
        spaces.Dict(state=BOX, observation=BOX),
        spaces.Dict(a=spaces.Dict(state=BOX)),
        spaces.Tuple((spaces.Dict(a=BOX), spaces.Dict(a=BOX))),
    ],
    ids=str,
)
def test_specs_of_nested_spaces(space: spaces.Space[Any]) -> None:
    gym_lib = pytest.importorskip("torchrl.envs.libs.gym")
    mine = codec_of(space, CodecOptions(None, False, remap_state=True)).spec
    theirs = gym_lib._gym_to_torchrl_spec_transform(space)
    assert form(mine) == form(theirs)


def test_infos() -> None:
    pytest.importorskip("mujoco")
    keys = ["reward_ctrl", "x_position"]
    mine = GymEnv("HalfCheetah-v5").set_info_dict_reader(default_info_dict_reader(keys))
    theirs = torchrl_envs.GymEnv("HalfCheetah-v5").set_info_dict_reader(
        torchrl_envs.default_info_dict_reader(keys)
    )
    for env in (mine, theirs):
        env.set_seed(2)
    mine.reset()
    left, right = mine.reset(), theirs.reset()
    for _ in range(5):
        mine.rand_action(left)
        right["action"] = left["action"]
        left, right = mine.step(left)["next"], theirs.step(right)["next"]
        for key in keys:
            assert torch.equal(left[key], right[key])
            assert left[key].dtype == right[key].dtype
