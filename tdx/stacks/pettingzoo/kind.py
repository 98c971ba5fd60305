"""PettingZoo parallel env with its wrappers: what the adapter opens."""

from __future__ import annotations

from tdx.stacks.kinds import BuiltinKind
from tdx.stacks.stack import Stack


def _open(target: object) -> Stack:
    from tdx.stacks.pettingzoo.stack import PettingZooStack

    return PettingZooStack(target)


KIND = BuiltinKind(
    "a PettingZoo parallel env with its wrappers",
    ("pettingzoo.utils.env:ParallelEnv",),
    _open,
)
