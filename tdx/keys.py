"""Keys of a TensorDict: a string, or a tuple of strings for a nested entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_FORM = "a key is a string or a tuple of strings"

NestedKey = str | tuple[str, ...]
Keys = Sequence[NestedKey]


def normal_key(key: object) -> NestedKey:
    """The key in its one form: a plain string where it has one part, else a flat tuple.

    Raises:
        TypeError: it is neither a string nor a non-empty tuple of keys.

    Example:
        >>> normal_key(("next", ("agents", "reward")))
        ('next', 'agents', 'reward')
        >>> normal_key(("reward",))
        'reward'
    """
    if isinstance(key, str):
        return key
    parts = key_parts(key)
    return parts[0] if len(parts) == 1 else parts


def key_parts(key: object) -> tuple[str, ...]:
    """The parts of a key, outermost first."""
    if isinstance(key, str):
        return (key,)
    if not isinstance(key, (tuple, list)) or not key:
        raise TypeError(f"{_FORM}, got {key!r}")
    return tuple(part for inner in key for part in key_parts(inner))


def join_keys(*keys: NestedKey) -> NestedKey:
    """One key from the parts of several, outermost first."""
    return normal_key(tuple(part for key in keys for part in key_parts(key)))


def format_key(key: NestedKey) -> str:
    """The key as people write it: the parts with dots between.

    Example:
        >>> format_key(("next", "reward"))
        'next.reward'
    """
    return ".".join(key_parts(key))


def parent_key(key: NestedKey) -> tuple[str, ...]:
    """All parts but the last."""
    return key_parts(key)[:-1]


def sibling_key(key: NestedKey, name: str) -> NestedKey:
    """The key of that name beside ``key``: ``("agents", "done")`` to ``("agents", "_reset")``."""
    return normal_key((*parent_key(key), name))


def unique_keys(keys: Iterable[NestedKey]) -> list[NestedKey]:
    """The keys in order, each once."""
    return list(dict.fromkeys(keys))
