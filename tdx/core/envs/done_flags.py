"""Done flags and default specs: complete the declared ones, and merge rows by masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from tdx.foundation.errors import EnvError, Where
from tdx.foundation.keys import NestedKey, normalize_key, parent_key, sibling_key, split_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Categorical, Composite, TensorSpec, Unbounded
from tdx.specs.arguments import where


def complete_done_spec(spec: Composite) -> None:
    """Add ``terminated`` to groups that have only ``done``, and the reverse, in place.

    A group without any entry gets both.
    """
    names = set(spec.keys())
    for name, other in (("done", "terminated"), ("terminated", "done")):
        if name in names and other not in names:
            spec[other] = spec[name].clone()
    for child in spec.values():
        if isinstance(child, Composite):
            complete_done_spec(child)
    if not names:
        flag = Categorical(2, shape=(*spec.shape, 1), dtype=torch.bool, device=spec.device)
        spec["done"], spec["terminated"] = flag, flag.clone()


def default_done_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """Return ``done``, ``terminated`` and ``truncated`` as bool specs of shape ``[*B, 1]``."""
    flag = Categorical(2, shape=(*batch_size, 1), dtype=torch.bool, device=device)
    return Composite(
        {name: flag.clone() for name in ("done", "terminated", "truncated")},
        shape=batch_size,
        device=device,
    )


def default_output_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """Return the output spec of an env that declares none: a reward and the done flags."""
    reward = Unbounded(shape=(*batch_size, 1), device=device)
    return Composite(
        full_observation_spec=Composite(shape=batch_size, device=device),
        full_reward_spec=Composite({"reward": reward}, shape=batch_size, device=device),
        full_done_spec=default_done_spec(batch_size, device),
        shape=batch_size,
        device=device,
    )


def default_input_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """Return the input spec of an env that declares none: no state and no action."""
    return Composite(
        full_state_spec=Composite(shape=batch_size, device=device),
        full_action_spec=Composite(shape=batch_size, device=device),
        shape=batch_size,
        device=device,
    )


def reshape_to_spec(value: Tensor, spec: TensorSpec, key: NestedKey) -> Tensor:
    """Reshape a value to the shape of its spec if only dims of size one differ."""
    if value.shape == spec.shape:
        return value
    if value.numel() != spec.shape.numel():
        raise EnvError(
            f"the env wrote shape {tuple(value.shape)}, its spec says {tuple(spec.shape)}",
            hint="return the declared shape from _step and _reset, or correct the spec",
            where=Where(key=key),
        )
    return value.reshape(spec.shape)


def complete_done(tensordict: TensorDictBase, full_done_spec: Composite, reset: bool) -> None:
    """Add the declared done flags that the env did not write, and reshape the others, in place.

    ``done = terminated | truncated``. A lone ``done`` counts as ``terminated``. After a reset,
    missing flags are false, and so are those of a group without any flag if another group has one.
    """
    missing: list[tuple[NestedKey, TensorSpec]] = []
    leaves = 0
    for key, spec in full_done_spec.items(True, True):
        value, leaves = read(tensordict, key), leaves + 1
        if value is None:
            missing.append((key, spec))
        else:
            write(tensordict, key, reshape_to_spec(value, spec, key))
    others_known = len(missing) < leaves
    for key, spec in missing:
        write(tensordict, key, _derived_flag(tensordict, key, spec, reset or others_known))


def _derived_flag(
    tensordict: TensorDictBase, key: NestedKey, spec: TensorSpec, default_false: bool
) -> Tensor:
    name = split_key(key)[-1]
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
    if name == "truncated" or default_false:
        return spec.zero()
    raise EnvError(
        "the env's step wrote no done flag",
        hint="write done, or terminated and truncated, in _step",
        where=Where(key=key),
    )


def complete_rewards(tensordict: TensorDictBase, full_reward_spec: Composite) -> None:
    """Reshape the declared rewards to the shape of their specs."""
    for key, spec in full_reward_spec.items(True, True):
        value = read(tensordict, key)
        if value is None:
            raise EnvError(
                "the env's step wrote no reward",
                where=Where(key=key),
                hint="write it in _step, or declare none: full_reward_spec = Composite()",
            )
        write(tensordict, key, reshape_to_spec(value, spec, key))


def reset_masks(
    tensordict: TensorDictBase | None, reset_keys: list[NestedKey]
) -> dict[NestedKey, Tensor]:
    """Return the partial-reset masks of a TensorDict by key."""
    if tensordict is None:
        return {}
    masks = {key: read(tensordict, key) for key in reset_keys}
    return {key: mask for key, mask in masks.items() if mask is not None}


def complete_masks(
    tensordict: TensorDictBase, reset_keys: list[NestedKey], find_spec: Callable[[], Composite]
) -> dict[NestedKey, Tensor]:
    """Check the partial-reset masks in the input of a reset ``[*B]``; write those of all groups.

    A group inside of one with a mask follows that mask. Another group without a mask is not reset.
    Returns the masks by key: none if all rows are reset.
    """
    masks = reset_masks(tensordict, reset_keys)
    if not masks:
        return masks
    flags: dict[NestedKey, TensorSpec] = {}
    for key, spec in find_spec().items(True, True):
        flags.setdefault(sibling_key(key, "_reset"), spec)
    for key, mask in masks.items():
        shape = tuple(flags[key].shape)
        if mask.dtype is not torch.bool or mask.shape != shape:
            raise EnvError(
                f"the reset mask is {mask.dtype} of shape {tuple(mask.shape)}, it must be "
                f"torch.bool of the done flag's shape {shape}",
                where=Where(key=key),
                hint="write the mask as a bool tensor of the done flag's shape",
            )
    if len(reset_keys) == 1:
        return masks
    given = dict(masks)
    for key in sorted(reset_keys, key=lambda key: len(split_key(key))):  # Outer groups first.
        group, unset = parent_key(key), flags[key].zero()
        outer = nearest_mask(group, given) if group else None
        if outer is not None:
            masks[key] = given[key] = _inner_mask(outer, unset, tensordict.ndim)
            write(tensordict, key, masks[key])
        elif key not in masks:
            masks[key] = unset
            write(tensordict, key, unset)
    return masks


def is_partial(masks: dict[NestedKey, Tensor], device: torch.device) -> bool:
    """Return True if a reset by these masks may leave rows as they are."""
    # Reading the masks on an accelerator would make the host wait for it.
    return bool(masks) and (
        device.type != "cpu" or not all(bool(mask.all()) for mask in masks.values())
    )


def write_reset(
    tensordict: TensorDictBase,
    result: TensorDictBase,
    masks: dict[NestedKey, Tensor],
    partial: bool,
    output_keys: Iterable[NestedKey],
) -> TensorDictBase:
    """Write the output of a reset to its input, and remove the masks from it.

    Outputs of the env that the reset does not write, such as rewards, belong to the old episode:
    the rows that are reset become zero. Entries that no output spec declares are the caller's, and
    stay. If ``partial``, rows that the masks leave out keep their values.
    """
    if masks:
        result = result.clone(recurse=False)
    if partial:
        keep_unmasked_rows(result, tensordict, masks, tensordict.ndim)
    if masks:
        for key in output_keys:
            _zero_stale_rows(result, tensordict, split_key(key), masks, tensordict.ndim)
    for key in masks:
        del tensordict[key]
    return tensordict.update(result)


def _zero_stale_rows(
    result: TensorDictBase,
    tensordict: TensorDictBase,
    key: tuple[str, ...],
    masks: dict[NestedKey, Tensor],
    batch_dims: int,
    depth: int = 0,
) -> None:
    """Write an output that a reset left out to ``result``, with zeros in the rows that were reset.

    Both TensorDicts are at ``depth`` groups below their roots.
    """
    if type(tensordict) is LazyStackedTensorDict:
        # Agents whose entries may not stack. Envs with unlike outputs have reset their own rows.
        if depth and type(result) is LazyStackedTensorDict:
            for agent, before, mine in _each_agent(result, tensordict, masks):
                _zero_stale_rows(agent, before, key, mine, batch_dims, depth)
        return
    name, is_leaf = key[depth], depth == len(key) - 1
    before, value = read(tensordict, name), read(result, name)
    if is_leaf and value is None and isinstance(before, Tensor):
        rows = mask_for_entry(key, masks, batch_dims)
        assert rows is not None
        rows = expand_mask(rows, before, batch_dims).to(before.device)
        result.set(name, before.masked_fill(rows, 0))
    elif not is_leaf and isinstance(before, TensorDictBase):
        group = before.empty() if value is None else value
        _zero_stale_rows(group, before, key, masks, batch_dims, depth + 1)
        if value is None and not group.is_empty():
            result.set(name, group)


def all_reset_masks(tensordict: TensorDictBase) -> dict[NestedKey, Tensor]:
    """Return all ``_reset`` masks of a TensorDict, also in nested groups, by key."""
    return {
        normalize_key(key): tensordict.get(key)
        for key in tensordict.keys(True, True)
        if split_key(key)[-1] == "_reset"
    }


def end_masks(tensordict: TensorDictBase, end_keys: Iterable[NestedKey]) -> dict[NestedKey, Tensor]:
    """Return the rows that are done by the reset key of each group of :func:`episode_end_flags`.

    A mask may be a flag itself.
    """
    masks: dict[NestedKey, Tensor] = {}
    for key in end_keys:
        reset_key, flag = sibling_key(key, "_reset"), read(tensordict, key)
        masks[reset_key] = masks[reset_key] | flag if reset_key in masks else flag
    return masks


def inherit_masks(
    masks: dict[NestedKey, Tensor], shapes: Mapping[NestedKey, torch.Size], batch_dims: int
) -> None:
    """Add the masks of groups inside of those that have one; ``shapes``: those of all masks."""
    for key, shape in shapes.items():
        outer = None if key in masks else nearest_mask(key, masks)
        if outer is not None:
            masks[key] = _inner_mask(outer, outer.new_empty(shape), batch_dims)


def _inner_mask(outer: Tensor, like: Tensor, batch_dims: int) -> Tensor:
    """Expand the mask of a group to the shape of the mask of a group inside of it."""
    return expand_mask(outer, like, batch_dims).expand(like.shape).clone()


def expand_mask(mask: Tensor, value: Tensor, batch_dims: int) -> Tensor:
    """Reshape a mask ``[*B, *G, 1]`` or ``[*B, *G]`` so that it selects rows of ``[*B, *G, ...]``.

    ``G`` are group dims beyond the batch. Without them in the value, a row is selected if any of
    its group is.
    """
    if mask.ndim > batch_dims and mask.shape[-1] == 1:
        mask = mask.squeeze(-1)
    while mask.ndim > batch_dims and (
        mask.ndim > value.ndim or mask.shape != value.shape[: mask.ndim]
    ):
        mask = mask.any(-1)
    return mask.reshape(mask.shape + (1,) * (value.ndim - mask.ndim))


def keep_unmasked_rows(
    result: TensorDictBase,
    previous: TensorDictBase,
    masks: dict[NestedKey, Tensor],
    batch_dims: int,
) -> None:
    """Restore, in place, the rows of ``result`` that were not reset from ``previous``."""
    if type(result) is not LazyStackedTensorDict:
        _restore_level(result, previous, masks, batch_dims, ())
        return
    # The entries of the rows may not stack.
    pairs = zip(result.tensordicts, previous.unbind(result.stack_dim), strict=True)
    for index, (row, before) in enumerate(pairs):
        mine = {key: mask.select(result.stack_dim, index) for key, mask in masks.items()}
        keep_unmasked_rows(row, before, mine, batch_dims - 1)


def _restore_level(
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
                if type(inner) is LazyStackedTensorDict:
                    # Agents whose entries may not stack; masks may have a dim for them.
                    for agent, earlier, mine in _each_agent(inner, before, masks):
                        _restore_level(agent, earlier, mine, batch_dims, (*outer, name))
                else:
                    _restore_level(inner, before, masks, batch_dims, (*outer, name))
                result.set(name, inner)
            continue
        mask = mask_for_entry((*outer, name), masks, batch_dims)
        if mask is not None and before.shape == value.shape:
            result.set(name, _merge(mask, value, before, batch_dims))


def _each_agent(
    result: LazyStackedTensorDict, previous: TensorDictBase, masks: dict[NestedKey, Tensor]
) -> Iterator[tuple[TensorDictBase, TensorDictBase, dict[NestedKey, Tensor]]]:
    """Iterate over the agents of a group, with their entries before a reset and their masks."""
    dim = result.stack_dim
    pairs = zip(result.tensordicts, previous.unbind(dim), strict=True)
    for index, (agent, before) in enumerate(pairs):
        mine = {
            key: mask.select(dim, index) if mask.ndim > dim + 1 else mask
            for key, mask in masks.items()
        }
        yield agent, before, mine


def _merge(mask: Tensor, value: Any, before: Any, batch_dims: int) -> Any:
    rows = expand_mask(mask, value, batch_dims)
    if isinstance(value, Tensor) and isinstance(before, Tensor):
        if rows.device != value.device:
            rows = rows.to(value.device)
        return where(rows, value, before)
    # Objects have no device, but their entry may name one.
    return _merge_objects(rows, value.clone().clear_device_(), before.clone().clear_device_())


def _merge_objects(rows: Tensor, value: Any, before: Any) -> Any:
    if rows.ndim == 0:
        return value if bool(rows) else before
    parts = zip(rows.unbind(0), value.unbind(0), before.unbind(0), strict=True)
    return lazy_stack([_merge_objects(*part) for part in parts], 0)


def mask_for_entry(
    key: NestedKey, masks: dict[NestedKey, Tensor], batch_dims: int
) -> Tensor | None:
    """Return the mask of the rows of an entry that a reset changes; ``None`` without any mask.

    It is the mask of the nearest group that encloses the entry, or else the union of all masks:
    with flags of agents only, an entry of the whole row changes if any of its agents is reset.
    """
    rows = nearest_mask(key, masks)
    if rows is not None:
        return rows
    for mask in masks.values():
        mine = mask.reshape(*mask.shape[:batch_dims], -1).any(-1)
        rows = mine if rows is None else rows | mine
    return rows


def nearest_mask(key: NestedKey, masks: dict[NestedKey, Tensor]) -> Tensor | None:
    """Return the mask of the nearest group that encloses an entry, ``None`` if none has a mask."""
    parents = parent_key(key)
    for depth in range(len(parents), -1, -1):
        mask = masks.get((*parents[:depth], "_reset") if depth else "_reset")
        if mask is not None:
            return mask
    return None


def any_done(tensordict: TensorDictBase, end_keys: Iterable[NestedKey]) -> bool:
    """Return True if any of :func:`episode_end_flags` is set, so that a reset is due."""
    return any(
        bool(flag.any()) for flag in (read(tensordict, key) for key in end_keys) if flag is not None
    )


def episode_end_keys(done_keys: Iterable[NestedKey]) -> list[NestedKey]:
    """Return the flags that decide where the episode of a row ends and which rows are reset.

    They are those of the outermost groups: with flags at the root, an agent may leave an episode
    that goes on. Without flags there, the first agent that ends, ends the episode.
    """
    keys = list(done_keys)
    groups = {parent_key(key) for key in keys}
    return [
        key
        for key in keys
        if not any(parent_key(key)[:depth] in groups for depth in range(len(parent_key(key))))
    ]


def episode_end_flags(done_keys: Iterable[NestedKey]) -> list[NestedKey]:
    """Return each ``done`` among :func:`episode_end_keys`, or all flags of a group without it."""
    keys = episode_end_keys(done_keys)
    with_done = {parent_key(key) for key in keys if split_key(key)[-1] == "done"}
    return [key for key in keys if split_key(key)[-1] == "done" or parent_key(key) not in with_done]


def all_done(tensordict: TensorDictBase, done_keys: Iterable[NestedKey]) -> bool:
    """Return True if each ``done`` of :func:`episode_end_keys` is set; other keys do not count."""
    ends = episode_end_keys(key for key in done_keys if split_key(key)[-1] == "done")
    flags = [read(tensordict, key) for key in ends]
    return bool(flags) and all(bool(flag.all()) for flag in flags)


def episode_ends(
    tensordict: TensorDictBase,
    done_keys: Sequence[NestedKey],
    rows: int,
    with_last_agent: bool = False,
) -> dict[int, str]:
    """Return how the episodes of the rows that a step ``[*B]`` ended have ended, by row.

    :func:`episode_end_keys` decide. A row that is both terminated and truncated is ``terminated``;
    ``done`` is the last resort.

    Args:
        tensordict: Output of the step.
        done_keys: Keys of its flags.
        rows: Number of rows.
        with_last_agent: If True, the flags are those of agents, ``[*B, A]``, and stay set. The last
            agent ends the episode, which is ``truncated`` if any agent was in this step.
    """
    order = ("terminated", "truncated", "done")
    if with_last_agent:
        order = ("truncated", "terminated", "done")
    keys = episode_end_keys(done_keys)
    flags = [
        (end, flag.reshape(rows, -1))
        for end in order
        for key in keys
        if split_key(key)[-1] == end and (flag := tensordict.get(key, None)) is not None
    ]
    if with_last_agent and flags:
        left = torch.stack([flag for _, flag in flags]).any(0).all(-1, keepdim=True)
        flags = [(end, flag & left) for end, flag in flags]
    ends: dict[int, str] = {}
    for end, flag in flags:
        if bool(flag.any()):
            for row in flag.any(-1).nonzero().flatten().tolist():
                ends.setdefault(row, end)
    return ends
