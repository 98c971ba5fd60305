"""Which Gymnasium envs draw from random generators of their own."""

from __future__ import annotations

from typing import Any

from tdx.core.capabilities import declares

_PACKAGES = frozenset({"ale_py", "gymnasium", "minigrid"})
"""Libraries whose envs and wrappers never draw from torch's global generator."""


def has_own_generator(env: Any) -> bool:
    """Return True if a Gymnasium env and all wrappers around it draw from their own generators.

    A wrapper of tdx declares it (``uses_own_generator``). The classes of other libraries cannot,
    so the libraries are listed here.

    Args:
        env: A Gymnasium env or vector env.
    """
    kind: type = type(env)
    if kind.__module__.partition(".")[0] not in _PACKAGES and not declares(
        kind, "uses_own_generator"
    ):
        return False
    parts = getattr(env, "envs", None)
    if parts is not None:
        return all(has_own_generator(each) for each in parts)
    inner = env.__dict__.get("env")
    return inner is None or has_own_generator(inner)
