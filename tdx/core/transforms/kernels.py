"""Kernels of transforms, and what they are applied to: TensorDicts, plain dicts and chunks.

A transform maps the entries of an :class:`EntryMapping`: a TensorDict (:class:`TensorDictEntries`),
the plain dict of a step, or the columns of a :class:`Chunk`, which is a block of time steps.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask, mask_for_entry
from tdx.core.envs.failures import note_key
from tdx.core.transforms.spec_maps import missing_key_error
from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, StoredDataError
from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.foundation.tensordicts import read, write

Kernel = Callable[[Any], Any]


class EntryMapping(Protocol):
    """Values by key."""

    def get(self, key: Any, /) -> Any:
        """Return the value under a key in normal form; ``None`` if it is missing."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...

    def __delitem__(self, key: Any, /) -> None: ...

    def keys(self) -> Iterable[Any]:
        """Return the keys of all values."""


class TensorDictEntries:
    """The leaves of a TensorDict as entries; a nested one has a tuple as its key."""

    __slots__ = ("_tensordict",)

    def __init__(self, tensordict: TensorDictBase) -> None:
        self._tensordict = tensordict

    def get(self, key: NestedKey, /) -> Any:
        return read(self._tensordict, key)

    def __setitem__(self, key: NestedKey, value: Any) -> None:
        write(self._tensordict, key, value)

    def __delitem__(self, key: NestedKey) -> None:
        self._tensordict.del_(key)

    def keys(self) -> Iterable[NestedKey]:
        return map(normalize_key, self._tensordict.keys(True, True))


DictStep = Callable[[EntryMapping, EntryMapping], None]
"""A step on plain dicts of root entries: reads the step's input, writes to its output."""
MissingKey = Callable[[NestedKey, Any], KeyNotFoundError]


class TimeBehavior(Enum):
    """Which time steps the output of a transform depends on; decides when it can run.

    ``POINTWISE``: each step is mapped independently, with any number of leading dims. ``SCAN``:
    a step depends on earlier steps of the same episode. ``CONTROL``: the transform influences
    later steps, or nothing is known about it.
    """

    POINTWISE = "pointwise"
    SCAN = "scan"
    CONTROL = "control"


# Chunks

Columns = dict[NestedKey, Tensor]

_HUGE_PAGE = 2**21
_LARGE = _HUGE_PAGE
"""Columns of this many bytes get huge pages."""


