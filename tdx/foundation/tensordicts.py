"""Private parts of tensordict, and what each of them buys; no other module uses them.

``TensorDict.get`` and ``set`` normalize the key and check the value in every call, which takes
about a microsecond, ``_get_str`` and ``_set_str`` a tenth of that. In a step the key and the value
are known to be valid. ``tests/foundation/test_private_parts.py`` fails with the name of the part if
a release of tensordict changes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdx.foundation.keys import NestedKey, normalize_key

TensorDictFactory = Callable[[dict[str, object]], TensorDict]


def new_tensordict(
    fields: dict[str, Any],
    batch_size: torch.Size,
    device: torch.device | None,
    names: list[str | None] | None = None,
) -> TensorDict:
    """Create a TensorDict of ``fields``, which must have the batch size and the device already."""
    created = cast(
        TensorDict,
        TensorDict._new_unsafe(fields, batch_size=batch_size, names=names, nested=False),
    )
    # Set afterwards, because the constructor parses the device, which takes longer than the rest.
    created._device = device
    return created


def read(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """Return the entry at a key in normal form, or ``None``."""
    if type(key) is str:
        return tensordict._get_str(key, None)
    return tensordict._get_tuple(key, None)


def write(tensordict: TensorDictBase, key: NestedKey, value: Any) -> None:
    """Set the entry at a key in normal form to a value of the right batch size and device."""
    if type(key) is str:
        tensordict._set_str(key, value, validated=True, inplace=False, non_blocking=False)
    else:
        tensordict._set_tuple(key, value, validated=True, inplace=False, non_blocking=False)


def delete(tensordict: TensorDictBase, key: NestedKey) -> None:
    """Delete an entry, if it exists, and groups that become empty, except ``next``."""
    if read(tensordict, key) is None:
        return
    del tensordict[key]
    while isinstance(key, tuple) and len(key) > 1:
        key = normalize_key(key[:-1])
        if key == "next" or not tensordict.get(key).is_empty():
            return
        del tensordict[key]


@contextmanager
def logged_reads(tensordict: TensorDictBase) -> Iterator[set[NestedKey]]:
    """Collect the keys that are read from a TensorDict by name, which is unchanged afterwards.

    Copies, updates and iterations over all entries are no such reads.
    """
    found: set[NestedKey] = set()
    names = ("_get_str", "_get_tuple")

    def logged(function: Callable[..., object]) -> Callable[..., object]:
        def read_entry(key: object, *args: object, **kwargs: object) -> object:
            found.add(normalize_key(key))
            return function(key, *args, **kwargs)

        return read_entry

    for name in names:
        # An attribute of the instance hides the method, and leaves the class of the entry alone.
        setattr(tensordict, name, logged(getattr(tensordict, name)))
    try:
        yield found
    finally:
        for name in names:
            delattr(tensordict, name)


def plain_entries(tensordict: TensorDictBase) -> dict[str, object] | None:
    """Return the mutable root entries of a plain, unlocked TensorDict; else ``None``."""
    if type(tensordict) is TensorDict and not tensordict._is_locked:
        return cast("dict[str, Any]", tensordict._tensordict)
    return None


def root_entries(tensordict: TensorDictBase) -> dict[str, object] | None:
    """Return the root entries of a plain TensorDict to read; else ``None``."""
    if type(tensordict) is TensorDict:
        return cast("dict[str, Any]", tensordict._tensordict)
    return None


def flat_entries(tensordict: TensorDictBase | None) -> dict[str, object] | None:
    """Return :func:`plain_entries` of a TensorDict without nested entries; else ``None``."""
    if tensordict is None:
        return None
    entries = plain_entries(tensordict)
    if entries is None:
        return None
    for value in entries.values():
        if type(value) is not Tensor:
            return None
    return entries


def tensor_keys(tensordict: TensorDictBase) -> list[NestedKey] | None:
    """Return the keys of all leaves of a plain TensorDict of tensors; else ``None``."""
    if type(tensordict) is not TensorDict:
        return None
    found: list[NestedKey] = []
    for name, value in tensordict._tensordict.items():
        if type(value) is Tensor:
            found.append(name)
            continue
        inner = tensor_keys(value)
        if inner is None:
            return None
        found.extend((name, key) if type(key) is str else (name, *key) for key in inner)
    return found


Structure: TypeAlias = TensorDictBase | tuple[dict[str, object], torch.Size, torch.device | None]
"""Entries, batch size and device of a TensorDict; nested ones are structures too."""


def note_structure(tensordict: TensorDictBase) -> Structure:
    """Return what :func:`restore_structure` needs, faster than a copy of the TensorDict."""
    entries = plain_entries(tensordict)
    if entries is None or tensordict._has_names():
        return tensordict.clone(recurse=False)
    fields = entries.copy()
    for name, value in entries.items():
        if type(value) is not Tensor:
            if type(value) is not TensorDict:
                return tensordict.clone(recurse=False)
            fields[name] = note_structure(value)
    return fields, tensordict._batch_size, tensordict._device


def restore_structure(noted: Structure) -> TensorDictBase:
    """Return a TensorDict with the entries that a TensorDict had when it was noted."""
    if isinstance(noted, TensorDictBase):
        return noted
    fields, batch_size, device = noted
    restored = {
        name: value if type(value) is Tensor else restore_structure(value)
        for name, value in fields.items()
    }
    return new_tensordict(restored, batch_size, device)


def update_entries(target: TensorDictBase, source: TensorDictBase) -> None:
    """Set every entry of ``source`` in ``target``, which has the same batch size and device."""
    new, entries = flat_entries(source), plain_entries(target)
    if new is None or entries is None:
        target.update(source)
    else:
        entries.update(new)


def mark_step_result(following: TensorDictBase, root: TensorDictBase) -> None:
    """Mark ``following`` as the result of a step of ``root``. Copies are not marked."""
    following.__dict__["_stepped_from"] = id(root)


def is_step_result(following: TensorDictBase | None, root: TensorDictBase) -> bool:
    """Return True if ``following`` is the result of an earlier step of ``root``."""
    return following is not None and following.__dict__.get("_stepped_from") == id(root)


def maps_keys_only(module: nn.Module) -> bool:
    """Return True if a call does nothing but call ``module.module`` with the values of its in-keys.

    The call of a ``TensorDictModule`` takes 15 us, most of a small policy.
    """
    if type(module) is not TensorDictModule:
        return False
    policy: Any = module
    return (
        not policy._kwargs
        and policy.method in (None, "forward", "__call__")
        and not policy.method_kwargs
        and policy.inplace is True
        and list(policy.out_keys) == list(policy._out_keys)
    )


def group_dims(
    tensordict: TensorDictBase, lead: int, path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], torch.Size]:
    """Return the dims after the first ``lead``, of a TensorDict and its groups, by path."""
    dims = {path: tensordict.batch_size[lead:]}
    for name, value in tensordict.items():
        if isinstance(value, TensorDictBase) and not is_non_tensor(value):
            dims |= group_dims(value, lead, (*path, name))
    return dims


def unstack_parts(tensordict: TensorDictBase) -> list[TensorDictBase]:
    """Return the TensorDicts in a (nested) lazy stack; else the TensorDict itself."""
    if not isinstance(tensordict, LazyStackedTensorDict):
        return [tensordict]
    return [part for inner in tensordict.tensordicts for part in unstack_parts(inner)]


def make_tensordict_factory(
    batch_size: torch.Size, device: torch.device | None
) -> TensorDictFactory:
    """Return :func:`new_tensordict` for one batch size and device, at a third of its cost.

    The factory copies the attributes of an empty TensorDict. If a release of tensordict stores
    more than a plain ``__dict__``, the factory calls :func:`new_tensordict`.
    """
    empty = new_tensordict({}, batch_size, device)
    state = getattr(empty, "__dict__", None)
    if type(empty) is not TensorDict or state is None or state.get("_tensordict") != {}:
        return lambda fields: new_tensordict(fields, batch_size, device)
    cls: Any = TensorDict
    new = cls.__new__

    def create(fields: dict[str, Any]) -> TensorDict:
        created = new(cls)
        attributes = created.__dict__
        attributes.update(state)
        attributes["_tensordict"] = fields
        return created

    return create
