"""Which envs there are: those of Gymnasium and of the packages that add to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdx.envs.gym.providers import BrokenProvider
    from tdx.envs.gym.registry import RegisteredEnv


def list_envs(search: str = "", *, missing: bool = False) -> tuple[RegisteredEnv, ...]:
    """The envs that ``--env`` takes.

    Args:
        search: words that must all occur in the id or the package; case is ignored.
        missing: list also those that need a package that is not installed.
    """
    return find_envs(search, missing=missing).envs


@dataclass(frozen=True, slots=True)
class EnvList:
    """The envs that were found.

    Args:
        envs: The envs, sorted by id.
        broken: Env packages that are installed and cannot be imported; their envs are missing.
    """

    envs: tuple[RegisteredEnv, ...]
    broken: tuple[BrokenProvider, ...]


def find_envs(search: str = "", *, missing: bool = False) -> EnvList:
    """:func:`list_envs`, with the env packages that are broken."""
    from tdx.envs.gym.registry import survey_envs

    words = search.casefold().split()
    survey = survey_envs()
    found = (
        env
        for env in survey.envs
        if (missing or env.installed)
        and all(word in f"{env.id} {env.package}".casefold() for word in words)
    )
    return EnvList(tuple(found), survey.broken)
