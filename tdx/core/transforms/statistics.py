"""Running mean and variance: the moments of a stream of values, and a transform that keeps them.

The sum, the sum of squares and the count are kept in one float64 tensor ``[3, ...]``, so that
counts stay exact and a variance far from zero keeps its digits. They are updated in place, so
that several instances can share them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.transforms.kernels import (
    Chunk,
    ChunkKernel,
    DictStep,
    EntryMapping,
    TensorDictEntries,
    TimeBehavior,
    are_flat,
)
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.spec_maps import missing_key_error, output_keys
from tdx.core.transforms.transform import Transform
from tdx.core.transforms.validation import check_positive
from tdx.foundation.array_files import Array
from tdx.foundation.errors import ChainError, Where
from tdx.foundation.keys import NestedKey, split_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Composite, TensorSpec, Unbounded

Lock = AbstractContextManager[Any]


def empty_moments(shape: torch.Size, device: torch.device | None) -> Tensor:
    """Return the moments of no values, ``[3, *shape]``."""
    return torch.zeros(3, *shape, dtype=torch.float64, device=device)


def add_values(moments: Tensor, value: Tensor, decay: float, rows: Tensor | None = None) -> None:
    """Add values ``[*B, ...]`` to moments ``[3, ...]`` in place, multiplied by ``decay`` before.

    ``rows`` is a mask of the values to count. If no value counts, nothing changes.
    """
    dims = moments.ndim - 1
    batch_dims = value.ndim - dims
    value = value.detach().to(moments.dtype)
    if rows is None:
        if batch_dims:
            count = value.shape[:batch_dims].numel()
            value = value.reshape(count, *value.shape[batch_dims:])
            new = torch.stack((value.sum(0), value.square().sum(0)))
        else:
            count, new = 1, torch.stack((value, value * value))
        if count:
            moments.mul_(decay)
            moments[:2].add_(new)
            moments[2].add_(count)
        return
    counted = rows.expand(value.shape)
    value = torch.where(counted, value, 0.0)
    parts = (value, value * value, counted.to(value.dtype))
    new = torch.stack([part.reshape(-1, *value.shape[batch_dims:]).sum(0) for part in parts])
    # Looking at whether any counts would make the host wait for an accelerator.
    moments.mul_(_weights(new[2] > 0, moments, decay)).add_(new)


def _weights(counted: Tensor, moments: Tensor, decay: float) -> Tensor:
    """Return the weight of earlier moments: 1 if nothing was counted, else ``decay``."""
    # Filled on the device: `new_tensor` would copy each number from the host, and wait.
    return torch.where(counted, moments.new_full((), decay), moments.new_full((), 1.0))


def mean_and_variance(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance, ``[...]``; 0 and 1 if nothing was counted."""
    total, squares, count = moments.unbind(0)
    none = count <= 0
    count = count.masked_fill(none, 1.0)
    mean = total / count
    return mean, (squares / count - mean * mean).masked_fill(none, 1.0)