def new_column(shape: tuple[int, ...], like: Tensor, batch_dims: int) -> Tensor:
    """Return an uninitialized column of a rollout, ``[T, *B, ...]``, like another tensor.

    It is contiguous once time is moved behind the batch dims, so that the rollout needs no copy.
    Large ones get huge pages: on Linux the first write to 113 kB of new memory takes 37 us in small
    pages and 4 us in huge ones. With small pages a rollout of Pong with stacked frames takes 1.27
    times as long (``python -m tests.benchmarks.forms``).
    """
    length, batch, rest = shape[0], shape[1 : batch_dims + 1], shape[batch_dims + 1 :]
    shape = (*batch, length, *rest)
    size = like.itemsize * math.prod(shape)
    if like.device.type != "cpu" or size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(shape).movedim(batch_dims, 0)
    # One page more than needed, since the memory begins at any small page.
    pages = -(-size // _HUGE_PAGE) + 1
    memory = mmap.mmap(-1, pages * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # A kernel without huge pages.
        memory.madvise(mmap.MADV_HUGEPAGE)
    block = torch.frombuffer(memory, dtype=torch.uint8)
    start = -block.data_ptr() % _HUGE_PAGE
    block = block[start : start + size].view(like.dtype).view(shape)
    return block.movedim(batch_dims, 0)


@dataclass(slots=True)
class Chunk:
    """Entries of ``T`` consecutive steps, and of the resets between them, by key.

    A reset applies to the rows of its mask. In the other rows its entries contain any valid
    value, which is never used.

    Args:
        length: Number of steps, ``T``.
        batch_size: Batch size of the env, ``[*B]``.
        first: Entries of the root before the first step, ``[*B, ...]``.
        steps: Outputs of the steps, ``[T, *B, ...]``.
        resets: Outputs of the resets, ``[R, *B, ...]``.
        times: Step that follows each reset, ascending, from 1. Length ``R``.
        masks: Reset masks by key, ``[R, *B, ..., 1]``.
    """

    length: int
    batch_size: torch.Size
    first: Mapping[NestedKey, Tensor]
    steps: Columns = field(default_factory=dict)
    resets: Columns = field(default_factory=dict)
    times: tuple[int, ...] = ()
    masks: Columns = field(default_factory=dict)

    def map(
        self, in_key: NestedKey, out_key: NestedKey, function: Callable[[Tensor], Tensor]
    ) -> None:
        """Write a function of one entry (any leading dims) under another key: steps and resets.

        The steps have the entry; the resets may not.
        """
        self.steps[out_key] = function(self.steps[in_key])
        value = self.resets.get(in_key)
        if value is not None:
            self.resets[out_key] = function(value)

    def reset_rows(self, key: NestedKey, like: Tensor) -> Tensor:
        """Return the rows of each reset as a mask that broadcasts to ``like``, ``[R, *B, ...]``.

        :func:`mask_for_entry` decides, as for the env's entries. Without a mask, each reset
        applies to all rows.
        """
        lead = 1 + len(self.batch_size)
        mask = mask_for_entry(key, self.masks, lead)
        if mask is None:
            mask = torch.ones(like.shape[:lead], dtype=torch.bool, device=like.device)
        return expand_mask(mask, like, lead)

    def segments(self) -> Iterator[tuple[int, int, int | None]]:
        """Yield each run of steps without a reset: start, stop, index of the reset before it."""
        starts = (0, *self.times)
        stops = (*self.times, self.length)
        for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            yield start, stop, index - 1 if index else None


ChunkFunction = Callable[[Chunk], None]


@dataclass(frozen=True, slots=True)
class ChunkKernel:
    """A stage as a function of a chunk, and the entries that it accesses.

    Args:
        run: Does to a chunk, in place, what the data hooks do step by step, and leaves the
            transform in the same state.
        reads: Entries of a step's output that it reads.
        writes: Entries that it writes.
        drops: Entries that it removes.
        root: Entries of a step's input that it reads: its own outputs of the step before.
        scan: True if it depends on earlier steps.
    """

    run: ChunkFunction
    reads: tuple[NestedKey, ...] = ()
    writes: tuple[NestedKey, ...] = ()
    drops: tuple[NestedKey, ...] = ()
    root: tuple[NestedKey, ...] = ()
    scan: bool = False


# Arrays of one step


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """Shape and dtype of an array.

    Args:
        shape: Shape, ``[*B, ...]``.
        dtype: Dtype.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def no_state() -> None:
    """Do nothing: a kernel without state has nothing to load or store."""


@dataclass(frozen=True, slots=True)
class ArrayKernel:
    """The step of a stage on one array, whose result is written to given memory.

    An operation on a few numbers costs NumPy a third of what it costs torch. The result has the
    bits of the stage's other forms.

    Args:
        form: Form of the result.
        run: Maps an array to its second argument. Both are kept unchanged until the next
            :attr:`store`, so it may hold on to them.
        load: Takes the state from the transform: called before the first step and after a reset.
        store: Returns the state to the transform: called before a reset and after the last step.
    """

    form: ArrayForm
    run: Callable[[Array, Array], None]
    load: Callable[[], None] = no_state
    store: Callable[[], None] = no_state


# Faster forms of a hook


def implements_together(kind: type, form: str, hooks: tuple[str, ...]) -> bool:
    """Return True if no subclass overrides a hook below the class that implements a form of it.

    A faster form of a hook is valid as long as it and the hook come from the same class, or the
    form from a subclass.
    """
    return all(issubclass(owner(kind, form), owner(kind, hook)) for hook in hooks)


def owner(kind: type, name: str) -> type:
    """Return the class in the MRO that defines an attribute."""
    return next(base for base in kind.__mro__ if name in vars(base))


@dataclass(frozen=True, slots=True)
class StepLimit:
    """Declares that a stage ends each episode after a number of steps."""

    most: int
    count_key: NestedKey
    done_key: NestedKey
    # Returns the last count, for inputs of a step that do not contain it.
    remembered: Callable[[], Tensor | None]

    def counted(self, root: Mapping[NestedKey, Tensor]) -> Tensor | None:
        """Return the number of steps so far, ``[*B, ..., 1]``; ``None`` before any reset."""
        count = root.get(self.count_key)
        return self.remembered() if count is None else count


# One kernel over TensorDicts, dicts and chunks


def map_entries(
    entries: EntryMapping,
    pairs: Iterable[tuple[NestedKey, NestedKey]],
    kernel: Kernel,
    missing: MissingKey | None = None,
) -> None:
    """Map entries in place; skip missing ones, or raise the error of ``missing``."""
    for source, target in pairs:
        value = entries.get(source)
        if value is None:
            if missing is None:
                continue
            raise missing(source, entries)
        try:
            entries[target] = kernel(value)
        except Exception as error:
            note_key(error, source)
            raise


def are_flat(keys: Iterable[NestedKey | None]) -> bool:
    """Return True if no key is nested, so that the dict of a step holds each of them."""
    return not any(isinstance(key, tuple) for key in keys)


def call_with_tensors(
    function: Callable[[TensorDictBase], TensorDictBase],
    in_keys: Sequence[NestedKey],
    out_keys: Sequence[NestedKey],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function of a TensorDict with bare tensors ``[*B, ...]``; return each out-key.

    A name in ``kwargs`` is one of ``in_keys``, with the parts of a nested key joined by ``_``.
    """
    names = {"_".join(split_key(key)): key for key in in_keys}
    given = dict(zip(names.values(), args, strict=False))
    unknown = [name for name in kwargs if name not in names]
    if len(args) > len(names) or unknown:
        hint = f"its arguments are {', '.join(names)}" if names else "call it with a TensorDict"
        if unknown:
            raise ArgumentError(f"unknown argument {unknown[0]!r}", hint=hint)
        error = ArgumentError if names else StoredDataError
        raise error(f"it takes {len(names)} tensors, got {len(args)}", hint=hint)
    given |= {names[name]: value for name, value in kwargs.items()}
    absent = [key for key in in_keys if key not in given]
    if absent:
        raise missing_key_error(absent[0], list(given), "the call")
    result = function(TensorDict(given).auto_batch_size_())
    for key in out_keys:
        if read(result, key) is None:
            known = list(result.keys(True, True))
            raise missing_key_error(key, known, "the output of the transform")
    values = tuple(read(result, key) for key in out_keys)
    return values[0] if len(values) == 1 else values
