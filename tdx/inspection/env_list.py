"""Which envs there are: those of Gymnasium and of the packages that add to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdx.envs.gym.registry import RegisteredEnv


def list_envs(search: str = "", *, missing: bool = False) -> tuple[RegisteredEnv, ...]:
    """The envs that ``--env`` takes.

    Args:
        search: words that must all occur in the id or the package; case is ignored.
        missing: list also those that need a package that is not installed.
    """
    from tdx.envs.gym.registry import available_envs

    words = search.casefold().split()
    return tuple(
        env
        for env in available_envs()
        if (missing or env.installed)
        and all(word in f"{env.id} {env.package}".casefold() for word in words)
    )
