"""The few TensorDict operations of the step loop, without the checks that cost it time.

A ``TensorDict.get`` or ``set`` normalises its key and checks its value on every call, about a
microsecond each. Inside a step both are known to be right, so the hot path goes to the methods
beneath; this is the one module that names them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from tdx.keys import NestedKey

Maker = Callable[[dict[str, Any]], TensorDict]


def new_tensordict(
    fields: dict[str, Any],
    batch_size: torch.Size,
    device: torch.device | None,
    names: list[str | None] | None = None,
) -> TensorDict:
    """A TensorDict over ``fields``, which must already have the batch size and the device."""
    made = cast(
        TensorDict,
        TensorDict._new_unsafe(fields, batch_size=batch_size, names=names, nested=False),
    )
    # Set afterwards: given as an argument the device is parsed, which takes longer than the rest.
    made._device = device
    return made


def read(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """The entry at ``key`` (in its normal form), or ``None``."""
    if type(key) is str:
        return tensordict._get_str(key, None)
    return tensordict._get_tuple(key, None)


def write(tensordict: TensorDictBase, key: NestedKey, value: Any) -> None:
    """Set the entry at ``key`` (in its normal form) to a value of the right batch and device."""
    if type(key) is str:
        tensordict._set_str(key, value, validated=True, inplace=False, non_blocking=False)
    else:
        tensordict._set_tuple(key, value, validated=True, inplace=False, non_blocking=False)


def plain_entries(tensordict: TensorDictBase) -> dict[str, Any] | None:
    """The root entries of a plain, unlocked TensorDict, to read and write; else ``None``."""
    if type(tensordict) is TensorDict and not tensordict._is_locked:
        return cast("dict[str, Any]", tensordict._tensordict)
    return None


def flat_entries(tensordict: TensorDictBase | None) -> dict[str, Any] | None:
    """:func:`plain_entries` of a TensorDict that has nothing nested in it; else ``None``."""
    if tensordict is None:
        return None
    entries = plain_entries(tensordict)
    if entries is None:
        return None
    for value in entries.values():
        if type(value) is not Tensor:
            return None
    return entries


def overlay(under: TensorDictBase, over: TensorDictBase) -> None:
    """Set every entry of ``over`` in ``under``, of the same batch size and device."""
    source, target = flat_entries(over), plain_entries(under)
    if source is None or target is None:
        under.update(over)
    else:
        target.update(source)


def mark_result(following: TensorDictBase, root: TensorDictBase) -> None:
    """Remember that a step of ``root`` wrote ``following`` into it; copies do not."""
    following.__dict__["_stepped_from"] = id(root)


def is_result(following: TensorDictBase | None, root: TensorDictBase) -> bool:
    """Whether an earlier step of ``root`` wrote ``following`` into it."""
    return following is not None and following.__dict__.get("_stepped_from") == id(root)


def stacked_parts(tensordict: TensorDictBase) -> list[TensorDictBase]:
    """The TensorDicts that a lazy stack is made of, of nested ones too; else just the one."""
    if not isinstance(tensordict, LazyStackedTensorDict):
        return [tensordict]
    return [part for inner in tensordict.tensordicts for part in stacked_parts(inner)]


def tensordict_maker(batch_size: torch.Size, device: torch.device | None) -> Maker:
    """:func:`new_tensordict` for one batch size and device, at a third of its cost.

    A TensorDict is made as a copy of an empty one. Where this release of tensordict keeps more
    than a plain ``__dict__``, it is made the ordinary way.
    """
    empty = new_tensordict({}, batch_size, device)
    state = getattr(empty, "__dict__", None)
    if type(empty) is not TensorDict or state is None or state.get("_tensordict") != {}:
        return lambda fields: new_tensordict(fields, batch_size, device)
    kind: Any = TensorDict
    bare = kind.__new__

    def make(fields: dict[str, Any]) -> TensorDict:
        made = bare(kind)
        attributes = made.__dict__
        attributes.update(state)
        attributes["_tensordict"] = fields
        return made

    return make
