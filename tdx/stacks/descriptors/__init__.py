"""Deployment descriptors: what a robot has to feed to a policy, as data.

mjlab writes one into the metadata of an ONNX file, and Isaac Lab exports one as YAML. Neither
weights nor code are read.
"""

from __future__ import annotations

import re
from pathlib import Path

from tdx.foundation.errors import StorageError
from tdx.foundation.files import report_read_errors
from tdx.foundation.untrusted import MAX_PIPELINE_BYTES
from tdx.stacks.descriptors.isaaclab import read_isaaclab
from tdx.stacks.descriptors.mjlab import read_mjlab
from tdx.stacks.descriptors.model import Action, Descriptor, Robot, Term

__all__ = ["Action", "Descriptor", "Robot", "Term", "is_descriptor", "read_descriptor"]

_SECTIONS = (rb"(?m)^observations:", rb"(?m)^actions:")
"""IO descriptors have both, and pipeline files neither."""
_MAX_NAMES = 500
"""Terms, actions, or joints of one of them."""
_MAX_ALL_NAMES = 10_000


def is_descriptor(path: str | Path) -> bool:
    """Return True for an ONNX file, and for a YAML file with IO descriptors of Isaac Lab."""
    path = Path(path)
    try:
        if not path.is_file():
            return False
        if path.suffix == ".onnx":
            return True
        if path.suffix not in (".yaml", ".yml"):
            return False
        with path.open("rb") as file:
            head = file.read(MAX_PIPELINE_BYTES)
    except (OSError, ValueError):
        return False
    return all(re.search(section, head) for section in _SECTIONS)


def read_descriptor(path: str | Path) -> Descriptor:
    """Read a deployment descriptor; no code runs, and no weights are read.

    Args:
        path: ONNX file of mjlab, or YAML file of Isaac Lab.

    Raises:
        StorageError: The file cannot be read or is malformed.
    """
    path = Path(path)
    with report_read_errors(path):
        descriptor = read_mjlab(path) if path.suffix == ".onnx" else read_isaaclab(path)
    terms, actions = descriptor.terms, descriptor.actions
    sizes = [len(terms), len(actions), len(descriptor.robot.joints)]
    sizes += [len(term.joints) for term in terms] + [len(action.joints) for action in actions]
    if max(sizes) > _MAX_NAMES or sum(sizes) > _MAX_ALL_NAMES:
        raise StorageError(f"{path} has more terms or joints than any robot")
    return descriptor
