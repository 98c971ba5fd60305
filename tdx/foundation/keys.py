"""Keys of TensorDicts: a string, or a tuple of strings for a nested entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

NestedKey = str | tuple[str, ...]
Keys = Sequence[NestedKey]


def normalize_key(key: object) -> NestedKey:
    """Return a key in normal form: a string if it has one part, else a flat tuple.

    Raises:
        TypeError: ``key`` is neither a string nor a non-empty tuple of keys.

    Example:
        >>> normalize_key(("next", ("agents", "reward")))
        ('next', 'agents', 'reward')
        >>> normalize_key(("reward",))
        'reward'
    """
    if isinstance(key, str):
        return key
    parts = split_key(key)
    return parts[0] if len(parts) == 1 else parts


def split_key(key: object) -> tuple[str, ...]:
    """Return the parts of a key, outermost first; TypeError as in :func:`normalize_key`."""
    if isinstance(key, str):
        return (key,)
    if not isinstance(key, (tuple, list)) or not key:
        raise TypeError(f"a key must be a string or a tuple of strings, got {key!r}")
    return tuple(part for inner in key for part in split_key(inner))


def join_keys(*keys: NestedKey) -> NestedKey:
    """Concatenate the parts of several keys."""
    return normalize_key(tuple(part for key in keys for part in split_key(key)))


def format_key(key: NestedKey) -> str:
    """Format a key for display: its parts, separated by dots.

    Example:
        >>> format_key(("next", "reward"))
        'next.reward'
    """
    return ".".join(split_key(key))


def parent_key(key: NestedKey) -> tuple[str, ...]:
    """Return all parts but the last."""
    return split_key(key)[:-1]


@lru_cache(maxsize=1024)  # A counter asks for the flags of its group in each step.
def sibling_key(key: NestedKey, name: str) -> NestedKey:
    """Replace the last part of a key, as in ``("agents", "done")`` to ``("agents", "_reset")``."""
    return normalize_key((*parent_key(key), name))


def unique_keys(keys: Iterable[NestedKey]) -> list[NestedKey]:
    """Remove duplicate keys, preserving order."""
    return list(dict.fromkeys(keys))
