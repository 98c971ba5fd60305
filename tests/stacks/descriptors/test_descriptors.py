"""Deployment descriptors, and files that only look like one."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from tdx.foundation.errors import StorageError
from tdx.stacks.descriptors import is_descriptor, read_descriptor
from tests.stacks.descriptors.exports import (
    JOINTS,
    POSITIONS,
    field,
    isaaclab_descriptors,
    metadata_entry,
    mjlab_metadata,
    model,
    varint,
    write_isaaclab,
    write_mjlab,
)


def test_mjlab(tmp_path: Path) -> None:
    descriptor = read_descriptor(write_mjlab(tmp_path / "policy.onnx"))
    assert descriptor.library == "mjlab"
    assert [term.name for term in descriptor.terms] == [
        *("base_ang_vel", "joint_pos", "joint_vel", "actions", "command")
    ]
    assert [term.history for term in descriptor.terms] == [5, 5, 5, 5, 1]
    assert descriptor.terms[2].scale == (0.05,)
    assert descriptor.terms[2].clip == (-10.0, 10.0)
    assert descriptor.terms[0].clip == (-math.inf, math.inf)
    (action,) = descriptor.actions
    assert action.joints == JOINTS
    assert action.scale == (0.548, 0.548, 0.351, 0.351)
    assert descriptor.robot.positions == POSITIONS
    assert descriptor.commands == ("twist",)


def test_mjlab_without_details(tmp_path: Path) -> None:
    metadata = {"observation_names": "joint_pos,actions", "action_scale": "0.5"}
    descriptor = read_descriptor(write_mjlab(tmp_path / "policy.onnx", metadata))
    assert [term.history for term in descriptor.terms] == [None, None]
    assert descriptor.actions[0].scale == (0.5,)


def test_clips_in_brackets(tmp_path: Path) -> None:
    metadata = mjlab_metadata()
    metadata["observation_terms_clip"] = ",".join(["[-inf, inf]"] * 4 + ["[-1.0, 1.0]"])
    descriptor = read_descriptor(write_mjlab(tmp_path / "policy.onnx", metadata))
    assert descriptor.terms[4].clip == (-1.0, 1.0)


def test_isaaclab(tmp_path: Path) -> None:
    descriptor = read_descriptor(write_isaaclab(tmp_path / "IO_descriptors.yaml"))
    assert descriptor.library == "Isaac Lab"
    assert [term.name for term in descriptor.terms][2:] == [
        *("joint_pos_rel", "joint_vel_rel", "last_action")
    ]
    assert descriptor.terms[2].offsets == POSITIONS
    assert descriptor.terms[0].shape == (3,)
    assert descriptor.terms[0].history == 1
    assert descriptor.terms[0].scale == (1.0,)
    assert descriptor.actions[0].scale == (0.5,)
    assert descriptor.actions[0].offset == POSITIONS
    assert descriptor.step == 0.02
    assert descriptor.notes == ("only the group 'policy' is read, not 'critic'",)


def test_terms_of_one_function_are_numbered(tmp_path: Path) -> None:
    descriptors = isaaclab_descriptors()
    descriptors["observations"]["policy"].append({"name": "generated_commands"})
    descriptor = read_descriptor(write_isaaclab(tmp_path / "io.yaml", descriptors))
    assert descriptor.terms[-1].name == "generated_commands (2)"


def test_other_files_are_no_descriptors(tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text("version: 1\nenv: Pendulum-v1\ntransforms: []\n")
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "folder.onnx").mkdir()
    others = (pipeline, tmp_path, tmp_path / "pipe.onnx", tmp_path / "folder.onnx", "Pendulum-v1")
    assert not any(is_descriptor(path) for path in others)
    assert not is_descriptor("\0.onnx")


HOSTILE_MODELS = {
    "empty": (b"", "has no 'observation_names'"),
    "text": (b"this is no model", "is not an ONNX file"),
    "cut": (model(mjlab_metadata())[:-3], "is not an ONNX file"),
    "huge field": (varint(7 << 3 | 2) + varint(2**62), "declares 4,611,686,018,427,387,904 bytes"),
    "endless number": (b"\xff" * 100, "more than 10 bytes"),
    "entry beyond its end": (
        field(14, varint(1 << 3 | 2) + varint(1_000)) + bytes(2_000),
        "declares 1,000 bytes, but only 0 are left",
    ),
    "large entry": (metadata_entry("a", "b" * 2**21), "larger than that of any policy"),
    "many entries": (
        metadata_entry("a", "b") * 9
        + b"".join(metadata_entry(str(index), "") for index in range(1_001)),
        "larger than that of any policy",
    ),
    "many fields": (b"\x08\x01" * 100_001, "more than 100,000 fields"),
    "not text": (field(14, field(1, b"\xff\xfe")), "is not UTF-8"),
    "no numbers": (
        model(mjlab_metadata() | {"action_scale": "__import__('os')"}),
        "'action_scale' has \"__import__('os')\", not numbers",
    ),
    "no frames": (
        model(mjlab_metadata() | {"observation_terms_history_length": "1,1,1,1,nan"}),
        "not a whole number",
    ),
    "fewer scales": (
        model(mjlab_metadata() | {"observation_terms_scale": "1.0"}),
        "'observation_terms_scale' has 1 values for 5 observation terms",
    ),
    "many joints": (
        model(mjlab_metadata() | {"joint_names": ",".join(map(str, range(501)))}),
        "more terms or joints than any robot",
    ),
}


@pytest.mark.parametrize("name", HOSTILE_MODELS)
def test_hostile_model_gets_one_sentence(name: str, tmp_path: Path) -> None:
    content, sentence = HOSTILE_MODELS[name]
    path = tmp_path / "policy.onnx"
    path.write_bytes(content)
    with pytest.raises(StorageError) as error:
        read_descriptor(path)
    assert sentence in error.value.message
    assert "\n" not in error.value.message


def _aliases(depth: int = 12) -> str:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, depth)]
    action = f"actions: [{{name: a, scale: *a{depth - 1}}}]"
    return "\n".join([*lines, action, "observations: {policy: []}"])


HOSTILE_DOCUMENTS: dict[str, tuple[Any, str]] = {
    "aliases": (_aliases(), "more than 20,000 values, with its aliases"),
    "nested": ("actions: " + "[" * 200 + "\nobservations: {}", "nested more than 100 levels"),
    "object": ("actions: []\nobservations: !!python/object/apply:os.system [ls]", "not a mapping"),
    "no mapping": ("actions: []\nobservations: 3", "not a mapping"),
    "no names": ("actions: [{scale: 1}]\nobservations: {policy: []}", "it has no 'name'"),
    "shape": (
        "actions: [{name: a, shape: [-1]}]\nobservations: {policy: []}",
        "has the invalid size -1",
    ),
    "scale": ("actions: [{name: a, scale: x}]\nobservations: {policy: []}", "not numbers"),
    "not UTF-8": (b"actions:\nobservations:\n\xff", "is not UTF-8"),
    "large": ("actions: []\nobservations: {}\n" + "#" * 2**18, "more than 262,144 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE_DOCUMENTS)
def test_hostile_document_gets_one_sentence(name: str, tmp_path: Path) -> None:
    content, sentence = HOSTILE_DOCUMENTS[name]
    path = tmp_path / "io.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert is_descriptor(path)
    with pytest.raises(StorageError) as error:
        read_descriptor(path)
    assert sentence in error.value.message
    assert "\n" not in error.value.message


def test_values_by_joint_are_in_the_order_of_the_joints(tmp_path: Path) -> None:
    descriptors = isaaclab_descriptors()
    by_name = {joint: index / 10 for index, joint in enumerate(JOINTS)}
    in_other_order = {joint: by_name[joint] for joint in sorted(JOINTS)}
    (action,) = descriptors["actions"]
    action["scale"] = in_other_order
    action["clip"] = {joint: [-value, value] for joint, value in in_other_order.items()}
    term = descriptors["observations"]["policy"][2]
    term["joint_pos_offsets"] = in_other_order
    robot = descriptors["articulations"]["robot"]
    robot["default_joint_pos"] = robot["default_joint_stiffness"] = in_other_order
    descriptor = read_descriptor(write_isaaclab(tmp_path / "io.yaml", descriptors))
    expected = (0.0, 0.1, 0.2, 0.3)
    assert descriptor.actions[0].scale == expected
    assert descriptor.actions[0].clip == (0.0, 0.0, -0.1, 0.1, -0.2, 0.2, -0.3, 0.3)
    assert descriptor.terms[2].offsets == expected
    assert descriptor.robot.positions == descriptor.robot.stiffness == expected


def test_values_by_the_joints_of_the_robot(tmp_path: Path) -> None:
    """Joints that a term does not list are those of the robot."""
    descriptors = isaaclab_descriptors()
    (action,) = descriptors["actions"]
    del action["joint_names"]
    action["scale"] = {"right_knee": 4.0, "left_hip": 1.0}
    (read,) = read_descriptor(write_isaaclab(tmp_path / "io.yaml", descriptors)).actions
    assert read.scale == (1.0, 4.0)


def test_values_by_patterns_are_a_note(tmp_path: Path) -> None:
    descriptors = isaaclab_descriptors()
    (action,) = descriptors["actions"]
    action["scale"] = {".*_hip": 0.5, ".*_knee": 0.25}
    descriptor = read_descriptor(write_isaaclab(tmp_path / "io.yaml", descriptors))
    assert descriptor.actions[0].scale is None
    (note,) = [note for note in descriptor.notes if "'scale'" in note]
    assert "'.*_hip' is none of the joints" in note
