"""Base class of transforms that map a window of the last entries of an episode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms.episodes import Window, known_steps, stored_window
from tdx.core.transforms.families import ObservationTransform
from tdx.core.transforms.kernels import (
    ArrayForm,
    ArrayKernel,
    Chunk,
    ChunkKernel,
    DictStep,
    EntryMapping,
    TensorDictEntries,
    TimeBehavior,
    are_flat,
    implements_together,
    new_column,
    owner,
)
from tdx.core.transforms.scan import follow_device, reset_rows
from tdx.foundation.array_files import Array
from tdx.foundation.errors import KeyNotFoundError, Where
from tdx.foundation.keys import NestedKey, format_key, join_keys, normalize_key, split_key
from tdx.foundation.tensordicts import read, write
from tdx.foundation.torch_internals import unravel_positions
from tdx.specs import Composite


class WindowTransform(ObservationTransform):
    """Maps the last few entries of the episode, oldest first.

    A subclass defines it by the kernel :meth:`_combine`, by :meth:`_combined_shape` and by the
    size and padding of the window. This class derives the eager, dict, chunk and offline forms:
    each collects the window of a step, which never contains entries of another episode, and
    calls the kernel.

    Args:
        in_keys: Entries to read.
        out_keys: Keys to write. ``None``: the in-keys.
        as_inverse: Do nothing in an env, and map stored data in ``inv``.
        reset_key: Reset mask to follow. ``None``: the mask of the entry's group.
        done_key: Done flag under ``next`` that separates stored episodes. ``None``: ``done``.
    """

    time_behavior = TimeBehavior.SCAN
    episode_memory = ("_earlier",)
    _earlier: dict[NestedKey, list[Tensor]]
    _looks_ahead = False
    """True if windows contain the following entries, which only stored data has."""

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        as_inverse: bool = False,
        reset_key: NestedKey | None = None,
        done_key: NestedKey | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.as_inverse = as_inverse
        self.reset_key = None if reset_key is None else normalize_key(reset_key)
        done_key = "done" if done_key is None else done_key
        stored = split_key(done_key)[0] == "next"
        self.done_key: NestedKey = done_key if stored else join_keys("next", done_key)
        if as_inverse:
            self._set_inverse_keys(self.out_keys, self.in_keys)

    @property
    @abstractmethod
    def _size(self) -> int:
        """Number of entries in a window."""

    @property
    @abstractmethod
    def _constant(self) -> float | None:
        """Value before the start of an episode. ``None``: copies of the first entry."""

    @abstractmethod
    def _combine(self, window: Window, out: Tensor | None = None) -> Tensor:
        """Map a window.

        Args:
            window: Entries ``[*L, ...]``, oldest first, with any leading dims.
            out: Tensor to write the result to.
        """

    @abstractmethod
    def _combined_shape(self, shape: torch.Size) -> torch.Size:
        """Return the shape of :meth:`_combine` of entries of this shape."""

    def _pad(self, first: Tensor) -> Tensor:
        """Return the entry that precedes the first one of an episode."""
        return first if self._constant is None else torch.full_like(first, self._constant)

    def _before_reset(self, newest: Tensor) -> Tensor:
        """Return the entry that precedes the first one that was seen, without a reset."""
        return self._pad(newest)

    # Step by step

    def _push(self, in_key: NestedKey, newest: Tensor) -> Tensor:
        """Add an entry to the window of a key and map the window."""
        earlier = self._earlier.get(in_key)
        if earlier is None:
            earlier = [self._before_reset(newest)] * (self._size - 1)
        window = [*earlier, newest]
        self._earlier[in_key] = window[1:]
        return self._combine(window)

    def _map_entries(self, entries: EntryMapping) -> None:
        for in_key, out_key in () if self.as_inverse else self._pairs:
            newest = entries.get(in_key)
            if newest is not None:
                # A copy, since the caller may write to the entry itself.
                entries[out_key] = self._push(in_key, newest.clone())
            elif not self._missing_tolerance:
                raise self._missing_key(in_key, entries)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._map_entries(TensorDictEntries(next_tensordict))
        return next_tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._call(next_tensordict)

    def make_dict_step(self) -> DictStep | None:
        if self.as_inverse or self._missing_tolerance:
            return None
        if not are_flat((*self.in_keys, *self.out_keys)):
            return None
        return lambda root, fields: self._map_entries(fields)

    def _combine_arrays(self, window: list[Array], out: Array) -> None:
        """Write :meth:`_combine` of arrays to another one; overridden only together with it."""
        raise NotImplementedError

    def make_array_kernel(self, in_key: NestedKey, form: ArrayForm) -> ArrayKernel | None:
        memory, combine = self._earlier.get(in_key), self._combine_arrays
        kind, hooks = type(self), ("_combine", "_combined_shape", "_pad", "_before_reset", "_push")
        is_defined = owner(kind, "_combine_arrays") is not WindowTransform
        if not is_defined or not implements_together(kind, "_combine_arrays", hooks):
            return None
        if memory is not None and any(not _has_form(entry, form) for entry in memory):
            return None
        earlier: list[Array] | None = None

        def load() -> None:
            nonlocal earlier
            held = self._earlier.get(in_key)
            earlier = None if held is None else [entry.numpy() for entry in held]

        def run(value: Array, out: Array) -> None:
            nonlocal earlier
            if earlier is None:
                before = self._before_reset(torch.from_numpy(value.copy()))
                earlier = [before.numpy()] * (self._size - 1)
            earlier.append(value)
            combine(earlier, out)
            del earlier[0]

        def store() -> None:
            if earlier is not None:
                # Copies: they outlive the chunk, which a view would keep in memory.
                self._earlier[in_key] = [torch.from_numpy(entry.copy()) for entry in earlier]

        shape = tuple(self._combined_shape(torch.Size(form.shape)))
        return ArrayKernel(ArrayForm(shape, form.dtype), run, load, store)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        for in_key, out_key in () if self.as_inverse else self._pairs:
            first = read(tensordict_reset, in_key)
            if first is None:
                if self._missing_tolerance:
                    continue
                raise self._missing_key(in_key, tensordict_reset)
            first = first.clone()
            window = [*[self._pad(first)] * (self._size - 1), first]
            earlier, before = window[1:], self._earlier.get(in_key)
            rows = reset_rows(tensordict, self.reset_key or in_key, first)
            if rows is not None and before is not None:
                pairs = zip(earlier, before, strict=True)
                earlier = [new.where(rows, old) for new, old in pairs]
            self._earlier[in_key] = earlier
            write(tensordict_reset, out_key, self._combine(window))
        return tensordict_reset

    # Over a chunk

    def make_chunk_kernel(self) -> ChunkKernel | None:
        if self.as_inverse:
            return ChunkKernel(lambda chunk: None)
        if self._missing_tolerance:
            return None
        return ChunkKernel(self._run_chunk, tuple(self.in_keys), tuple(self.out_keys), scan=True)

    def _run_chunk(self, chunk: Chunk) -> None:
        for in_key, out_key in self._pairs:
            entries = chunk.steps.get(in_key)
            if entries is None:
                raise self._missing_key(in_key, chunk.steps)
            earlier = self._earlier.get(in_key)
            if earlier is None:
                earlier = [self._before_reset(entries[0])] * (self._size - 1)
            parts = [*(entry.unsqueeze(0) for entry in earlier), entries]
            pool = None
            if not any(part.requires_grad for part in parts):
                shape = self._size - 1 + chunk.length, *entries.shape[1:]
                pool = new_column(shape, entries, batch_dims=0)
            pool = torch.cat(parts, out=pool)
            # Step t sees the rows t to t + size - 1 of the pool.
            window = [pool[first : first + chunk.length] for first in range(self._size)]
            if any(column.requires_grad for column in window):
                result = self._combine(window)
            else:
                shape = tuple(self._combined_shape(entries.shape))
                result = self._combine(window, new_column(shape, entries, len(chunk.batch_size)))
            # Copies: they outlive the chunk, which a view would keep in memory.
            newest = [entry[-1].clone() for entry in window[1:]]
            if chunk.times:
                self._repair_after_resets(chunk, in_key, pool, result, newest)
                first = chunk.resets[in_key]
                padded = [*[self._pad(first)] * (self._size - 1), first]
                chunk.resets[out_key] = self._combine(padded)
            self._earlier[in_key] = newest
            chunk.steps[out_key] = result

    def _repair_after_resets(
        self, chunk: Chunk, in_key: NestedKey, pool: Tensor, result: Tensor, newest: list[Tensor]
    ) -> None:
        """Recompute, in place, what was mapped from windows that reach across a reset.

        Args:
            chunk: Chunk with resets.
            in_key: Key of the entries.
            pool: Entries before and in the chunk, ``[size - 1 + T, *B, ...]``.
            result: Mapped windows of the steps, ``[T, *B, ...]``; written to.
            newest: Newest ``size - 1`` entries after the chunk, ``[*B, ...]``; written to.
        """
        batch, count = chunk.batch_size, chunk.batch_size.numel()
        resets, rows, steps = self._steps_after_resets(chunk, in_key)
        if not len(steps):
            return
        first = chunk.resets[in_key]
        feature = first.shape[1 + len(batch) :]
        fresh = first.reshape(len(chunk.times) * count, *feature)[resets * count + rows]
        age = steps - torch.tensor(chunk.times, device=steps.device)[resets]
        # For each entry of each window, [size, N]: its place in the pool, and its age.
        back = torch.arange(self._size - 1, -1, -1, device=steps.device).unsqueeze(1)
        places = (steps - back + self._size - 1) * count + rows
        since = (age - back).reshape(self._size, -1, *[1] * len(feature))
        entries = pool.reshape(len(pool) * count, *feature)[places]
        entries = entries.where(since >= 0, self._pad(fresh)).where(since != -1, fresh)
        window = list(entries.unbind(0))
        result[(steps, *unravel_positions(rows, batch))] = self._combine(window)
        if chunk.times[-1] + self._size > chunk.length:
            is_last = steps == chunk.length - 1
            for kept, entry in zip(newest, window[1:], strict=True):
                kept.view(count, *feature)[rows[is_last]] = entry[is_last]

    def _steps_after_resets(self, chunk: Chunk, in_key: NestedKey) -> tuple[Tensor, Tensor, Tensor]:
        """Return the steps whose window reaches across a reset.

        They are the index of the last reset, the flat index of the row, and the index of the step:
        int64 ``[N]`` each.
        """
        first, batch = chunk.resets[in_key], chunk.batch_size
        times = torch.tensor(chunk.times, device=first.device)
        like = first.reshape(len(times), *batch, -1)[..., 0]
        mask = chunk.reset_rows(self.reset_key or in_key, like).expand(len(times), *batch)
        mask = mask.reshape(len(times), -1)
        # From each reset on, the reset of the same row that follows, or the end of the chunk.
        when = torch.where(mask, times.unsqueeze(1), chunk.length)
        following = when.flip(0).cummin(0).values.flip(0)[1:]
        until = torch.cat((following, torch.full_like(when[:1], chunk.length)))
        resets, rows = mask.nonzero(as_tuple=True)
        ages = torch.arange(self._size - 1, device=first.device)
        steps = times[resets].unsqueeze(1) + ages
        inside = steps < until[resets, rows].unsqueeze(1)
        wide = (index.unsqueeze(1).expand(steps.shape)[inside] for index in (resets, rows))
        return next(wide), next(wide), steps[inside]

    # Stored data

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map the windows of a stored rollout, at the root and in ``next``, in place.

        An in-key that begins with ``next`` has a single output under its out-key; earlier
        entries are read at the root. With ``as_inverse`` the data is mapped already and returned
        unchanged.

        Args:
            tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

        Raises:
            ArgumentError: The data has no time dim.
            KeyNotFoundError: An entry is missing, or both the done key and ``is_init`` are.
        """
        return tensordict if self.as_inverse else self._map_stored(tensordict)

    def _map_stored(self, tensordict: TensorDictBase) -> TensorDictBase:
        names = tensordict.names if tensordict.ndim else []
        if "time" in names[:-1]:
            last, time = tensordict.ndim - 1, names.index("time")
            moved = self._map_stored(tensordict.transpose(time, last).copy())
            return tensordict.update(moved.transpose(time, last))
        known = known_steps(tensordict, self.done_key, self._looks_ahead)
        results: dict[NestedKey, Tensor] = {}
        for in_key, out_key in self._pairs:
            parts = split_key(in_key)
            root_key = normalize_key(parts[1:]) if parts[0] == "next" else in_key
            if self._looks_ahead:
                root_key = in_key
            newest, root = read(tensordict, in_key), read(tensordict, root_key)
            if newest is None and self._missing_tolerance:
                continue
            if newest is None:
                raise self._missing_key(in_key, tensordict)
            if root is None:
                raise KeyNotFoundError(
                    f"a window of {format_key(in_key)!r} starts with the entry of the reset, which "
                    f"is stored as {format_key(root_key)!r} at the root",
                    hint=f"keep {format_key(root_key)!r} in the stored data",
                    where=Where(key=root_key, transform=type(self).__name__),
                )
            results[out_key] = self._map_windows(newest, root, known, int(root_key != in_key))
            next_key = join_keys("next", in_key)
            following = None if next_key in self.in_keys else read(tensordict, next_key)
            if following is not None and root_key == in_key and not self._looks_ahead:
                next_out = join_keys("next", out_key)
                results[next_out] = self._map_windows(following, root, known, 1)
        # Written last, since an in-key may be the out-key of another.
        for key, value in results.items():
            tensordict.set(key, value)
        return tensordict

    def _map_windows(self, newest: Tensor, root: Tensor, known: Tensor, ahead: int) -> Tensor:
        """Map the windows of a stored rollout, see :func:`stored_window`."""
        pad = None if self._constant is None else self._pad
        forward = self._looks_ahead
        return self._combine(
            stored_window(newest, root, known, self._size, ahead=ahead, forward=forward, pad=pad)
        )

    unfolding = forward

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._map_stored(tensordict) if self.as_inverse else tensordict

    @property
    def invertible(self) -> bool:
        """True with ``as_inverse``."""
        return self.as_inverse

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec unchanged."""
        return input_spec

    # State

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for earlier in self._earlier.values():
            earlier[:] = [follow_device(entry, fn) for entry in earlier]
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        earlier = {key: [entry.detach() for entry in kept] for key, kept in self._earlier.items()}
        return {**super().__getstate__(), "_earlier": earlier}


def _has_form(entry: Tensor, form: ArrayForm) -> bool:
    """Return True if a tensor can be used as an array of a form."""
    return (
        entry.device.type == "cpu"
        and not entry.requires_grad
        and tuple(entry.shape) == form.shape
        and entry.numpy().dtype == form.dtype
    )
