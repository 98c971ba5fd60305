"""The env ids that a misspelt one may have meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tdx.errors import nearest

_SHORTEST = 4


class _Parts(NamedTuple):
    id: str
    namespace: str
    name: str
    version: int


def nearest_ids(env_id: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Ids with the same name in another version or namespace, then those with a similar name.

    Args:
        env_id: what was asked for.
        known: the ids there are.
        most: how many are returned.

    Example:
        >>> nearest_ids("cartpole-v9", ["CartPole-v0", "CartPole-v1", "phys2d/CartPole-v1"])
        ['CartPole-v1', 'CartPole-v0', 'phys2d/CartPole-v1']
        >>> nearest_ids("PongDeterministic-v4", ["ALE/Pong-v5", "Pendulum-v1"])
        ['ALE/Pong-v5']
    """
    wanted = _parts(env_id)
    by_name: dict[str, list[_Parts]] = {}
    for parts in map(_parts, known):
        by_name.setdefault(parts.name, []).append(parts)
    longer = [name for name in by_name if len(name) >= _SHORTEST and wanted.name.startswith(name)]
    names = [*nearest(wanted.name, by_name), *sorted(longer, key=len, reverse=True)]
    found: list[str] = []
    for name in dict.fromkeys(names):
        ids = sorted(by_name[name], key=lambda each: _distance(each, wanted))
        found += [each.id for each in (ids if name == wanted.name else _newest(ids))]
    return found[:most]


def _parts(env_id: str) -> _Parts:
    namespace, _, rest = env_id.rpartition("/")
    name, version = re.fullmatch(r"(.*?)(?:-v(\d+))?", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    return _Parts(env_id, namespace, name.casefold(), int(version or 0))


def _distance(parts: _Parts, wanted: _Parts) -> tuple[bool, str, int]:
    return parts.namespace != wanted.namespace, parts.namespace, -parts.version


def _newest(ids: list[_Parts]) -> list[_Parts]:
    """The first of each namespace."""
    return list({parts.namespace: parts for parts in reversed(ids)}.values())[::-1]
