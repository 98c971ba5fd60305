"""In-keys and out-keys of a transform, checked and paired."""

from __future__ import annotations

from collections.abc import Sequence

from tdx.errors import ArgumentError, KeyNotFoundError, Where, nearest
from tdx.keys import NestedKey, format_key, normal_key
from tdx.specs import Composite

KeyPairs = tuple[tuple[NestedKey, NestedKey], ...]


def key_list(keys: Sequence[NestedKey] | NestedKey | None, argument: str) -> list[NestedKey]:
    """The keys in their normal form.

    Args:
        keys: a sequence of keys, or one string.
        argument: the argument's name, for messages.

    Raises:
        ArgumentError: an entry is no key.
    """
    if keys is None:
        return []
    if isinstance(keys, str):
        return [keys]
    try:
        return [normal_key(key) for key in keys]
    except TypeError as error:
        raise ArgumentError(
            f"{argument}: {error}", hint=f'for example {argument}=["observation"]'
        ) from None


def paired(in_keys: list[NestedKey], out_keys: list[NestedKey], names: str) -> KeyPairs:
    """The in-keys with their out-keys; none where there are no in-keys.

    Raises:
        ArgumentError: both are given and their numbers differ.
    """
    if in_keys and len(in_keys) != len(out_keys):
        raise ArgumentError(
            f"{names}: {len(in_keys)} in-keys and {len(out_keys)} out-keys",
            hint="give one out-key for each in-key",
        )
    return tuple(zip(in_keys, out_keys, strict=False))


def missing_key(key: NestedKey, known: Sequence[NestedKey], place: str) -> KeyNotFoundError:
    """The error for a key that is not there, with those that are, nearest first."""
    names = [format_key(each) for each in known]
    close = nearest(format_key(key), names)
    rest = [name for name in sorted(names) if name not in close]
    listed = ", ".join([*close, *rest]) or "none"
    return KeyNotFoundError(
        f"{place} has no key {format_key(key)!r}",
        hint=f"keys there: {listed}",
        where=Where(key=key),
    )


def find_leaf(output_spec: Composite, key: NestedKey) -> str | None:
    """The part of an output spec that holds a key: observation, reward or done."""
    for part in ("full_observation_spec", "full_reward_spec", "full_done_spec"):
        inner = output_spec.get(part, None)
        if inner is not None and inner.get(key, None) is not None:
            return part
    return None


def output_keys(output_spec: Composite) -> list[NestedKey]:
    """Every leaf key that an env with this output spec writes."""
    return [
        normal_key(key)
        for part in output_spec.values()
        if isinstance(part, Composite)
        for key in part.keys(True, True)
    ]
