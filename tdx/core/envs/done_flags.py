"""Done flags and reset masks: completing the ones, merging rows by the others."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import (
    LazyStackedTensorDict,
    TensorDictBase,
    is_non_tensor,
    is_tensor_collection,
    lazy_stack,
)
from torch import Tensor

from tdx.errors import EnvError, Where
from tdx.keys import NestedKey, key_parts, normal_key, parent_key, sibling_key
from tdx.specs import Composite, TensorSpec
from tdx.tensordicts import read, write


def reshape_to_spec(value: Tensor, spec: TensorSpec, key: NestedKey) -> Tensor:
    """The value in the spec's shape where only dims of size one differ.

    Raises:
        EnvError: the number of elements differs.
    """
    if value.shape == spec.shape:
        return value
    if value.numel() != spec.shape.numel():
        raise EnvError(
            f"the env wrote shape {tuple(value.shape)}, its spec says {tuple(spec.shape)}",
            hint="return the declared shape from _step and _reset, or mend the spec",
            where=Where(key=key),
        )
    return value.reshape(spec.shape)


def complete_done(tensordict: TensorDictBase, full_done_spec: Composite, reset: bool) -> None:
    """Write every declared done flag that the env left out, and shape those that it wrote.

    ``done = terminated | truncated``. A lone ``done`` counts as ``terminated``. After a reset a
    flag that the env does not speak of is false.

    Args:
        tensordict: what the env returned, of shape ``[*B]``; written to.
        full_done_spec: the declared flags.
        reset: whether it comes from a reset.
    """
    for key, spec in full_done_spec.items(True, True):
        value = read(tensordict, key)
        if value is not None:
            write(tensordict, key, reshape_to_spec(value, spec, key))
    for key, spec in full_done_spec.items(True, True):
        if read(tensordict, key) is None:
            write(tensordict, key, _derived_flag(tensordict, key, spec, reset))


def _derived_flag(
    tensordict: TensorDictBase, key: NestedKey, spec: TensorSpec, reset: bool
) -> Tensor:
    name = key_parts(key)[-1]
    sources = {
        "done": ("terminated", "truncated"),
        "terminated": ("done",),
        "truncated": (),
    }.get(name, ())
    flags = [read(tensordict, sibling_key(key, source)) for source in sources]
    flags = [flag for flag in flags if flag is not None]
    if name == "terminated" and flags:
        truncated = read(tensordict, sibling_key(key, "truncated"))
        return flags[0].clone() if truncated is None else flags[0] & ~truncated
    if flags:
        return flags[0] | flags[1] if len(flags) == 2 else flags[0].clone()
    if name == "truncated" or reset:
        return spec.zero()
    raise EnvError(
        "the env's step wrote no done flag",
        hint="write done, or terminated and truncated, in _step",
        where=Where(key=key),
    )


def complete_rewards(tensordict: TensorDictBase, full_reward_spec: Composite) -> None:
    """Shape every declared reward that the env wrote as its spec says.

    Raises:
        EnvError: a reward is missing or has another number of elements.
    """
    for key, spec in full_reward_spec.items(True, True):
        value = read(tensordict, key)
        if value is None:
            raise EnvError(
                "the env's step wrote no reward",
                where=Where(key=key),
                hint="write it in _step, or take it out of the reward spec",
            )
        write(tensordict, key, reshape_to_spec(value, spec, key))


def reset_masks(
    tensordict: TensorDictBase | None, reset_keys: list[NestedKey]
) -> dict[NestedKey, Tensor]:
    """The partial-reset masks that the TensorDict holds, by key."""
    if tensordict is None:
        return {}
    found = {key: read(tensordict, key) for key in reset_keys}
    return {key: mask for key, mask in found.items() if mask is not None}


def all_reset_masks(tensordict: TensorDictBase) -> dict[NestedKey, Tensor]:
    """Every ``_reset`` mask in the TensorDict, also in nested groups, by key."""
    return {
        normal_key(key): tensordict.get(key)
        for key in tensordict.keys(True, True)
        if key_parts(key)[-1] == "_reset"
    }


def check_mask(mask: Tensor, spec: TensorSpec, key: NestedKey) -> None:
    """Raise where a reset mask is not a bool tensor of the done flag's shape.

    Raises:
        EnvError: it is of another dtype or shape.
    """
    if mask.dtype is not torch.bool or mask.shape != spec.shape:
        raise EnvError(
            f"the reset mask is {mask.dtype} of shape {tuple(mask.shape)}, it must be torch.bool "
            f"of the done flag's shape {tuple(spec.shape)}",
            where=Where(key=key),
            hint="write the mask as a bool tensor of the done flag's shape",
        )


def expand_mask(mask: Tensor, value: Tensor, batch_dims: int) -> Tensor:
    """The mask with as many dims as ``value``, to select its rows.

    Args:
        mask: ``[*B, *G, 1]`` or ``[*B, *G]``, with group dims ``G`` beyond the batch.
        value: ``[*B, *G, ...]``; where it lacks the group dims a row counts as reset if any of
            its group is.
        batch_dims: the number of dims in ``B``.
    """
    if mask.ndim > batch_dims and mask.shape[-1] == 1:
        mask = mask.squeeze(-1)
    while mask.ndim > batch_dims and (
        mask.ndim > value.ndim or mask.shape != value.shape[: mask.ndim]
    ):
        mask = mask.any(-1)
    return mask.reshape(mask.shape + (1,) * (value.ndim - mask.ndim))


def nearest_mask(key: NestedKey, masks: dict[NestedKey, Tensor]) -> Tensor | None:
    """The mask that governs a key: that of its nearest enclosing group."""
    parents = parent_key(key)
    for depth in range(len(parents), -1, -1):
        reset_key = (*parents[:depth], "_reset") if depth else "_reset"
        if reset_key in masks:
            return masks[reset_key]
    return None


def keep_unmasked_rows(
    result: TensorDictBase,
    previous: TensorDictBase,
    masks: dict[NestedKey, Tensor],
    batch_dims: int,
) -> None:
    """Give every row of ``result`` that was not reset the value it had in ``previous``.

    Args:
        result: what the reset returned, ``[*B]``; written to.
        previous: the TensorDict that the reset was called with, ``[*B]``.
        masks: the reset masks by key.
        batch_dims: the number of dims in ``B``.
    """
    if type(result) is not LazyStackedTensorDict:
        _keep_level(result, previous, masks, batch_dims, ())
        return
    # What the rows hold may not stack.
    pairs = zip(result.tensordicts, previous.unbind(result.stack_dim), strict=True)
    for index, (row, before) in enumerate(pairs):
        mine = {key: mask.select(result.stack_dim, index) for key, mask in masks.items()}
        keep_unmasked_rows(row, before, mine, batch_dims - 1)


def _keep_level(
    result: TensorDictBase,
    previous: TensorDictBase,
    masks: dict[NestedKey, Tensor],
    batch_dims: int,
    outer: tuple[str, ...],
) -> None:
    for name in list(result.keys()):
        value, before = read(result, name), read(previous, name)
        if before is None:
            continue
        if is_tensor_collection(value) and not is_non_tensor(value):
            if is_tensor_collection(before):
                inner = value.clone(recurse=False)
                _keep_level(inner, before, masks, batch_dims, (*outer, name))
                result.set(name, inner)
            continue
        mask = mask_for_entry((*outer, name), masks, batch_dims)
        if mask is not None and before.shape == value.shape:
            result.set(name, _kept(mask, value, before, batch_dims))


def _kept(mask: Tensor, value: Any, before: Any, batch_dims: int) -> Any:
    rows = expand_mask(mask, value, batch_dims)
    if isinstance(value, Tensor) and isinstance(before, Tensor):
        return torch.where(rows, value, before)
    # An object lies on no device, but its entry may name one.
    return _kept_objects(rows, value.clone().clear_device_(), before.clone().clear_device_())


def _kept_objects(rows: Tensor, value: Any, before: Any) -> Any:
    if rows.ndim == 0:
        return value if bool(rows) else before
    parts = zip(rows.unbind(0), value.unbind(0), before.unbind(0), strict=True)
    return lazy_stack([_kept_objects(*part) for part in parts], 0)


def mask_for_entry(
    key: NestedKey, masks: dict[NestedKey, Tensor], batch_dims: int
) -> Tensor | None:
    """The mask that says which rows of an entry a reset concerns; ``None`` without any mask.

    It is that of the entry's group, and else one of every row of which anything is reset.

    Args:
        key: the entry.
        masks: the reset masks by key.
        batch_dims: the number of dims in ``B``.
    """
    rows = nearest_mask(key, masks)
    if rows is not None:
        return rows
    for mask in masks.values():
        mine = mask.reshape(*mask.shape[:batch_dims], -1).any(-1)
        rows = mine if rows is None else rows | mine
    return rows


def any_done(tensordict: TensorDictBase, done_keys: list[NestedKey]) -> bool:
    """Whether any flag that ends in ``done`` (or, without one, any flag at all) is set."""
    ends = [key for key in done_keys if key_parts(key)[-1] == "done"] or done_keys
    return any(
        bool(flag.any()) for flag in (read(tensordict, key) for key in ends) if flag is not None
    )
