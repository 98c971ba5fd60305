"""Entries that a dump cannot store: Python objects of Text, Sequence, Graph and OneOf spaces."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from tdx.envs import EnvBase
from tdx.errors import ArgumentError, Where
from tdx.keys import NestedKey, format_key, normalize_key
from tdx.specs import Composite, NonTensor, TensorSpec

_PARTS = ("observation", "state", "action", "reward", "done")


class NotStoredWarning(UserWarning):
    """A dump leaves out entries that are no tensors."""


def unstorable_entries(env: EnvBase) -> dict[NestedKey, str]:
    """The entries of an env that are no tensors, with the kind of their space.

    Args:
        env: The env, with its chain.

    Returns:
        Kinds such as ``Text`` by key; ``NonTensor`` where no Gymnasium space is known.
    """
    found: dict[NestedKey, str] = {}
    for part in _PARTS:
        spec = getattr(env, f"full_{part}_spec")
        for key, leaf in spec.items(True, True):
            if isinstance(leaf, NonTensor):
                found[normalize_key(key)] = kind_of(leaf)
    return found


def kind_of(leaf: TensorSpec) -> str:
    """The kind of space that a spec stands for.

    Example:
        >>> kind_of(NonTensor())
        'NonTensor'
    """
    return str(getattr(leaf, "space_kind", None) or type(leaf).__name__)


def check_storable(env: EnvBase, names: Iterable[str] | None) -> None:
    """Warn of the entries that a dump leaves out.

    Args:
        env: The env, with its chain.
        names: The entries that the user wants stored, as ``--keys`` names them. ``None``: all
            that can be stored.

    Raises:
        ArgumentError: The user names one that cannot be stored.
    """
    entries = unstorable_entries(env)
    if names is None:
        if entries:
            listed = ", ".join(f"{format_key(key)!r} ({kind})" for key, kind in entries.items())
            message = f"not stored, because values of their space are no tensors: {listed}"
            warnings.warn(message, NotStoredWarning, stacklevel=2)
        return
    wanted = {name.removeprefix("next.") for name in names}
    for key, kind in entries.items():
        if format_key(key) in wanted:
            raise ArgumentError(
                f"it cannot be stored: values of a {kind} space are no tensors",
                hint="leave it out of --keys",
                where=Where(key=key),
            )


def storable(data: TensorDictBase) -> TensorDictBase:
    """The entries of a TensorDict ``[*B, T]`` that are tensors; itself where all are."""
    odd = list(_odd_paths(data, ()))
    return data.exclude(*odd) if odd else data


def _odd_paths(data: TensorDictBase, path: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    for name in data.keys():
        value, here = data.get(name), (*path, name)
        if isinstance(value, Tensor):
            continue
        if not isinstance(value, TensorDictBase) or getattr(value, "_is_non_tensor", False):
            yield here
            continue
        odd = list(_odd_paths(value, here))
        # A group of which nothing is left goes too.
        yield from [here] if odd and not _has_tensors(value) else odd


def _has_tensors(data: TensorDictBase) -> bool:
    return any(
        isinstance(value, Tensor)
        or (
            isinstance(value, TensorDictBase)
            and not getattr(value, "_is_non_tensor", False)
            and _has_tensors(value)
        )
        for value in map(data.get, data.keys())
    )


def storable_spec(spec: Composite) -> Composite:
    """The leaves of a spec that are tensors."""
    kept: Any = spec.clone()
    for key, leaf in list(spec.items(True, True)):
        if isinstance(leaf, NonTensor):
            del kept[key]
    result: Composite = kept
    return result


def not_stored(specs: Iterable[dict[str, Any]]) -> dict[NestedKey, str]:
    """The entries that a dump has left out, with the kind of their space.

    Args:
        specs: The spec entries of its manifest.
    """
    return {
        normalize_key(tuple(map(str, entry["key"]))): str(entry["kind"])
        for entry in specs
        if entry.get("dtype") == "object"
    }
