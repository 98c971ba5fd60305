"""Normalize and pair the keys of a transform, and call transforms with bare tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tensordict import TensorDict, TensorDictBase

from tdx.errors import ArgumentError, KeyNotFoundError, Where, find_similar_names
from tdx.keys import NestedKey, format_key, normalize_key, split_key
from tdx.specs import Composite
from tdx.tensordicts import read

KeyPairs = tuple[tuple[NestedKey, NestedKey], ...]


def normalize_keys(keys: Sequence[NestedKey] | NestedKey | None, argument: str) -> list[NestedKey]:
    """Return keys in their normal form.

    Args:
        keys: Sequence of keys, or a single string. ``None``: no keys.
        argument: Name of the argument, for messages.

    Raises:
        ArgumentError: An element is not a key.
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


def pair_keys(in_keys: list[NestedKey], out_keys: list[NestedKey], names: str) -> KeyPairs:
    """Pair in-keys with out-keys.

    Args:
        in_keys: Keys to read. If empty, there are no pairs.
        out_keys: Keys to write.
        names: Names of both arguments, for messages.

    Raises:
        ArgumentError: The numbers of keys differ.
    """
    if in_keys and len(in_keys) != len(out_keys):
        raise ArgumentError(
            f"{names}: {len(in_keys)} in-keys and {len(out_keys)} out-keys",
            hint="give one out-key for each in-key",
        )
    return tuple(zip(in_keys, out_keys, strict=False))


def flat_pairs(pairs: Iterable[tuple[Any, NestedKey]]) -> list[tuple[Any, str]] | None:
    """Return the pairs if no key is nested, else ``None``. An in-key may be ``None``."""
    flat = []
    for in_key, out_key in pairs:
        if isinstance(in_key, tuple) or isinstance(out_key, tuple):
            return None
        flat.append((in_key, out_key))
    return flat


def missing_key_error(key: NestedKey, known: Sequence[NestedKey], place: str) -> KeyNotFoundError:
    """Return the error for a missing key, which lists the existing keys, most similar first."""
    by_name = {format_key(each): each for each in known}
    name = format_key(key)
    close = find_similar_names(name, by_name)
    ordered = [*close, *(each for each in sorted(by_name) if each not in close)]
    if name in by_name:
        hint = f"a nested key is a tuple: {by_name[name]}"
    else:
        listed = ", ".join(each if "." not in each else str(by_name[each]) for each in ordered)
        hint = f"existing keys: {listed or 'none'}"
    return KeyNotFoundError(f"{place} has no key {name!r}", hint=hint, where=Where(key=key))


def require_keys(spec: Composite, keys: Sequence[NestedKey], place: str) -> None:
    """Check that every key is in a part of an env's input or output spec.

    Args:
        spec: Input spec or output spec.
        keys: Required keys.
        place: What the spec describes, for the message.

    Raises:
        KeyNotFoundError: A key is in no part.
    """
    for key in keys:
        if all(part.get(key, None) is None for part in spec.values()):
            raise missing_key_error(key, output_keys(spec), place)


def output_keys(output_spec: Composite) -> list[NestedKey]:
    """Return the key of every leaf that an env with this output spec writes."""
    return [
        normalize_key(key)
        for part in output_spec.values()
        if isinstance(part, Composite)
        for key in part.keys(True, True)
    ]


def call_with_tensors(
    function: Callable[[TensorDictBase], TensorDictBase],
    in_keys: Sequence[NestedKey],
    out_keys: Sequence[NestedKey],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function of a TensorDict with bare tensors.

    Args:
        function: Function to call.
        in_keys: Keys of the tensors in ``args``, in order. A name in ``kwargs`` is one of these,
            with the parts of a nested key joined by ``_``.
        out_keys: Keys of the values to return.
        args: Tensors ``[*B, ...]`` by position.
        kwargs: Tensors ``[*B, ...]`` by name.

    Returns:
        Value of each out-key; without a tuple if there is a single out-key.

    Raises:
        ArgumentError: There are more tensors than in-keys, or a name is unknown.
        KeyNotFoundError: An in-key has no tensor, or an out-key is not written.
    """
    names = {"_".join(split_key(key)): key for key in in_keys}
    given = dict(zip(names.values(), args, strict=False))
    unknown = [name for name in kwargs if name not in names]
    if len(args) > len(names) or unknown:
        hint = f"its arguments are {', '.join(names)}" if names else "call it with a TensorDict"
        if unknown:
            raise ArgumentError(f"unknown argument {unknown[0]!r}", hint=hint)
        raise ArgumentError(f"it takes {len(names)} tensors, got {len(args)}", hint=hint)
    given |= {names[name]: value for name, value in kwargs.items()}
    absent = [key for key in in_keys if key not in given]
    if absent:
        raise missing_key_error(absent[0], list(given), "the call")
    result = function(TensorDict(given).auto_batch_size_())
    for key in out_keys:
        if read(result, key) is None:
            known = list(result.keys(True, True))
            raise missing_key_error(key, known, "the output of the transform")
    values = tuple(read(result, key) for key in out_keys)
    return values[0] if len(values) == 1 else values
