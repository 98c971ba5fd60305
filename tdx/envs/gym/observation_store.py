"""Memory for the observations of a chunk: an array, or one array per entry of a Dict."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol, overload

import numpy as np
import torch

from tdx.core.planned.columns import flatten
from tdx.core.planned.immediate import iter_rows
from tdx.core.transforms.kernels import ArrayForm, Columns
from tdx.envs.gym.conversion import Conversion, EntryForm, EntryPart
from tdx.envs.gym.interface import Batch, DType
from tdx.envs.gym.values import WrongValueError, find_lost_number
from tdx.foundation.array_files import Array
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import new_tensordict
from tdx.specs.arguments import Value

Put = Callable[[int, Any], None]
Read = Callable[[], dict[NestedKey, Value]]
Arrays = MutableMapping[NestedKey, Array]


class ObservationStore(Protocol):
    """Memory for observations of many steps."""

    def putter(self, widens: bool = True) -> Put:
        """Return the function that stores an observation at a position, in order, from 0.

        The function raises ``WrongValueError`` for an observation that is not in the space. If it
        ``widens``, float64 values of a float32 space are stored as they are; :meth:`rows` converts
        them together, which costs less than a conversion in each step.
        """

    @property
    def forms(self) -> Mapping[NestedKey, ArrayForm]:
        """Form of each entry that is stored as an array, by key."""

    def reader(self, rows: int | None, arrays: Arrays, wanted: Collection[NestedKey]) -> Read:
        """Return the function that returns the entries of the next step, ``[*B, ...]``.

        It needs a putter that does not widen.

        Args:
            rows: Number of observations of a step. ``None``: one, without a batch dim.
            arrays: Where it puts the arrays of the step, by key.
            wanted: Keys of which tensors are needed; entries of others may be missing.
        """

    def rows(self, length: int) -> Batch:
        """Return the first observations, in the dtypes of the space."""


def create_store(conversion: Conversion, length: int) -> ObservationStore:
    """Return memory for ``length`` observations."""
    if conversion.array is not None:
        return ArrayStore(conversion.array, length)
    if conversion.entries:
        return EntryStore(conversion.entries, conversion.observation.encode, length)
    return EncodedStore(conversion.observation.encode)


_DOUBLE = np.dtype(np.float64)


class ArrayStore:
    """Memory for observations that are single arrays.

    Float64 observations of a float32 space are stored as they are and converted together by
    :meth:`rows`, which costs less than a conversion in each step.
    """

    def __init__(self, form: EntryForm, length: int) -> None:
        self._form = form
        self._rows: Array = np.empty((length, *form.shape), form.dtype)

    @property
    def forms(self) -> Mapping[NestedKey, ArrayForm]:
        return {self._form.key: ArrayForm(self._form.shape, self._form.dtype)}

    def putter(self, widens: bool = True) -> Put:
        shape, convert = self._form.shape, self._form.convert
        rows, dtype = self._rows, self._form.dtype

        def put(position: int, observation: Any) -> None:
            nonlocal rows, dtype
            try:
                if observation.dtype is dtype and observation.shape == shape:
                    rows[position] = observation
                    return
                if not position and widens and _is_wider(observation.dtype, dtype):
                    dtype = observation.dtype
                    self._rows = rows = np.empty(rows.shape, dtype)
                    # Not by a call of `put`: a closure that refers to itself would keep the rows
                    # of the chunk until a garbage collection.
                    if observation.shape == shape:
                        rows[position] = observation
                        return
            except AttributeError:
                pass
            rows[position] = convert(observation)

        return put

    def reader(self, rows: int | None, arrays: Arrays, wanted: Collection[NestedKey]) -> Read:
        key: NestedKey = self._form.key
        block = self._rows if rows is None else split_rows(self._rows, rows)
        tensors, views = iter_rows(torch.from_numpy(block)), iter(block)

        def read_array() -> dict[NestedKey, Value]:
            arrays[key] = next(views)
            return {}

        def read() -> dict[NestedKey, Value]:
            arrays[key] = next(views)
            return {key: next(tensors)}

        return read if key in wanted else read_array

    def rows(self, length: int) -> Array:
        """See :class:`ObservationStore`; the observations are one array ``[length, ...]``."""
        form, rows = self._form, self._rows[:length]
        if rows.dtype == form.dtype:
            return rows
        with np.errstate(over="ignore"):
            converted = rows.astype(form.dtype)
        lost = find_lost_number(rows, converted)
        if lost is None:
            return converted
        index = lost // max(math.prod(form.shape), 1)
        try:
            form.convert(rows[index])
        except WrongValueError as wrong:
            wrong.index = index
            raise
        raise AssertionError("the conversion of a single row did not fail")


def split_rows(column: Array, rows: int) -> Array:
    """Return the observations ``[T * n, ...]`` of ``n`` envs by step, ``[T, n, ...]``."""
    return column.reshape(-1, rows, *column.shape[1:])


def _is_wider(actual: object, dtype: DType) -> bool:
    return actual is _DOUBLE and dtype.kind == "f" and dtype.itemsize < _DOUBLE.itemsize


class MappedStore(ArrayStore):
    """Memory for images that are mapped to float32 images of a shape when they are stored.

    The second argument of ``function`` is the output array. The last images of ``kept`` envs are
    kept as they are.
    """

    def __init__(
        self,
        form: EntryForm,
        length: int,
        function: Callable[[Array, Array], object],
        shape: tuple[int, ...],
        kept: int,
    ) -> None:
        super().__init__(EntryForm(form.key, shape, np.dtype(np.float32)), length)
        self._source, self._function = form, function
        # Of two steps: an error may leave the newer one incomplete.
        self._kept: Array = np.empty((2, kept, *form.shape), form.dtype)

    def putter(self, widens: bool = True) -> Put:
        check, function, rows = self._source.check, self._function, self._rows
        kept = self._kept.reshape(-1, *self._source.shape)
        ring = len(kept)

        def put(position: int, image: object) -> None:
            checked = check(image)
            function(checked, rows[position])
            if ring:
                kept[position % ring] = checked

        return put

    def last_images(self, count: int) -> Columns:
        """Return the unmapped images of step ``count - 1``, ``[n, ...]``; empty if not kept."""
        if not self._kept.size:
            return {}
        return {self._source.key: torch.from_numpy(self._kept[(count - 1) % 2])}


class EncodedStore:
    """List of observations that are encoded one by one."""

    def __init__(self, encode: Callable[[object], dict[str, Value]]) -> None:
        self._encode = encode
        self._encoded: list[dict[str, Value]] = []

    @property
    def forms(self) -> Mapping[NestedKey, ArrayForm]:
        return {}

    def putter(self, widens: bool = True) -> Put:
        add, encode = self._encoded.append, self._encode
        return lambda position, observation: add(encode(observation))

    def reader(self, rows: int | None, arrays: Arrays, wanted: Collection[NestedKey]) -> Read:
        encoded = self._encoded

        def read() -> dict[NestedKey, Value]:
            last = encoded[-1] if rows is None else stack_entries(encoded[-rows:])
            if all(isinstance(value, torch.Tensor) for value in last.values()):
                return {key: value for key, value in last.items()}  # noqa: C416 - widens the key
            return flatten(new_tensordict(last, torch.Size(() if rows is None else (rows,)), None))

        return read

    def rows(self, length: int) -> Sequence[dict[str, Value]]:
        return self._encoded[:length]


class EntryStore:
    """Memory for observations of a Dict space.

    An entry that is an array is stored in an array of its own, any other in a list.
    """

    def __init__(
        self, parts: Sequence[EntryPart], encode: Callable[[object], object], length: int
    ) -> None:
        self._parts, self._encode = parts, encode
        self._stores: dict[str, ArrayStore | EncodedStore] = {
            part.key: EncodedStore(part.encode_entry)
            if part.form is None
            else ArrayStore(part.form, length)
            for part in parts
        }

    @property
    def forms(self) -> Mapping[NestedKey, ArrayForm]:
        return {key: form for store in self._stores.values() for key, form in store.forms.items()}

    def putter(self, widens: bool = True) -> Put:
        puts = [(part.name, self._stores[part.key].putter(widens)) for part in self._parts]

        def put(position: int, observation: Any) -> None:
            try:
                for name, put_entry in puts:
                    put_entry(position, observation[name])
            except WrongValueError:
                raise
            except Exception:
                # It raises an error that names the entry.
                self._encode(observation)
                raise

        return put

    def reader(self, rows: int | None, arrays: Arrays, wanted: Collection[NestedKey]) -> Read:
        readers = [store.reader(rows, arrays, wanted) for store in self._stores.values()]

        def read() -> dict[NestedKey, Value]:
            fields: dict[NestedKey, Value] = {}
            for read_entry in readers:
                fields.update(read_entry())
            return fields

        return read

    def rows(self, length: int) -> EntryRows:
        columns: dict[str, Array | Sequence[Value]] = {}
        for key, store in self._stores.items():
            if isinstance(store, ArrayStore):
                columns[key] = store.rows(length)
            else:
                columns[key] = [encoded[key] for encoded in store.rows(length)]
        return EntryRows(columns, range(length))


class EntryRows(Sequence[Mapping[str, Value]]):
    """Observations of a Dict space by entry: arrays ``[T, ...]`` or lists of encoded values."""

    def __init__(self, columns: Mapping[str, Array | Sequence[Value]], places: range) -> None:
        self._columns, self._places = columns, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> dict[str, Value]: ...

    @overload
    def __getitem__(self, index: slice) -> EntryRows: ...

    def __getitem__(self, index: int | slice) -> dict[str, Value] | EntryRows:
        if isinstance(index, slice):
            return EntryRows(self._columns, self._places[index])
        place = self._places[index]
        return {key: as_entry(column[place]) for key, column in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return (self[index] for index in range(len(self)))

    def stack(self) -> dict[str, Value]:
        """Return the entries of all observations by key, ``[T, ...]`` each."""
        first, stop = self._places.start, self._places.stop
        parts = {key: column[first:stop] for key, column in self._columns.items()}
        return {
            key: as_entry(part) if isinstance(part, np.ndarray) else torch.stack(list(part))
            for key, part in parts.items()
        }


def stack_entries(encoded: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Stack encoded observations to entries ``[T, ...]``."""
    return {key: torch.stack([entries[key] for entries in encoded]) for key in encoded[0]}


def as_entry(value: Array | Value) -> Value:
    """Return an array as a tensor, and an encoded value unchanged."""
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
