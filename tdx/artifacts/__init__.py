"""A chain as an artifact: the same preprocessing in another runtime, with a proof."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FORMS: Mapping[str, str] = MappingProxyType(
    {
        "pt2": "programs of torch.export",
        "onnx": "ONNX graphs",
        "numpy": "a Python file without torch",
        "cpp": "a C++ header",
    }
)
"""What each form of an artifact is; :mod:`tdx.artifacts.backends` writes them."""