def loc_and_scale(moments: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the mean, and the standard deviation of a variance of at least ``eps``."""
    mean, variance = mean_and_variance(moments)
    return mean.to(dtype), variance.clamp_min(eps).sqrt().to(dtype)


class Observed(NamedTuple):
    """Values of an entry in a chunk, for its moments ``[3, ...]``."""

    moments: Tensor
    steps: Tensor  # [T, *B, ...]
    resets: Tensor | None  # [R, *B, ...]
    rows: Tensor | None  # mask of the rows of each reset; broadcasts to resets


def moments_over_time(
    entries: Sequence[Observed], times: tuple[int, ...], decay: float
) -> list[tuple[Tensor, Tensor | None]]:
    """Run :func:`add_values` over the steps of a chunk and the resets between them, at ``times``.

    The moments are updated in place to those after the last step. Returns, for each entry, the
    moments after each step ``[T, 3, ...]``, and after each reset ``[R, 3, ...]`` if it has resets.
    """
    new = [_moments_of_steps(entry) for entry in entries]
    resets = [place + time for place, time in enumerate(times)]
    is_reset = torch.zeros(len(new[0]) + len(resets), dtype=torch.bool, device=new[0].device)
    if resets:
        is_reset[resets] = True
        for index, entry in enumerate(entries):
            # Of an entry without resets nothing is counted there, and nothing decays.
            events = new[index].new_zeros((len(is_reset), *new[index].shape[1:]))
            events[~is_reset] = new[index]
            if entry.resets is not None and entry.rows is not None:
                events[is_reset] = _moments_of_rows(entry.resets, entry.rows, entry.moments)
            new[index] = events
    result: list[tuple[Tensor, Tensor | None]] = []
    after = _decayed_sums([entry.moments for entry in entries], new, decay, resets)
    for entry, sums in zip(entries, after, strict=True):
        entry.moments.copy_(sums[-1])
        if resets:
            result.append((sums[~is_reset], None if entry.resets is None else sums[is_reset]))
        else:
            result.append((sums, None))
    return result


def _moments_of_steps(entry: Observed) -> Tensor:
    """Return the moments of each step alone, ``[T, 3, ...]``."""
    values, dims = entry.steps.detach().to(entry.moments.dtype), entry.moments.ndim - 1
    batch = values.shape[1 : values.ndim - dims]
    if batch:
        values = values.reshape(len(values), batch.numel(), *values.shape[values.ndim - dims :])
        total, squares = values.sum(1), values.square().sum(1)
    else:
        total, squares = values, values * values
    return torch.stack((total, squares, torch.full_like(total, batch.numel())), 1)


def _moments_of_rows(values: Tensor, rows: Tensor, moments: Tensor) -> Tensor:
    """Return the moments of some rows of each reset ``[R, *B, ...]`` alone, ``[R, 3, ...]``."""
    values, counted = values.detach().to(moments.dtype), rows.expand(values.shape)
    values = torch.where(counted, values, 0.0)
    parts = (values, values * values, counted.to(values.dtype))
    flat = [part.reshape(len(values), -1, *moments.shape[1:]) for part in parts]
    return torch.stack([part.sum(1) for part in flat], 1)


def _decayed_sums(
    moments: Sequence[Tensor], new: Sequence[Tensor], decay: float, resets: Sequence[int]
) -> list[Tensor]:
    """Return the states after each ``state = state * decay + new``, ``[E, 3, ...]``.

    On the CPU all entries are the columns of one array: a step costs two calls of NumPy.
    """
    if new[0].device.type != "cpu":
        result = []
        for held, column in zip(moments, new, strict=True):
            sums, weights = [held], _weights(column[:, 2:] > 0, held, decay)
            for weight, added in zip(weights.unbind(0), column.unbind(0), strict=True):
                sums.append(sums[-1] * weight + added)
            result.append(torch.stack(sums[1:]))
        return result
    after = torch.cat([column.flatten(1) for column in new], 1).numpy()
    state: Array = torch.cat([held.reshape(-1) for held in moments]).numpy()
    if decay == 1:
        after[0] += state
        np.add.accumulate(after, axis=0, out=after)
    else:
        # A reset that counted nothing is followed by no decay.
        counted = [column[resets, 2:].expand(-1, 3, *column.shape[2:]) for column in new]
        counts = torch.cat([count.flatten(1) for count in counted], 1).numpy()
        after_resets = dict(zip(resets, np.where(counts > 0, decay, 1.0), strict=True))
        # Operands of the same shape cost less than a number.
        after_steps, carried = np.full_like(state, decay), np.empty_like(state)
        multiply, add = np.multiply, np.add
        for index, row in enumerate(after):
            multiply(state, after_resets.get(index, after_steps), carried)
            state = add(carried, row, row)
    columns = torch.from_numpy(after).split([held.numel() for held in moments], 1)
    return [
        column.reshape(len(after), *held.shape)
        for column, held in zip(columns, moments, strict=True)
    ]


def float_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return a floating dtype unchanged, else the default dtype."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def leaf_spec(output_spec: Composite, key: NestedKey) -> Any:
    """Return the spec of an entry."""
    for part in output_spec.values():
        spec = part.get(key, None)
        if spec is not None:
            return spec
    raise missing_key_error(key, output_keys(output_spec), "the env at this stage")


class RunningStatistics(Transform):
    """Maps values by their running mean and variance, which are buffers.

    A subclass implements the kernel :meth:`_map_values`. This class updates the statistics in train
    mode, step by step, over a chunk and from stored data, and calls the kernel.

    Attributes:
        lock: Held while statistics are updated or read.
        decay: Factor by which each update multiplies the weight of earlier values.
        eps: Smallest variance.
    """

    time_behavior = TimeBehavior.SCAN
    mixes_rows = True
    lock: Lock | None = None
    decay: float
    eps: float
    _frozen = False

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self._dtypes: dict[NestedKey, torch.dtype] = {}

    def _set_keys(
        self, in_keys: Sequence[NestedKey] | None, out_keys: Sequence[NestedKey] | None
    ) -> None:
        super()._set_keys(in_keys, out_keys)
        self._names = {key: f"statistics/{'/'.join(split_key(key))}" for key in self._in_keys}
        for name in self._names.values():
            if name not in self._buffers:
                self.register_buffer(name, None)

    def _require(
        self, key: NestedKey, name: str, shape: torch.Size, device: torch.device | None
    ) -> None:
        """Create the statistics of an entry, or check the shape of existing ones."""
        held = self._buffers[name]
        if held is None:
            self._buffers[name] = empty_moments(shape, device)
        elif held.shape[1:] != shape:
            raise ChainError(
                f"the statistics have shape {tuple(held.shape[1:])}, the entry has {tuple(shape)}",
                hint="use a new VecNorm, or load the statistics of this env",
                where=Where(key=key),
            )

    def _require_for(self, key: NestedKey, value: Tensor, batch_dims: int) -> None:
        """Run :meth:`_require` for an entry ``[*B, ...]``; existing statistics define ``B``."""
        name = self._names[key]
        held = self._buffers[name]
        start = batch_dims if held is None else max(value.ndim - held.ndim + 1, 0)
        self._require(key, name, value.shape[start:], value.device)

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        for key, name in self._names.items():
            if self._missing_tolerance and all(key not in part for part in output_spec.values()):
                continue
            spec = leaf_spec(output_spec, key)
            self._dtypes[key] = float_dtype(spec.dtype)
            self._require(key, name, spec.shape[output_spec.ndim :], spec.device)

    # Values

    @abstractmethod
    def _map_values(self, value: Tensor, moments: Tensor) -> Tensor:
        """Map values ``[*B, ...]`` by moments ``[3, ...]``."""

    def _update_and_map(self, key: NestedKey, value: Tensor, rows: Tensor | None = None) -> Tensor:
        """Add the rows of one entry ``[*B, ...]`` to its statistics and map it."""
        statistics = self._buffers[self._names[key]]
        assert statistics is not None
        with self.lock or nullcontext():
            if self.training and not self._frozen:
                add_values(statistics, value, self.decay, rows)
            current = statistics.clone()
        return self._map_values(value, current)

    def _map_entries(self, entries: EntryMapping) -> None:
        for in_key, out_key in self._pairs:
            value = entries.get(in_key)
            if value is not None:
                entries[out_key] = self._update_and_map(in_key, value)
            elif not self._missing_tolerance:
                raise self._missing_key(in_key, entries)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        for in_key in self.in_keys:
            value = read(next_tensordict, in_key)
            if value is not None:
                self._require_for(in_key, value, next_tensordict.ndim)
        self._map_entries(TensorDictEntries(next_tensordict))
        return next_tensordict

    @property
    def _has_statistics(self) -> bool:
        return all(self._buffers[name] is not None for name in self._names.values())

    def make_dict_step(self) -> DictStep | None:
        if not self._has_statistics or self._missing_tolerance:
            return None
        if not are_flat((*self.in_keys, *self.out_keys)):
            return None
        return lambda root, fields: self._map_entries(fields)

    def make_chunk_kernel(self) -> ChunkKernel | None:
        if not self._has_statistics or self._missing_tolerance or self.lock is not None:
            return None  # With a lock, another env may update the statistics between steps.
        reads, writes = tuple(self.in_keys), tuple(self.out_keys)
        return ChunkKernel(self._run_chunk, reads, writes, scan=True)

    def _run_chunk(self, chunk: Chunk) -> None:
        together: list[tuple[NestedKey, NestedKey]] = []
        for pair in self._pairs:
            if any(pair[0] in earlier for earlier in together):
                # It reads what an earlier pair writes, or has the same statistics.
                self._run_pairs(chunk, together)
                together = []
            together.append(pair)
        self._run_pairs(chunk, together)

    def _run_pairs(self, chunk: Chunk, pairs: Sequence[tuple[NestedKey, NestedKey]]) -> None:
        if not self.training or self._frozen:
            for in_key, out_key in pairs:
                statistics = self._buffers[self._names[in_key]]
                assert statistics is not None
                chunk.map(in_key, out_key, partial(self._map_values, moments=statistics))
            return
        entries = []
        for in_key, _ in pairs:
            steps, resets = self._entry(chunk.steps, in_key), chunk.resets.get(in_key)
            statistics = self._buffers[self._names[in_key]]
            assert statistics is not None
            rows = None if resets is None else chunk.reset_rows(in_key, resets)
            entries.append(Observed(statistics, steps, resets, rows))
        moments = moments_over_time(entries, chunk.times, self.decay)
        for (_, out_key), entry, known_of in zip(pairs, entries, moments, strict=True):
            for columns, values, known in zip(
                (chunk.steps, chunk.resets), (entry.steps, entry.resets), known_of, strict=True
            ):
                if values is not None and known is not None:
                    # [3, T, 1..., ...]: the statistics of each step, with 1 for each batch dim.
                    shape = (3, len(values), *[1] * (values.ndim - known.ndim + 1))
                    wide = known.transpose(0, 1).reshape(*shape, *known.shape[2:])
                    columns[out_key] = self._map_values(values, wide)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        for in_key, out_key in self._pairs:
            value = read(tensordict_reset, in_key)
            if value is not None:
                rows = reset_rows(tensordict, in_key, value)
                self._require_for(in_key, value, tensordict_reset.ndim)
                write(tensordict_reset, out_key, self._update_and_map(in_key, value, rows))
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map stored data ``[*B]``, in place; in train mode, update the statistics first."""
        return self._call(tensordict)

    # Statistics

    def _by_key(self, function: Callable[[Tensor], Tensor]) -> TensorDictBase:
        result = TensorDict({})
        with self.lock or nullcontext():
            for key, name in self._names.items():
                held = self._buffers[name]
                if held is not None:
                    result.set(key, function(held))
        return result

    @property
    def loc(self) -> TensorDictBase:
        """Running mean of each in-key, float64; 0 before the first value."""
        return self._by_key(lambda held: mean_and_variance(held)[0])

    @property
    def var(self) -> TensorDictBase:
        """Running variance of each in-key, float64; 1 before the first value."""
        return self._by_key(lambda held: mean_and_variance(held)[1])

    @property
    def scale(self) -> TensorDictBase:
        """Divisor of each in-key, float64."""
        return self._by_key(lambda held: loc_and_scale(held, self.eps, held.dtype)[1])

    @property
    def count(self) -> TensorDictBase:
        """Number of values of each in-key, weighted by ``decay``, float64."""
        return self._by_key(lambda held: held[2].reshape(-1)[0].clone())

    # Freezing and copies

    @property
    def frozen(self) -> bool:
        """True if the statistics are not updated."""
        return self._frozen

    def freeze(self) -> Self:
        """Stop updating the statistics; return this transform."""
        self._frozen = True
        return self

    def unfreeze(self) -> Self:
        """Resume updating the statistics; return this transform."""
        self._frozen = False
        return self

    def frozen_copy(self) -> Self:
        """Return a frozen copy with its own copy of the current statistics.

        Raises:
            ChainError: There are no statistics yet.
        """
        if not self._has_statistics:
            raise ChainError(
                f"{type(self).__name__} has no statistics yet", hint="step its env first"
            )
        copied = self.clone()
        with self.lock or nullcontext():
            for name in self._names.values():
                held = self._buffers[name]
                copied._buffers[name] = None if held is None else held.clone()
        copied.lock = None
        return copied.freeze()

    def _take_lock(self, lock: Lock) -> None:
        """Use a lock shared by all instances that share these statistics, unless one is set."""
        if self.lock is None:
            self.lock = lock

    def __getstate__(self) -> dict[str, Any]:
        # A copy has its own statistics, so it needs no lock, and a lock cannot be pickled.
        return {**super().__getstate__(), "lock": None}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load statistics, also before the first value."""
        for name in self._names.values():
            value = state_dict.get(prefix + name)
            if value is not None and self._buffers[name] is None:
                self._buffers[name] = torch.empty_like(value)
        with self.lock or nullcontext():
            super()._load_from_state_dict(state_dict, prefix, *args)


class RunningNorm(RunningStatistics):
    """Maps values to ``(value - loc) / scale``, both from running statistics.

    A subclass defines :meth:`_loc_and_scale`.

    Args:
        in_keys: Entries to read.
        out_keys: Keys to write; the in-keys by default.
        lock: Lock to hold while statistics are updated or read.
        decay: Factor by which each update multiplies the weight of earlier values.
        eps: Smallest variance or scale.

    Raises:
        ArgumentError: ``decay`` is not in (0, 1], ``eps`` is not above 0, or the numbers of keys
            differ.
    """

    time_behavior = TimeBehavior.SCAN

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None,
        out_keys: Sequence[NestedKey] | None,
        lock: Lock | None,
        decay: float,
        eps: float,
    ) -> None:
        super().__init__(in_keys, out_keys)
        hint = "for example decay=0.9999 and eps=1e-4"
        self.decay = check_positive(decay, "decay", 1.0, hint)
        self.eps = check_positive(eps, "eps", math.inf, hint)
        self.lock = lock

    @abstractmethod
    def _loc_and_scale(self, moments: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return what values ``[*B, ...]`` are mapped by, given moments ``[3, ...]``."""

    def _transform_spec(self, spec: Any) -> TensorSpec:
        return Unbounded(shape=spec.shape, dtype=float_dtype(spec.dtype), device=spec.device)

    def _map_values(self, value: Tensor, moments: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale(moments, float_dtype(value.dtype))
        return (value - loc) / scale

    def _held(self, key: NestedKey) -> Tensor:
        """Return the moments of an in-key, ``[3, ...]``."""
        held = self._buffers[self._names[key]]
        if held is None:
            raise ChainError(
                f"{type(self).__name__} has no statistics yet",
                hint="step its env first",
                where=Where(key=key),
            )
        return held

    @property
    def standard_normal(self) -> bool:
        """Always true, since values are mapped to ``(value - loc) / scale``."""
        return True

    def iter_affine(self) -> Iterator[tuple[NestedKey, NestedKey, Tensor, Tensor]]:
        """Yield in-key, out-key, location and scale of each entry, by the current statistics.

        Raises:
            ChainError: There are no statistics yet.
        """
        for in_key, out_key in self._pairs:
            dtype = self._dtypes.get(in_key, torch.get_default_dtype())
            yield (in_key, out_key, *self._loc_and_scale(self._held(in_key), dtype))

    def __repr__(self) -> str:
        state = ", frozen" if self._frozen else ""
        name = type(self).__name__
        return f"{name}(decay={self.decay:g}, eps={self.eps:g}, keys={self.in_keys}{state})"
