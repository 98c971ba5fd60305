"""Deployment descriptors: what a robot has to feed to a policy, as data.

mjlab writes one into the metadata of an ONNX file, and Isaac Lab exports one as YAML. Neither
weights nor code are read.
"""

from __future__ import annotations

from tdx.stacks.descriptors.files import is_descriptor, read_descriptor
from tdx.stacks.descriptors.model import Action, Descriptor, Robot, Term

__all__ = ["Action", "Descriptor", "Robot", "Term", "is_descriptor", "read_descriptor"]
