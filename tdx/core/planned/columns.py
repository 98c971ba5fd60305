"""Columns of entries over time by key: collected, assembled to TensorDicts, and their size."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask, mask_for_entry
from tdx.core.envs.eager_run import stack_steps
from tdx.core.envs.env_base import EnvBase
from tdx.core.transforms.kernels import Chunk, Columns, new_column
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, split_key
from tdx.foundation.tensordicts import group_dims, new_tensordict, read


@dataclass(slots=True)
class CollectedSteps(Chunk):
    """The steps of an env before its chain, with the results of the immediate stages.

    The deferred stages turn it into the chunk after the chain, in place.

    Args:
        immediate_steps: What each immediate stage wrote, by its index and key.
        immediate_resets: The same for the resets.
        inputs: What the policy side wrote for each step, ``[T, *B, ...]``.
        stopped: True if a done flag ended the rollout.
        error: What was raised after the last of the steps.
        last_images: Images that the env observed in the last step, ``[*B, ...]``, where ``steps``
            holds mapped ones.
    """

    immediate_steps: dict[int, Columns] = field(default_factory=dict)
    immediate_resets: dict[int, Columns] = field(default_factory=dict)
    inputs: Columns = field(default_factory=dict)
    stopped: bool = False
    error: Exception | None = None
    last_images: Columns = field(default_factory=dict)

    def cut(self, length: int, error: Exception) -> None:
        """Keep the first steps and the resets between them, because the next step failed."""
        self.length, self.stopped, self.error = length, False, error
        self.times = tuple(time for time in self.times if time < length)
        resets = len(self.times)
        for columns in (self.steps, self.inputs, *self.immediate_steps.values()):
            columns.update({key: value[:length] for key, value in columns.items()})
        for columns in (self.resets, self.masks, *self.immediate_resets.values()):
            columns.update({key: value[:resets] for key, value in columns.items()})


def flatten(tensordict: TensorDictBase) -> dict[NestedKey, Any]:
    """Return the leaves of a TensorDict by key."""
    leaves: dict[NestedKey, Any] = {}
    for name in tensordict.keys():
        value = read(tensordict, name)
        if isinstance(value, Tensor):
            leaves[name] = value
        elif isinstance(value, TensorDictBase) and not is_non_tensor(value):
            for key, leaf in flatten(value).items():
                leaves[(name, *split_key(key))] = leaf
        else:
            leaves[name] = value
    return leaves


def stack_leaves(steps: Iterable[TensorDictBase]) -> dict[NestedKey, Tensor]:
    """Stack the leaves of TensorDicts ``[*B]`` to columns ``[T, *B, ...]``."""
    steps = list(steps)
    return {key: torch.stack([read(step, key) for step in steps]) for key in flatten(steps[0])}


def as_tensordict(
    columns: Mapping[NestedKey, Tensor],
    batch_size: torch.Size,
    device: torch.device | None,
    groups: Mapping[tuple[str, ...], tuple[int, ...]] | None = None,
) -> TensorDictBase:
    """Return a TensorDict of columns ``[*batch_size, ...]``.

    ``groups`` has the dims of nested groups beyond the batch, by the parts of their key.
    """
    return _build_group(
        {(key,) if isinstance(key, str) else key: value for key, value in columns.items()},
        (),
        batch_size,
        device,
        groups or {},
    )


def _build_group(
    columns: Mapping[tuple[str, ...], Tensor],
    path: tuple[str, ...],
    batch_size: torch.Size,
    device: torch.device | None,
    groups: Mapping[tuple[str, ...], tuple[int, ...]],
) -> TensorDictBase:
    """Return the group at ``path`` with the groups in it; keys of columns are relative to it."""
    fields: dict[str, Any] = {}
    inner: dict[str, dict[tuple[str, ...], Tensor]] = {}
    for parts, value in columns.items():
        if len(parts) == 1:
            fields[parts[0]] = value
        else:
            inner.setdefault(parts[0], {})[parts[1:]] = value
    for name, columns_of_group in inner.items():
        fields[name] = _build_group(columns_of_group, (*path, name), batch_size, device, groups)
    size = torch.Size((*batch_size, *groups.get(path, ())))
    return new_tensordict(fields, size, device)


def continues_root(first: Mapping[NestedKey, Tensor], values: Mapping[NestedKey, Tensor]) -> bool:
    """Return True if each column ``[T, *B, ...]`` has a root entry of its shape and dtype."""
    return all(
        key in first
        and isinstance(first[key], Tensor)
        and first[key].shape == value.shape[1:]
        and first[key].dtype == value.dtype
        for key, value in values.items()
    )


def assemble(
    chunk: CollectedSteps, start: TensorDictBase, rewards: Collection[NestedKey]
) -> TensorDictBase | list[TensorDictBase]:
    """Return a chunk as ``env.rollout`` returns it, ``[*B, T]``, with an unnamed last dim.

    The root is never computed: it is ``next`` of the step before, the start ``[*B]``, or a reset;
    ``rewards`` never reach it. A list of steps ``[*B]`` is returned if the start has entries that
    the steps do not continue.
    """
    inputs = chunk.inputs
    continued = {key: value for key, value in chunk.steps.items() if key not in rewards}
    if not continues_root(chunk.first, {k: v for k, v in continued.items() if k not in inputs}):
        return _assemble_steps(chunk, start, rewards)
    lead = len(chunk.batch_size)
    root: Columns = {}
    for key in chunk.first:
        if key not in inputs and key not in chunk.steps:
            root[key] = _reset_only_column(chunk, key)
    for key in chunk.steps:
        if key not in rewards and key not in inputs:
            root[key] = _root_column(chunk, key)
    root.update(inputs)
    size = torch.Size((*chunk.batch_size, chunk.length))
    groups = group_dims(start, start.ndim)
    columns = _time_last({**root, **_below_next(chunk.steps)}, lead)
    below = {("next", *path): dims for path, dims in groups.items()}
    return as_tensordict(columns, size, start.device, {**groups, **below})


def _assemble_steps(
    chunk: CollectedSteps, start: TensorDictBase, rewards: Collection[NestedKey]
) -> list[TensorDictBase]:
    """Return the steps one by one, as an eager rollout does."""
    inputs = chunk.inputs
    groups, device, lead = group_dims(start, start.ndim), start.device, len(chunk.batch_size)
    below = {("next", *path): dims for path, dims in groups.items()}
    root = dict(chunk.first)
    steps = []
    resets = {time: index for index, time in enumerate(chunk.times)}
    for index in range(chunk.length):
        if index in resets:
            place = resets[index]
            masks = {key: mask[place] for key, mask in chunk.masks.items()}
            for key, column in chunk.resets.items():
                mask = _entry_mask(key, masks, column[place], lead)
                before = root.get(key, column[place])
                root[key] = torch.where(mask, column[place], before)
            for key in chunk.steps:
                if key in root and key not in chunk.resets and key not in inputs:
                    root[key] = root[key].masked_fill(_entry_mask(key, masks, root[key], lead), 0)
        given = {key: value[index] for key, value in inputs.items()}
        following = {key: value[index] for key, value in chunk.steps.items()}
        whole = {**root, **given, **_below_next(following)}
        steps.append(as_tensordict(whole, chunk.batch_size, device, {**groups, **below}))
        kept = {key: value for key, value in following.items() if key not in rewards}
        root = {**root, **given, **kept}
    return steps


def join_chunks(
    parts: list[TensorDictBase | list[TensorDictBase]], dim: int, contiguous: bool
) -> TensorDictBase:
    """Return the parts as one TensorDict with a time dim."""
    if len(parts) == 1 and not isinstance(parts[0], list) and contiguous:
        parts[0].refine_names(..., "time")
        return parts[0]
    if contiguous and not any(isinstance(part, list) for part in parts):
        result: TensorDictBase = torch.cat(parts, dim)  # type: ignore[arg-type]
        result.refine_names(..., "time")
        return result
    steps: list[TensorDictBase] = []
    for part in parts:
        steps.extend(part if isinstance(part, list) else part.unbind(dim))
    return stack_steps(steps, dim, contiguous)


def last_root(
    chunk: CollectedSteps, start: TensorDictBase, rewards: Collection[NestedKey]
) -> TensorDictBase:
    """Return the root after the last step, ``[*B]``, as ``step_mdp`` does."""
    fields = {key: value for key, value in chunk.first.items() if key not in rewards}
    for key, value in chunk.inputs.items():
        fields[key] = value[-1]
    for key in chunk.resets:
        if key in chunk.first and key not in chunk.steps:
            fields[key] = _reset_only_column(chunk, key)[-1]
    for key, value in chunk.steps.items():
        if key not in rewards:
            fields[key] = value[-1]
    return as_tensordict(fields, chunk.batch_size, start.device, group_dims(start, start.ndim))


def _below_next(columns: Columns) -> Columns:
    return {
        ("next", *((key,) if isinstance(key, str) else key)): value
        for key, value in columns.items()
    }


def _time_last(columns: Columns, lead: int) -> Columns:
    """Move time behind the batch dims; columns that share memory get their own copies."""
    seen: set[int] = set()
    result: Columns = {}
    for key, value in columns.items():
        moved = value.movedim(0, lead).contiguous() if lead else value
        place = moved.data_ptr()
        if place in seen and moved.numel():
            moved = moved.clone()
        seen.add(place)
        result[key] = moved
    return result


def _reset_only_column(chunk: Chunk, key: NestedKey) -> Tensor:
    """Return the column of an entry that only resets write: the value of the last reset."""
    value = chunk.first[key]
    after_reset = chunk.resets.get(key)
    column = value.expand(chunk.length, *value.shape).clone()
    if after_reset is not None:
        mask = _reset_mask(chunk, key, after_reset)
        for start, stop, reset in chunk.segments():
            if reset is not None:
                value = torch.where(mask[reset], after_reset[reset], value)
                column[start:stop] = value
    return column


def _root_column(chunk: Chunk, key: NestedKey) -> Tensor:
    """Return the root column of an entry that every step writes."""
    values = chunk.steps[key]
    first = chunk.first[key]
    if values.requires_grad:
        root = torch.cat((first.unsqueeze(0), values[:-1]))
    else:
        root = new_column(tuple(values.shape), values, len(chunk.batch_size))
        root[0] = first
        root[1:] = values[:-1]
    if chunk.times:
        start, stop = chunk.times[0], chunk.times[-1] + 1
        if len(chunk.times) == stop - start:
            # So it is on an accelerator, where each step resets its rows by a mask. The host would
            # wait for the copy of a list.
            times = torch.arange(start, stop, device=values.device)
        else:
            times = torch.tensor(chunk.times, device=values.device)
        after_reset = chunk.resets.get(key)
        if after_reset is None:
            after_reset = torch.zeros_like(root[times])
        merged = torch.where(_reset_mask(chunk, key, after_reset), after_reset, root[times])
        root = root.index_copy_(0, times, merged)
    return root


def _reset_mask(chunk: Chunk, key: NestedKey, like: Tensor) -> Tensor:
    """Return the mask of each reset for an entry, ``[R, *B, ...]``."""
    lead = len(chunk.batch_size) + 1
    return _entry_mask(key, chunk.masks, like, lead)


def _entry_mask(key: NestedKey, masks: Columns, like: Tensor, lead: int) -> Tensor:
    mask = mask_for_entry(key, masks, lead)
    assert mask is not None
    return expand_mask(mask, like, lead)


# Sizes of chunks

STREAM_BYTES = 8 * 2**20
"""Size of a chunk of ``iter_rollout``. Larger chunks save no time and need more memory."""

WHOLE_BYTES = 256 * 2**20
"""Size of a chunk of ``rollout``, where joining chunks costs more than small chunks save."""

MAX_CHUNK_STEPS = 10_000


def chunk_steps_for(env: EnvBase, chunk_steps: int | None, chunk_bytes: int | None) -> int:
    """Return the number of steps of a chunk of ``iter_rollout``, by default chosen by size."""
    if chunk_steps is not None and chunk_bytes is not None:
        raise ArgumentError("chunk_steps and chunk_bytes are both given", hint="pass one of them")
    for name, value in (("chunk_steps", chunk_steps), ("chunk_bytes", chunk_bytes)):
        if value is not None:
            check_integer(
                value, name, 1, "pass a positive integer, or leave it out for the default"
            )
    if chunk_steps is not None:
        return chunk_steps
    return steps_within(STREAM_BYTES if chunk_bytes is None else chunk_bytes, env)


def steps_within(size: int, env: EnvBase) -> int:
    """Return the number of steps of a chunk of at most ``size`` bytes."""
    return max(1, min(MAX_CHUNK_STEPS, size // max(step_bytes(env), 1)))


def step_bytes(env: EnvBase) -> int:
    """Return the number of bytes of one step of a rollout, from the specs."""
    if not isinstance(env, EnvBase):
        return _count_step_bytes(env)
    cache = env.env_specs.cache
    known: int | None = cache.get("step_bytes")
    if known is None:
        known = cache["step_bytes"] = _count_step_bytes(env)
    return known


def _count_step_bytes(env: Any) -> int:
    total = sum(_nbytes(spec) for spec in env.full_action_spec.values(True, True))
    for part, copies in (
        ("full_observation_spec", 2),
        ("full_done_spec", 2),
        ("full_reward_spec", 1),
    ):
        for spec in env.output_spec[part].values(True, True):
            total += copies * _nbytes(spec)
    return total


def _nbytes(spec: object) -> int:
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if shape is None or dtype is None or any(size < 0 for size in shape):
        return 0
    return int(shape.numel()) * int(dtype.itemsize)
