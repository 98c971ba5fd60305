"""TorchRL EnvBase with its transforms: what the adapter opens."""

from __future__ import annotations

from tdx.stacks.kinds import BuiltinKind
from tdx.stacks.stack import Stack


def _open(target: object) -> Stack:
    from tdx.stacks.torchrl.stack import TorchRLStack

    return TorchRLStack(target)


KIND = BuiltinKind(
    "a TorchRL EnvBase with its transforms",
    ("torchrl.envs.common:EnvBase",),
    _open,
)
