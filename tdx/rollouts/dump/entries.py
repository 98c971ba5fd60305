"""Entries of a rollout: their names, and which of them a dump can store."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor

from tdx.data.layout import Leaves
from tdx.envs import EnvBase
from tdx.errors import ArgumentError, Where
from tdx.keys import NestedKey, format_key, normalize_key, split_key
from tdx.specs import Composite, NonTensor, TensorSpec
from tdx.tensordicts import new_tensordict

Parts = tuple[str, ...]
"""Key of an entry as a tuple of names."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex32, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    )
}
"""Dtypes that a dump can store, by name."""
LEAVE_OUT = "exclude it: --keys names the entries to store"
_SPEC_PARTS = ("observation", "state", "action", "reward", "done")


class NotStoredWarning(UserWarning):
    """A dump excludes entries that are not tensors."""


def flatten_tensors(data: TensorDictBase) -> Leaves:
    """Return every entry by its path.

    Raises:
        ArgumentError: An entry is not a tensor.
    """
    found: Leaves = {}
    _collect(data, (), found)
    return found


def _collect(data: TensorDictBase, path: Parts, found: Leaves) -> None:
    for name in data.keys():
        value, here = data.get(name), (*path, name)
        if isinstance(value, Tensor):
            found[here] = value.detach()
        elif isinstance(value, TensorDictBase) and not is_non_tensor(value):
            _collect(value, here, found)
        else:
            raise ArgumentError(
                "only tensors can be stored", where=Where(key=normalize_key(here)), hint=LEAVE_OUT
            )


def unflatten_tensors(
    leaves: Mapping[Parts, Tensor], batch: Iterable[int], groups: Mapping[Parts, tuple[int, ...]]
) -> TensorDictBase:
    """Return a TensorDict of entries by their path.

    Args:
        leaves: The entries.
        batch: Batch size of the TensorDict.
        groups: Batch dimensions that nested TensorDicts have in addition, by path.
    """
    every_group = {**{path[:-1]: () for path in leaves if len(path) > 1}, **groups}
    return _unflatten(leaves, every_group, (), torch.Size(batch))


def _unflatten(
    leaves: Mapping[Parts, Tensor],
    groups: Mapping[Parts, tuple[int, ...]],
    path: Parts,
    batch: torch.Size,
) -> TensorDictBase:
    depth = len(path)
    entries: dict[str, Any] = {each[-1]: leaf for each, leaf in leaves.items() if each[:-1] == path}
    children = {each[: depth + 1] for each in groups if len(each) > depth and each[:depth] == path}
    for child in sorted(children):
        entries[child[-1]] = _unflatten(leaves, groups, child, batch)
    size = torch.Size((*batch, *groups.get(path, ())))
    return new_tensordict(entries, size, torch.device("cpu"))


def list_keys(tensordict: TensorDictBase) -> list[NestedKey]:
    """Return the keys of all entries."""
    return [normalize_key(key) for key in tensordict.keys(True, True, is_leaf=_is_leaf)]


def _is_leaf(kind: type) -> bool:
    return not issubclass(kind, TensorDictBase)


def key_names(key: NestedKey) -> tuple[str, ...]:
    """Return the names that select an entry: ``next.reward`` is also ``reward``."""
    parts = split_key(key)
    whole = format_key(key)
    return (whole, format_key(parts[1:])) if parts[0] == "next" and parts[1:] else (whole,)


def select_entries(chunk: TensorDictBase, names: Iterable[str]) -> TensorDictBase:
    """Return the entries of these names, each at the root and below ``next``."""
    wanted = set(names)
    return chunk.select(*[key for key in list_keys(chunk) if wanted & set(key_names(key))])


def space_kind(leaf: TensorSpec) -> str:
    """Return the kind of space that a spec represents.

    Example:
        >>> space_kind(NonTensor())
        'NonTensor'
    """
    return str(getattr(leaf, "space_kind", None) or type(leaf).__name__)


def find_unstorable(env: EnvBase) -> dict[NestedKey, str]:
    """Return the entries of an env that are not tensors, with the kind of their space.

    Args:
        env: The env, with its chain.

    Returns:
        Kinds such as ``Text`` by key; ``NonTensor`` if no Gymnasium space is known.
    """
    found: dict[NestedKey, str] = {}
    for part in _SPEC_PARTS:
        spec = getattr(env, f"full_{part}_spec")
        for key, leaf in spec.items(True, True):
            if isinstance(leaf, NonTensor):
                found[normalize_key(key)] = space_kind(leaf)
    return found


def check_storable(env: EnvBase, names: Iterable[str] | None) -> None:
    """Warn about the entries that a dump excludes.

    Args:
        env: The env, with its chain.
        names: Entries to store, as ``--keys`` names them. ``None``: all that can be stored.

    Raises:
        ArgumentError: One of ``names`` cannot be stored.
    """
    entries = find_unstorable(env)
    if names is None:
        if entries:
            listed = ", ".join(f"{format_key(key)!r} ({kind})" for key, kind in entries.items())
            message = f"not stored, because values of their space are not tensors: {listed}"
            warnings.warn(message, NotStoredWarning, stacklevel=2)
        return
    wanted = {name.removeprefix("next.") for name in names}
    for key, kind in entries.items():
        if format_key(key) in wanted:
            raise ArgumentError(
                f"it cannot be stored: values of a {kind} space are not tensors",
                hint="leave it out of --keys",
                where=Where(key=key),
            )


def select_storable(data: TensorDictBase) -> TensorDictBase:
    """Return the entries of ``data`` that are tensors; ``data`` itself if all are."""
    excluded = list(_unstorable_paths(data, ()))
    return data.exclude(*excluded) if excluded else data


def _unstorable_paths(data: TensorDictBase, path: Parts) -> Iterator[Parts]:
    for name in data.keys():
        value, here = data.get(name), (*path, name)
        if isinstance(value, Tensor):
            continue
        if not isinstance(value, TensorDictBase) or is_non_tensor(value):
            yield here
            continue
        excluded = list(_unstorable_paths(value, here))
        # A group that would be empty is excluded as a whole.
        yield from [here] if excluded and not _has_tensors(value) else excluded


def _has_tensors(data: TensorDictBase) -> bool:
    return any(
        isinstance(value, Tensor)
        or (isinstance(value, TensorDictBase) and not is_non_tensor(value) and _has_tensors(value))
        for value in map(data.get, data.keys())
    )


def select_storable_spec(spec: Composite) -> Composite:
    """Return a copy of a spec without the leaves that are not tensors."""
    copied: Any = spec.clone()
    for key, leaf in list(spec.items(True, True)):
        if isinstance(leaf, NonTensor):
            del copied[key]
    result: Composite = copied
    return result


def list_skipped(specs: Iterable[dict[str, Any]]) -> dict[NestedKey, str]:
    """Return the entries that a dump excludes, with the kind of their space.

    Args:
        specs: Spec entries of its manifest.
    """
    return {
        normalize_key(tuple(map(str, entry["key"]))): str(entry["kind"])
        for entry in specs
        if entry.get("dtype") == "object"
    }
