"""gymnasium.Env or VectorEnv with its wrappers: what the adapter opens."""

from __future__ import annotations

from tdx.stacks.kinds import BuiltinKind
from tdx.stacks.refusals import imported_classes, unsupported_error
from tdx.stacks.stack import Stack


def _open(target: object) -> Stack:
    # A gymnasium.Env by its class, whose steps take and return dicts by agent.
    if isinstance(target, tuple(imported_classes(["ray.rllib.env.multi_agent_env:MultiAgentEnv"]))):
        raise unsupported_error(target)
    from tdx.stacks.gymnasium.stack import GymnasiumStack

    return GymnasiumStack(target)


KIND = BuiltinKind(
    "a gymnasium.Env or VectorEnv with its wrappers",
    ("gymnasium:Env", "gymnasium.vector:VectorEnv"),
    _open,
)
