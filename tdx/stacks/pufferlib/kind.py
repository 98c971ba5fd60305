"""PufferLib vector env: what the adapter opens. Emulated single envs are Gymnasium envs."""

from __future__ import annotations

from tdx.stacks.kinds import BuiltinKind
from tdx.stacks.stack import Stack


def _open(target: object) -> Stack:
    from tdx.stacks.pufferlib.stack import PufferStack

    return PufferStack(target)


KIND = BuiltinKind(
    "a PufferLib vector env",
    ("pufferlib.vector:Serial", "pufferlib.vector:Multiprocessing"),
    _open,
)
