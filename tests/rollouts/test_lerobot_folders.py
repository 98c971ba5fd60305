"""Checkpoints of LeRobot as policies: what is refused before LeRobot is imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from tdx import (
    ArgumentError,
    CodeNotAllowedError,
    EnvBase,
    GymEnv,
    InitTracker,
    MissingPackageError,
    Pipeline,
    PipelineError,
    StorageError,
    TransformedEnv,
)
from tdx.pipeline.policies import parse_policy
from tdx.rollouts.policies.policy import load_actor, load_policy
from tdx.stacks import open_stack
from tests.stacks.checkpoints.folders import ACTION, IMAGE, STATE, Folder


@pytest.fixture
def folder() -> Folder:
    """A policy for Pendulum, which reads its observation as the state."""
    folder = Folder()
    folder.config["input_features"] = {STATE: {"type": "STATE", "shape": [3]}}
    folder.config["output_features"] = {ACTION: {"type": "ACTION", "shape": [1]}}
    return folder


def make_env(env_id: str = "Pendulum-v1", num_envs: int | None = None) -> EnvBase:
    return TransformedEnv(GymEnv(env_id, num_envs=num_envs), InitTracker())


def refuse(folder: Folder, path: Path, env: EnvBase, settings: str = "") -> str:
    """Return the message and the hint of the error, with POLICY for the name of the folder."""
    folder.write(path)
    with pytest.raises(ArgumentError) as caught:
        load_policy(f'lerobot("{path}"{settings})', env, allow_code=True)
    return f"{caught.value.message}\n{caught.value.hint}".replace(str(path), "POLICY")


def test_policy_needs_allow_code(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(CodeNotAllowedError, match="is a policy of LeRobot, which can run code"):
        load_policy(f"lerobot:{folder.write(tmp_path)}", make_env())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lerobot:", "the policy 'lerobot:' has no folder"),
        ("lerobot()", "lerobot needs the folder of the model"),
        ('lerobot("a", "b")', "lerobot takes one folder"),
        ('lerobot("a", task="push")', "lerobot has no setting task"),
        ('lerobot("a", in_keys=[1])', "in_keys of lerobot must be keys, got (1,)"),
    ],
)
def test_malformed_name(name: str, message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        parse_policy(name)
    assert caught.value.message == message
    assert caught.value.hint


def test_folder_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is no policy checkpoint"):
        load_policy(f"lerobot:{tmp_path}", make_env(), allow_code=True)


def test_type_of_the_policy_is_missing(folder: Folder, tmp_path: Path) -> None:
    del folder.config["type"]
    assert refuse(folder, tmp_path, make_env()) == (
        "POLICY does not name the type of its policy\n"
        "copy the config.json that LeRobot saved beside the processors"
    )


def test_rows_of_a_batch_cannot_be_reset_alone(folder: Folder, tmp_path: Path) -> None:
    assert refuse(folder, tmp_path, make_env(num_envs=3)) == (
        "POLICY keeps one queue of actions, which cannot be reset for one of 3 envs\n"
        "use one env: --num-envs 1"
    )


def test_start_of_an_episode_is_unknown(folder: Folder, tmp_path: Path) -> None:
    assert refuse(folder, tmp_path, GymEnv("Pendulum-v1")) == (
        "POLICY has to be reset where an episode starts, which no entry of the env says\n"
        "add the transform InitTracker: -t InitTracker"
    )


@pytest.mark.parametrize(
    ("shape", "env_id", "message"),
    [
        ([6], "Pendulum-v1", "POLICY takes STATE [6], the env gives float [3] in 'observation'"),
        ([2], "CartPole-v1", "POLICY takes STATE [2], the env gives float [4] in 'observation'"),
        ([4], "CartPole-v1", "POLICY gives float [1], the env takes OneHot in 'action'"),
    ],
)
def test_other_spaces_are_refused(
    folder: Folder, shape: list[int], env_id: str, message: str, tmp_path: Path
) -> None:
    folder.config["input_features"][STATE]["shape"] = shape
    assert refuse(folder, tmp_path, make_env(env_id)).split("\n") == [
        message,
        "run it on the env that it was trained on; `tdx inspect spec` shows what this one has",
    ]


def test_observation_that_the_env_lacks(folder: Folder, tmp_path: Path) -> None:
    folder.config["input_features"][IMAGE] = {"type": "VISUAL", "shape": [3, 8, 8]}
    assert refuse(folder, tmp_path, make_env()) == (
        f"POLICY reads {STATE!r}, the env has observation\n"
        f'name the entry for each of {STATE}, {IMAGE}: lerobot("POLICY", in_keys=["observation"])'
    )
    assert refuse(folder, tmp_path, make_env(), ', in_keys=["observation", "pixels"]') == (
        "POLICY reads 'pixels', the env has observation\n"
        f'name the entry for each of {STATE}, {IMAGE}: lerobot("POLICY", in_keys=["observation"])'
    )
    assert refuse(folder, tmp_path, make_env(), ', in_keys=["observation"]') == (
        f"POLICY reads 2 observations ({STATE}, {IMAGE}), in_keys names 1\nthe env has observation"
    )


def test_lerobot_is_not_installed(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lerobot", None)
    name = f"lerobot:{folder.write(tmp_path)}"
    with pytest.raises(MissingPackageError, match="needs the package lerobot") as caught:
        load_policy(name, make_env(), allow_code=True)
    assert "pip install lerobot" in str(caught.value.hint)


def test_stack_of_another_library(folder: Folder, tmp_path: Path) -> None:
    name = f"lerobot:{folder.write(tmp_path)}"
    stack = open_stack(gym.make("Pendulum-v1"))
    with pytest.raises(ArgumentError, match="acts on the TensorDicts of a tdx env"):
        load_actor(Pipeline.of("f:make"), stack, name=name, allow_code=True)


def test_config_that_is_no_json(folder: Folder, tmp_path: Path) -> None:
    folder.write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([]))
    with pytest.raises(StorageError, match=r"config\.json"):
        load_policy(f"lerobot:{tmp_path}", make_env(), allow_code=True)
