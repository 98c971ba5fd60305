"""Connectors of RLlib: what the adapter opens. The env that feeds them is one of Gymnasium."""

from __future__ import annotations

from tdx.stacks.kinds import BuiltinKind
from tdx.stacks.stack import Stack


def _open(target: object) -> Stack:
    from tdx.stacks.rllib.stack import ConnectorStack

    return ConnectorStack(target)


KIND = BuiltinKind(
    "an env runner, an algorithm or a connector pipeline of RLlib",
    (
        "ray.rllib.env.env_runner:EnvRunner",
        "ray.rllib.algorithms.algorithm:Algorithm",
        "ray.rllib.connectors.connector_pipeline_v2:ConnectorPipelineV2",
    ),
    _open,
)
