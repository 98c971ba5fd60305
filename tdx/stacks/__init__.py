"""Stacks: an env with its stages, whatever library they come from."""

from tdx.stacks.kinds import StackKind, open_stack
from tdx.stacks.stack import Stack, StageInfo
from tdx.stacks.tracer import StackTracer

__all__ = ["Stack", "StackKind", "StackTracer", "StageInfo", "open_stack"]
