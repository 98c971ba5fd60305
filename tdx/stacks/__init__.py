"""Stacks: an env with its stages, whatever library they come from."""

from tdx.stacks.stack import Stack, StackKind, StageInfo, open_stack
from tdx.stacks.tracer import StackTracer

__all__ = ["Stack", "StackKind", "StackTracer", "StageInfo", "open_stack"]
