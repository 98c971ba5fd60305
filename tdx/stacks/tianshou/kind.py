"""Tianshou vector env with its wrappers: what the adapter opens."""

from __future__ import annotations

from tdx.stacks.kinds import BuiltinKind
from tdx.stacks.stack import Stack


def _open(target: object) -> Stack:
    from tdx.stacks.tianshou.stack import TianshouStack

    return TianshouStack(target)


KIND = BuiltinKind(
    "a Tianshou vector env with its wrappers",
    ("tianshou.env.venvs:BaseVectorEnv",),
    _open,
)
