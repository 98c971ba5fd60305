"""gymnasium.Env or VectorEnv with its wrappers: what the adapter opens."""

from __future__ import annotations

from typing import Any

from tdx.stacks.kinds import BuiltinKind
from tdx.stacks.stack import Stack


def _open(target: Any) -> Stack:
    from tdx.stacks.gymnasium.stack import GymnasiumStack

    return GymnasiumStack(target)


KIND = BuiltinKind(
    "a gymnasium.Env or VectorEnv with its wrappers",
    ("gymnasium:Env", "gymnasium.vector:VectorEnv"),
    _open,
)
