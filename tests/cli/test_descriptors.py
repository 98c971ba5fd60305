"""Deployment descriptors as targets of commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs import exhaustive, sampled
from tests.stacks.descriptors.exports import mjlab_metadata, write_isaaclab, write_mjlab

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx


def test_specs(tdx: Tdx, tmp_path: Path) -> None:
    for path in (write_mjlab(tmp_path / "policy.onnx"), write_isaaclab(tmp_path / "io.yaml")):
        result = tdx("inspect", "spec", str(path))
        assert result.code == 0, result.err
        assert "base_ang_vel" in result.out
        assert "left_knee" in result.out
        assert tdx("inspect", "spec", str(path), "--stages").code == 2


def test_check(tdx: Tdx, tmp_path: Path) -> None:
    one = str(write_mjlab(tmp_path / "one.onnx"))
    changed = mjlab_metadata() | {"action_scale": "0.25"}
    other = str(write_mjlab(tmp_path / "other.onnx", changed))
    assert tdx("check", one).code == 0
    assert tdx("contract", "check", one, "--against", one).code == 0
    result = tdx("contract", "check", other, "--against", one, "--format", "json")
    assert result.code == 1
    assert [finding["code"] for finding in json.loads(result.out)["findings"]] == ["TDX646"]
    assert tdx("contract", "check", other, "--against", one, "--ignore", "TDX646").code == 0


def test_other_targets_and_options_are_refused(tdx: Tdx, tmp_path: Path) -> None:
    path = str(write_mjlab(tmp_path / "policy.onnx"))
    result = tdx("contract", "check", path, "--against", str(tmp_path))
    assert result.code == 2
    assert "is neither a deployment descriptor nor a contract" in result.err
    assert tdx("check", path, "--fix").code == 2
    result = tdx("inspect", "chain", path)
    assert result.code == 2
    assert "this command does not take" in result.err


ROBOT = """
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

JOINTS = ["left_hip", "right_hip", "left_knee", "right_knee"]
SIZES = {"base_ang_vel": 3, "generated_commands": 3, "joint_pos_rel": 4, "joint_vel_rel": 4,
         "last_action": 4}


class Robot(gym.Env):
    action_space = Box(-9, 9, (4,), np.float32)

    def __init__(self, names):
        self.observation_space = Dict(
            [(name, Box(-9, 9, (SIZES[name],), np.float32)) for name in names]
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


class Targets(gym.ActionWrapper, gym.utils.RecordConstructorArgs):
    def __init__(self, env, joint_names, action_scale, default_joint_pos):
        gym.utils.RecordConstructorArgs.__init__(
            self, joint_names=joint_names, action_scale=action_scale,
            default_joint_pos=default_joint_pos,
        )
        gym.ActionWrapper.__init__(self, env)
        self.action_scale, self.default_joint_pos = action_scale, default_joint_pos

    def action(self, action):
        return np.float32(action * self.action_scale + np.asarray(self.default_joint_pos))


def build(names=tuple(SIZES), joints=JOINTS, scale=0.5, positions=(0.1, -0.1, 0.4, -0.4)):
    env = Targets(Robot(names), list(joints), scale, list(positions))
    return gym.wrappers.FlattenObservation(env)


def sound():
    return build()


def reordered_terms():
    names = list(SIZES)
    return build((*names[:3], names[4], names[3]))


def reordered_joints():
    joints = ["left_hip", "left_knee", "right_hip", "right_knee"]
    return build(joints=joints, positions=(0.1, 0.4, -0.1, -0.4))


def rescaled():
    return build(scale=0.25)


def moved():
    return build(positions=(0.1, -0.1, 0.8, -0.4))


def stacked():
    return gym.wrappers.FrameStackObservation(build(), 3)


def unrelated():
    return gym.make("CartPole-v1")
"""


VECTOR = """

class Vector(gym.Env):
    observation_space, action_space = Box(-9, 9, (18,), np.float32), Box(-9, 9, (4,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(18, np.float32), {}

    def step(self, action):
        return np.ones(18, np.float32), 0.0, False, False, {}


def vector():
    return Vector()
"""


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("sound", []),
        ("reordered_terms", ["TDX642"]),
        ("reordered_joints", ["TDX643"]),
        ("rescaled", ["TDX646"]),
        ("moved", ["TDX645"]),
        # The descriptor has single frames, so that its observation is smaller too.
        ("stacked", ["TDX647", "TDX649"]),
    ],
)
@sampled(3)
def test_check_against_a_contract(tdx: Tdx, tmp_path: Path, name: str, codes: list[str]) -> None:
    (tmp_path / "robot.py").write_text(ROBOT)
    target, contract = f"{tmp_path / 'robot.py'}:{name}", str(tmp_path / "contract")
    assert tdx("freeze", target, "--allow-code", "--out", contract).code == 0
    path = str(write_isaaclab(tmp_path / "io.yaml"))
    for command in (("check", path, "--against", contract), ("diff", contract, path)):
        result = tdx(*command, "--format", "json")
        assert result.code == bool(codes), result.err
        report = json.loads(result.out)
        assert set(codes) == {finding["code"] for finding in report["findings"]}
        # What the contract does not know is counted.
        (note,) = [note for note in report["hidden"] if note.startswith("compared ")]
        assert "the scale of 'base_ang_vel'" in note


@exhaustive
def test_a_contract_of_another_env_is_not_comparable(tdx: Tdx, tmp_path: Path) -> None:
    (tmp_path / "robot.py").write_text(ROBOT)
    contract = str(tmp_path / "contract")
    target = f"{tmp_path / 'robot.py'}:unrelated"
    assert tdx("freeze", target, "--allow-code", "--out", contract).code == 0
    metadata = {"observation_names": "base_ang_vel"}
    path = str(write_mjlab(tmp_path / "policy.onnx", metadata))
    result = tdx("check", path, "--against", contract)
    assert result.code == 1
    assert "not comparable" in result.err


@exhaustive
def test_a_contract_without_terms_and_joints_is_not_comparable(tdx: Tdx, tmp_path: Path) -> None:
    # A vector and actions of the sizes of the descriptor: all that such a contract knows.
    (tmp_path / "robot.py").write_text(ROBOT + VECTOR)
    contract = str(tmp_path / "contract")
    target = f"{tmp_path / 'robot.py'}:vector"
    assert tdx("freeze", target, "--allow-code", "--out", contract).code == 0
    path = str(write_isaaclab(tmp_path / "io.yaml"))
    for command in (("check", path, "--against", contract), ("diff", contract, path)):
        result = tdx(*command)
        assert result.code == 1
        assert "not comparable: compared 2 of " in result.err


def test_diff(tdx: Tdx, tmp_path: Path) -> None:
    one = str(write_mjlab(tmp_path / "one.onnx"))
    other = str(write_mjlab(tmp_path / "other.onnx", mjlab_metadata() | {"action_scale": "0.25"}))
    assert tdx("diff", one, one).code == 0
    result = tdx("diff", one, other, "--format", "json")
    assert result.code == 1
    assert json.loads(result.out) == json.loads(
        tdx("check", other, "--against", one, "--format", "json").out
    )
    assert tdx("diff", one, other, "--steps", "3").code == 2
    result = tdx("diff", one, "Pendulum-v1")
    assert result.code == 2
    assert "is a deployment descriptor" in result.err
