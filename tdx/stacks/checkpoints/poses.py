"""Relative actions of GR00T as absolute ones, and rotations as matrices.

References:
    ``StateActionProcessor`` and ``EndEffectorPose`` in https://github.com/NVIDIA/Isaac-GR00T.

    Its six numbers of a rotation are the first two *rows* of the matrix:
    ``gr00t/data/state_action/droid_frame.py`` takes them from the matrix, and in N1.5
    ``gr00t/data/transform/state_action.py`` calls ``matrix_to_rotation_6d`` of PyTorch3D, which
    drops the last row. X-VLA has two columns, as has the variant NVIDIA-Medtech/GR00T-H.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError
from tdx.stacks.checkpoints.model import SampleEntries, Step

JOINTS, ROTATION_6D, ROTATION_VECTOR = "NON_EEF", "XYZ_ROT6D", "XYZ_ROTVEC"
POSE_SIZES: Mapping[str, int] = MappingProxyType({ROTATION_6D: 9, ROTATION_VECTOR: 6})
"""Numbers of a pose by its format: a position and a rotation."""


def to_absolute(step: Step, entries: SampleEntries) -> SampleEntries:
    """Add the state of the robot to actions that are relative to it.

    Args:
        step: Its ``relative`` has ``[key of the state, layout]`` by key of the action.
        entries: Actions ``[..., T, D]``, and the states ``[..., D]`` or ``[..., T, D]``, of which
            the last one counts.

    Raises:
        ArgumentError: There is no such state, or it has another size.
    """
    result = dict(entries)
    for key, (source, layout) in relative_keys(step).items():
        action, state = entries.get(key), entries.get(source)
        if not isinstance(action, np.ndarray):
            continue
        if not isinstance(state, np.ndarray):
            raise ArgumentError(f"{key!r} is relative to {source!r}, which the sample lacks")
        reference = state[..., -1:, :] if state.ndim > 1 else state
        sizes = {action.shape[-1], reference.shape[-1], POSE_SIZES.get(layout, action.shape[-1])}
        if len(sizes) > 1:
            raise ArgumentError(
                f"{key!r} {list(action.shape)} is relative to {source!r} {list(state.shape)}, "
                f"which does not fit{'' if layout == JOINTS else f' as {layout}'}"
            )
        if layout == JOINTS:
            result[key] = reference + action
        else:
            result[key] = _compose(reference, action, layout)
    return result


def relative_keys(step: Step) -> Mapping[str, tuple[str, str]]:
    """Return the key of the state and the layout of each relative action, by its key."""
    declared = step.config.get("relative")
    return {
        key: (str(pair[0]), str(pair[1]))
        for key, pair in (declared.items() if isinstance(declared, dict) else ())
        if isinstance(pair, list) and len(pair) == 2
    }


def _compose(reference: Array, relative: Array, layout: str) -> Array:
    """Return poses in the frame of a reference pose as poses in the frame of the robot."""
    to_matrix = _rows_to_matrix if layout == ROTATION_6D else _vectors_to_matrix
    frame, turn = (to_matrix(pose[..., 3:].astype(np.float64)) for pose in (reference, relative))
    position = (frame @ relative[..., :3, None])[..., 0] + reference[..., :3]
    rotation = frame @ turn
    if layout == ROTATION_6D:
        six = rotation[..., :2, :]
        return np.concatenate([position, six.reshape(*six.shape[:-2], 6)], -1)
    return np.concatenate([position, _matrix_to_vectors(rotation)], -1)


def _rows_to_matrix(six: Array) -> Array:
    first, second = six[..., :3], six[..., 3:]
    first = first / np.linalg.norm(first, axis=-1, keepdims=True)
    second = second - (first * second).sum(-1, keepdims=True) * first
    second = second / np.linalg.norm(second, axis=-1, keepdims=True)
    return np.stack([first, second, np.cross(first, second)], -2)


def _vectors_to_matrix(vectors: Array) -> Array:
    """Return axes times angles ``[..., 3]`` as matrices, by Rodrigues' formula."""
    angle = np.linalg.norm(vectors, axis=-1)[..., None, None]
    axis = vectors / np.maximum(angle[..., 0], 1e-30)
    cross = np.zeros((*vectors.shape, 3))
    for row, column, part, sign in (
        *((0, 1, 2, -1), (0, 2, 1, 1), (1, 2, 0, -1)),
        *((1, 0, 2, 1), (2, 0, 1, -1), (2, 1, 0, 1)),
    ):
        cross[..., row, column] = sign * axis[..., part]
    matrix: Array = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)
    return matrix


def _matrix_to_vectors(matrix: Array) -> Array:
    flat = matrix.reshape(-1, 3, 3)
    quaternions = matrix_to_quaternions(flat)
    sines = np.linalg.norm(quaternions[:, :3], axis=-1, keepdims=True)
    # An arc cosine loses half of the digits of a small angle.
    angles = 2 * np.arctan2(sines, quaternions[:, 3:])
    vectors = quaternions[:, :3] * np.where(sines == 0, 2, angles / np.where(sines == 0, 1, sines))
    return vectors.reshape(matrix.shape[:-1])


def matrix_to_quaternions(m: Array) -> Array:
    """Return rotation matrices ``[B, 3, 3]`` as unit quaternions ``[B, 4]``, real parts last.

    The unit quaternion of a rotation is the eigenvector with the largest eigenvalue of a symmetric
    matrix of its entries (Bar-Itzhack, 2000).
    """
    # eigh reads the lower triangle only.
    symmetric = np.zeros((len(m), 4, 4), m.dtype)
    for axis in range(3):
        before, after = (axis + 1) % 3, (axis + 2) % 3
        # In the order of LeRobot, which decides the last bit.
        low, high = min(before, after), max(before, after)
        symmetric[:, axis, axis] = m[:, axis, axis] - m[:, low, low] - m[:, high, high]
        symmetric[:, 3, axis] = m[:, after, before] - m[:, before, after]
    for row, column in ((1, 0), (2, 0), (2, 1)):
        symmetric[:, row, column] = m[:, row, column] + m[:, column, row]
    symmetric[:, 3, 3] = m[:, 0, 0] + m[:, 1, 1] + m[:, 2, 2]
    values, vectors = np.linalg.eigh(symmetric / m.dtype.type(3))
    largest = np.argmax(values, axis=1)
    quaternions = vectors[np.arange(len(m)), :, largest]
    result: Array = np.where(quaternions[:, 3:] < 0, -quaternions, quaternions)
    return result
