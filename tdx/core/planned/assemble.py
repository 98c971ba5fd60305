"""The TensorDict of a rollout, from the columns that came out of the chain."""

from __future__ import annotations

from collections.abc import Collection

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import as_row_mask, governing_mask
from tdx.core.planned.columns import as_tensordict, group_dims, same_columns
from tdx.core.transforms.chunk import Chunk, Columns, new_column
from tdx.keys import NestedKey, split_key


def assembled(
    chunk: Chunk,
    inputs: Columns,
    start: TensorDictBase,
    rewards: Collection[NestedKey],
) -> TensorDictBase | list[TensorDictBase]:
    """The chunk as ``env.rollout`` returns it, ``[*B, T]``, without the name of its last dim.

    The root is never computed: it is ``next`` of the step before, the start, or a reset.

    Args:
        chunk: what came out of the chain.
        inputs: what the outside gave to each step, ``[T, *B, ...]``.
        start: the root before the first step, ``[*B]``.
        rewards: the keys that never reach the root.

    Returns:
        one block; or a list of the steps, ``[*B]`` each, where the start holds other entries
        than the steps continue.
    """
    continued = {key: value for key, value in chunk.steps.items() if key not in rewards}
    if not same_columns(chunk.first, {k: v for k, v in continued.items() if k not in inputs}):
        return _step_by_step(chunk, inputs, start, rewards)
    lead = len(chunk.batch_size)
    root: Columns = {}
    for key in chunk.first:
        if key not in inputs and key not in chunk.steps:
            root[key] = _held(chunk, key)
    for key in chunk.steps:
        if key not in rewards and key not in inputs:
            root[key] = _shifted(chunk, key)
    root.update(inputs)
    size = torch.Size((*chunk.batch_size, chunk.length))
    groups = group_dims(start)
    columns = _time_last({**root, **_below_next(chunk.steps)}, lead)
    below = {("next", *path): dims for path, dims in groups.items()}
    return as_tensordict(columns, size, start.device, {**groups, **below})


def _step_by_step(
    chunk: Chunk, inputs: Columns, start: TensorDictBase, rewards: Collection[NestedKey]
) -> list[TensorDictBase]:
    """The steps one by one, as an eager rollout makes them."""
    groups, device, lead = group_dims(start), start.device, len(chunk.batch_size)
    below = {("next", *path): dims for path, dims in groups.items()}
    root = dict(chunk.first)
    rows = []
    resets = {time: index for index, time in enumerate(chunk.times)}
    for index in range(chunk.length):
        if index in resets:
            place = resets[index]
            masks = {key: mask[place] for key, mask in chunk.masks.items()}
            for key, column in chunk.resets.items():
                mask = _row_mask(key, masks, column[place], lead)
                before = root.get(key, column[place])
                root[key] = torch.where(mask, column[place], before)
        given = {key: value[index] for key, value in inputs.items()}
        following = {key: value[index] for key, value in chunk.steps.items()}
        whole = {**root, **given, **_below_next(following)}
        rows.append(as_tensordict(whole, chunk.batch_size, device, {**groups, **below}))
        kept = {key: value for key, value in following.items() if key not in rewards}
        root = {**root, **given, **kept}
    return rows


def last_root(
    chunk: Chunk, inputs: Columns, start: TensorDictBase, rewards: Collection[NestedKey]
) -> TensorDictBase:
    """What ``step_mdp`` makes of the last step, ``[*B]``."""
    fields = {key: value for key, value in chunk.first.items() if key not in rewards}
    for key, value in inputs.items():
        fields[key] = value[-1]
    for key in chunk.resets:
        if key in chunk.first and key not in chunk.steps:
            fields[key] = _held(chunk, key)[-1]
    for key, value in chunk.steps.items():
        if key not in rewards:
            fields[key] = value[-1]
    return as_tensordict(fields, chunk.batch_size, start.device, group_dims(start))


def _below_next(columns: Columns) -> Columns:
    return {("next", *split_key(key)): value for key, value in columns.items()}


def _time_last(columns: Columns, lead: int) -> Columns:
    """Columns ``[T, *B, ...]`` as ``[*B, T, ...]``; two of one memory get one each."""
    seen: set[int] = set()
    result: Columns = {}
    for key, value in columns.items():
        moved = value.movedim(0, lead).contiguous() if lead else value
        if moved.data_ptr() in seen and moved.numel():
            moved = moved.clone()
        seen.add(moved.data_ptr())
        result[key] = moved
    return result


def _held(chunk: Chunk, key: NestedKey) -> Tensor:
    """An entry that only resets write: the last one's, over all steps."""
    value = chunk.first[key]
    begun = chunk.resets.get(key)
    column = value.expand(chunk.length, *value.shape).clone()
    if begun is not None:
        rows = _rows(chunk, key, begun)
        for start, stop, reset in chunk.segments():
            if reset is not None:
                value = torch.where(rows[reset], begun[reset], value)
                column[start:stop] = value
    return column


def _shifted(chunk: Chunk, key: NestedKey) -> Tensor:
    """The root's column of an entry that every step writes."""
    values = chunk.steps[key]
    first = chunk.first[key]
    if values.requires_grad:
        root = torch.cat((first.unsqueeze(0), values[:-1]))
    else:
        root = new_column(tuple(values.shape), values)
        root[0] = first
        root[1:] = values[:-1]
    begun = chunk.resets.get(key)
    if begun is not None and chunk.times:
        times = torch.tensor(chunk.times, device=values.device)
        merged = torch.where(_rows(chunk, key, begun), begun, root[times])
        root = root.index_copy_(0, times, merged)
    return root


def _rows(chunk: Chunk, key: NestedKey, like: Tensor) -> Tensor:
    """Which rows of an entry each reset concerns, ``[R, *B, ...]``."""
    lead = len(chunk.batch_size) + 1
    return _row_mask(key, chunk.masks, like, lead)


def _row_mask(key: NestedKey, masks: Columns, like: Tensor, lead: int) -> Tensor:
    mask = governing_mask(key, masks, lead)
    assert mask is not None
    return as_row_mask(mask, like, lead)
