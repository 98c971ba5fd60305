"""Stacks: an env with its stages, whatever library they come from.

The tracer is imported on first use, so that inspecting a tdx env does not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdx.stacks.kinds import StackKind, open_stack
from tdx.stacks.stack import Stack, StackState, StageInfo

if TYPE_CHECKING:
    from tdx.stacks.tracer import StackTracer

__all__ = ["Stack", "StackKind", "StackState", "StackTracer", "StageInfo", "open_stack"]


def __getattr__(name: str) -> object:
    if name != "StackTracer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tdx.stacks.tracer import StackTracer

    return StackTracer
