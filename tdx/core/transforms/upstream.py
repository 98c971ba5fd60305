"""What lies before a stage: the env inside and the stages between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdx.core.transforms.compose import Compose
from tdx.core.transforms.transform import Transform

if TYPE_CHECKING:
    from tdx.core.envs import EnvBase


def upstream(stage: Transform) -> tuple[EnvBase, tuple[Transform, ...]] | None:
    """The env inside, and those stages themselves that come between it and this one.

    Unlike :attr:`Transform.parent` this makes no copies: what is stepped is the real thing.

    Args:
        stage: the stage that asks.

    Returns:
        ``None`` where the stage is in no env.
    """
    found: list[Transform] = []
    owner = None if stage._container_ref is None else stage._container_ref()
    while isinstance(owner, Compose):
        earlier = list(owner)
        found = [*earlier[: earlier.index(stage)], *found]
        stage = owner
        owner = None if stage._container_ref is None else stage._container_ref()
    env: EnvBase | None = getattr(owner, "base_env", None)
    return None if env is None else (env, tuple(found))
