"""Stacks: an env with its stages, whatever library they come from.

Names resolve on first use: inspecting a tdx env loads none of the modules for other libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdx.stacks.kinds import StackKind, open_stack
    from tdx.stacks.stack import Stack, StageInfo
    from tdx.stacks.tracer import StackTracer

_MODULES = {
    "Stack": "stack",
    "StackKind": "kinds",
    "StackTracer": "tracer",
    "StageInfo": "stack",
    "open_stack": "kinds",
}

__all__ = ["Stack", "StackKind", "StackTracer", "StageInfo", "open_stack"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
