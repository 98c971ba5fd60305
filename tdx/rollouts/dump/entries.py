"""Entries of a rollout: their names, and which of them a dump can store."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor

from tdx.data.layout import Leaves
from tdx.envs import EnvBase
from tdx.errors import ArgumentError, Where
from tdx.keys import NestedKey, format_key, key_parts, normal_key
from tdx.specs import Composite, NonTensor, TensorSpec
from tdx.tensordicts import new_tensordict

Parts = tuple[str, ...]


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
"""What an entry may consist of."""


_LEAVE_OUT = "leave it out: --keys names what is stored"


def tensors_of(data: TensorDictBase) -> Leaves:
    """Every entry by its path.

    Raises:
        ArgumentError: one is no tensor.
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
            where = Where(key=normal_key(here))
            raise ArgumentError(
                "an entry that is no tensor cannot be stored", where=where, hint=_LEAVE_OUT
            )


def from_tensors(leaves: Mapping[Parts, Tensor], batch: Any, groups: Any) -> TensorDictBase:
    """A TensorDict ``[*batch]`` of entries by their path."""
    known = {**{path[:-1]: () for path in leaves if len(path) > 1}, **groups}
    return _level(leaves, known, (), torch.Size(batch))


def _level(
    leaves: Mapping[Parts, Tensor],
    groups: Mapping[Parts, tuple[int, ...]],
    path: Parts,
    batch: torch.Size,
) -> TensorDictBase:
    entries: dict[str, Any] = {each[-1]: leaf for each, leaf in leaves.items() if each[:-1] == path}
    below = {each[: len(path) + 1] for each in groups if len(each) > len(path) == _same(each, path)}
    for each in sorted(below):
        entries[each[-1]] = _level(leaves, groups, each, batch)
    size = torch.Size((*batch, *groups.get(path, ())))
    return new_tensordict(entries, size, torch.device("cpu"))


def _same(path: Parts, start: Parts) -> int:
    return len(start) if path[: len(start)] == start else -1


def selected(chunk: TensorDictBase, names: Iterable[str]) -> TensorDictBase:
    """The entries of these names, each at the root and below ``next``."""
    known = set(names)
    return chunk.select(*[key for key in all_keys(chunk) if known & set(names_of(key))])


def all_keys(tensordict: TensorDictBase) -> list[NestedKey]:
    """The keys of all entries."""
    return [normal_key(key) for key in tensordict.keys(True, True, is_leaf=_is_leaf)]


def names_of(key: NestedKey) -> tuple[str, ...]:
    """What an entry is called: ``next.reward`` is also ``reward``."""
    parts = key_parts(key)
    whole = format_key(key)
    return (whole, format_key(parts[1:])) if parts[0] == "next" and parts[1:] else (whole,)


def _is_leaf(kind: type) -> bool:
    return not issubclass(kind, TensorDictBase)


_SPEC_PARTS = ("observation", "state", "action", "reward", "done")


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
    for part in _SPEC_PARTS:
        spec = getattr(env, f"full_{part}_spec")
        for key, leaf in spec.items(True, True):
            if isinstance(leaf, NonTensor):
                found[normal_key(key)] = kind_of(leaf)
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
    odd = list(_unstorable_paths(data, ()))
    return data.exclude(*odd) if odd else data


def _unstorable_paths(data: TensorDictBase, path: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    for name in data.keys():
        value, here = data.get(name), (*path, name)
        if isinstance(value, Tensor):
            continue
        if not isinstance(value, TensorDictBase) or getattr(value, "_is_non_tensor", False):
            yield here
            continue
        odd = list(_unstorable_paths(value, here))
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
        normal_key(tuple(map(str, entry["key"]))): str(entry["kind"])
        for entry in specs
        if entry.get("dtype") == "object"
    }
