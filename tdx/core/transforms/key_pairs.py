"""In-keys and out-keys of a transform, checked and paired."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensordict import TensorDictBase

from tdx.core.envs.failures import note_key
from tdx.errors import ArgumentError, KeyNotFoundError, Where, find_similar_names
from tdx.keys import NestedKey, format_key, normalize_key
from tdx.specs import Composite
from tdx.tensordicts import read, write

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
        return [normalize_key(key) for key in keys]
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


def flat_pairs(pairs: Iterable[tuple[Any, NestedKey]]) -> list[tuple[Any, str]] | None:
    """The pairs as they are where no key is nested, else ``None``; an in-key may be ``None``."""
    flat = []
    for in_key, out_key in pairs:
        if isinstance(in_key, tuple) or isinstance(out_key, tuple):
            return None
        flat.append((in_key, out_key))
    return flat


def missing_key(key: NestedKey, known: Sequence[NestedKey], place: str) -> KeyNotFoundError:
    """The error for a key that is not there, with those that are, nearest first."""
    by_name = {format_key(each): each for each in known}
    name = format_key(key)
    close = find_similar_names(name, by_name)
    ordered = [*close, *(each for each in sorted(by_name) if each not in close)]
    if name in by_name:
        hint = f"a nested key is a tuple: {by_name[name]}"
    else:
        listed = ", ".join(each if "." not in each else str(by_name[each]) for each in ordered)
        hint = f"keys there: {listed or 'none'}"
    return KeyNotFoundError(f"{place} has no key {name!r}", hint=hint, where=Where(key=key))


def require_keys(spec: Composite, keys: Sequence[NestedKey], place: str) -> None:
    """Check that keys are in some part of an env's input or output spec.

    Args:
        spec: the input or the output spec.
        keys: what is to be there.
        place: what the spec is of, for the message.

    Raises:
        KeyNotFoundError: one is in no part.
    """
    for key in keys:
        if all(part.get(key, None) is None for part in spec.values()):
            raise missing_key(key, output_keys(spec), place)


def map_present(
    tensordict: TensorDictBase,
    pairs: Iterable[tuple[NestedKey, NestedKey]],
    function: Callable[[Any], Any],
) -> TensorDictBase:
    """Map those entries that are there, in place.

    Args:
        tensordict: ``[*B]``.
        pairs: the key read and the key written, for each entry.
        function: the map.
    """
    for source, target in pairs:
        value = read(tensordict, source)
        if value is not None:
            try:
                mapped = function(value)
            except Exception as error:
                note_key(error, source)
                raise
            write(tensordict, target, mapped)
    return tensordict


def output_keys(output_spec: Composite) -> list[NestedKey]:
    """Every leaf key that an env with this output spec writes."""
    return [
        normalize_key(key)
        for part in output_spec.values()
        if isinstance(part, Composite)
        for key in part.keys(True, True)
    ]
