"""Deployment descriptors of a four-joint robot, as mjlab and Isaac Lab export them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

JOINTS = ("left_hip", "right_hip", "left_knee", "right_knee")
POSITIONS = (0.1, -0.1, 0.4, -0.4)
BY_LEG = (0, 2, 1, 3)
"""The joints leg by leg, as another simulator orders them."""


def permuted(values: Any) -> list[Any]:
    """Return values of joints in the order of another simulator."""
    return [values[index] for index in BY_LEG]


def varint(value: int) -> bytes:
    """Encode a number of a protocol buffer."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, content: bytes) -> bytes:
    """Encode a field with bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def metadata_entry(key: str, value: str) -> bytes:
    """Encode an entry of the metadata of a model."""
    return field(14, field(1, key.encode()) + field(2, value.encode()))


def model(metadata: dict[str, str], graph: bytes = bytes(5_000)) -> bytes:
    """Encode an ONNX model; its graph is not one, since nobody reads it."""
    version = varint(1 << 3) + varint(8)
    entries = b"".join(metadata_entry(key, value) for key, value in metadata.items())
    return version + field(2, b"pytorch") + field(7, graph) + entries


def mjlab_metadata() -> dict[str, str]:
    """Return the metadata of a policy with a history of five frames."""
    return {
        "run_path": "lab/walk/run",
        "joint_names": ",".join(JOINTS),
        "joint_stiffness": "40.000,40.000,99.098,99.000",
        "joint_damping": "2.500,2.500,6.300,6.300",
        "default_joint_pos": "0.100,-0.100,0.400,-0.400",
        "command_names": "twist",
        "observation_names": "base_ang_vel,joint_pos,joint_vel,actions,command",
        "observation_terms_scale": "1.000,1.000,0.050,1.000,1.000",
        "observation_terms_clip": "-inf;inf,-inf;inf,-10.0;10.0,-inf;inf,-inf;inf",
        "observation_terms_flatten_history_dim": "1.000,1.000,1.000,1.000,1.000",
        "observation_terms_history_length": "5.000,5.000,5.000,5.000,0.000",
        "action_scale": "0.548,0.548,0.351,0.351",
    }


def write_mjlab(path: Path, metadata: dict[str, str] | None = None) -> Path:
    """Write an ONNX file."""
    path.write_bytes(model(mjlab_metadata() if metadata is None else metadata))
    return path


def _term(name: str, size: int, **further: Any) -> dict[str, Any]:
    return {
        "name": name,
        "mdp_type": "Observation",
        "dtype": "torch.float32",
        "shape": [size],
        "overloads": {
            "clip": None,
            "flatten_history_dim": True,
            "history_length": 0,
            "scale": None,
        },
        **further,
    }


def isaaclab_descriptors() -> dict[str, Any]:
    """Return the IO descriptors of a policy without a history."""
    joints, zeros = list(JOINTS), [0.0] * len(JOINTS)
    terms = [
        _term("base_ang_vel", 3),
        _term("generated_commands", 3),
        _term("joint_pos_rel", 4, joint_names=joints, joint_pos_offsets=list(POSITIONS)),
        _term("joint_vel_rel", 4, joint_names=joints, joint_vel_offsets=zeros),
        _term("last_action", 4),
    ]
    action = {
        "name": "joint_position_action",
        "mdp_type": "Action",
        "shape": [4],
        "clip": None,
        "joint_names": joints,
        "offset": list(POSITIONS),
        "scale": 0.5,
    }
    robot = {
        "joint_names": joints,
        "default_joint_pos": list(POSITIONS),
        "default_joint_stiffness": zeros,
        "default_joint_damping": zeros,
    }
    return {
        "actions": [action],
        "articulations": {"robot": robot},
        "observations": {"critic": [_term("height_scan", 187)], "policy": terms},
        "scene": {"decimation": 4, "dt": 0.02, "physics_dt": 0.005},
    }


def write_isaaclab(path: Path, descriptors: dict[str, Any] | None = None) -> Path:
    """Write a YAML file; JSON is YAML, and each section begins a line."""
    sections = isaaclab_descriptors() if descriptors is None else descriptors
    path.write_text("".join(f"{name}: {json.dumps(part)}\n" for name, part in sections.items()))
    return path
