"""Memory for the observations of a chunk: an array, or one array per entry of a Dict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

import numpy as np
import torch

from tdx.envs.gym.conversion import ArrayForm, Conversion, EntryPart
from tdx.envs.gym.numeric_spaces import Array
from tdx.envs.gym.values import WrongValueError, find_lost_number

Put = Callable[[int, Any], Any]


class ObservationStore(Protocol):
    """Memory for observations of many steps."""

    def putter(self) -> Put:
        """Return the function that stores an observation at a position.

        The function raises ``WrongValueError`` for an observation that is not in the space.
        Positions are written in order, from 0.
        """

    def rows(self, length: int) -> Sequence[Any]:
        """Return the first observations, in the dtypes of the space.

        Raises:
            WrongValueError: A number does not fit the dtype; ``index`` is its position.
        """


def create_store(conversion: Conversion, length: int) -> ObservationStore | None:
    """Return memory for ``length`` observations; ``None`` if none of them contains an array."""
    if conversion.array is not None:
        return ArrayStore(conversion.array, length)
    if any(part.form is not None for part in conversion.entries):
        return EntryStore(conversion, length)
    return None


_DOUBLE = np.dtype(np.float64)


class ArrayStore:
    """Memory for observations that are single arrays.

    Float64 observations of a float32 space are stored as they are and converted together by
    :meth:`rows`, which costs less than a conversion in each step.

    Args:
        form: Form of the observation.
        length: Number of observations.
    """

    def __init__(self, form: ArrayForm, length: int) -> None:
        self._form = form
        self._rows: Array = np.empty((length, *form.shape), form.dtype)

    def putter(self) -> Put:
        """See :class:`ObservationStore`."""
        shape, convert = self._form.shape, self._form.convert
        rows, dtype = self._rows, self._form.dtype

        def put(position: int, observation: Any) -> None:
            nonlocal rows, dtype
            try:
                if observation.dtype is dtype and observation.shape == shape:
                    rows[position] = observation
                    return
                if not position and _is_wider(observation.dtype, dtype):
                    dtype = observation.dtype
                    self._rows = rows = np.empty(rows.shape, dtype)
                    put(position, observation)
                    return
            except AttributeError:
                pass
            rows[position] = convert(observation)

        return put

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


def _is_wider(found: object, dtype: np.dtype[Any]) -> bool:
    return found is _DOUBLE and dtype.kind == "f" and dtype.itemsize < _DOUBLE.itemsize


class EntryStore:
    """Memory for observations of a Dict space.

    An entry that is an array is stored in an array of its own, any other in a list.

    Args:
        conversion: Conversion of the observations.
        length: Number of observations.
    """

    def __init__(self, conversion: Conversion, length: int) -> None:
        self._encode = conversion.observation.encode
        self._parts = conversion.entries
        self._stores: dict[str, ArrayStore] = {}
        self._lists: dict[str, list[Any]] = {}
        for part in self._parts:
            if part.form is None:
                self._lists[part.key] = []
            else:
                self._stores[part.key] = ArrayStore(part.form, length)

    def putter(self) -> Put:
        """See :class:`ObservationStore`."""
        puts = [(part.name, self._entry_putter(part)) for part in self._parts]

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

    def _entry_putter(self, part: EntryPart) -> Put:
        if part.form is not None:
            return self._stores[part.key].putter()
        add, encode, key = self._lists[part.key].append, part.encode, part.key

        def put(position: int, value: Any) -> None:
            try:
                add(encode(value))
            except WrongValueError as wrong:
                raise wrong.below(key) from None

        return put

    def rows(self, length: int) -> EntryRows:
        """See :class:`ObservationStore`."""
        columns: dict[str, Sequence[Any]] = {}
        for part in self._parts:
            store = self._stores.get(part.key)
            columns[part.key] = self._lists[part.key] if store is None else store.rows(length)
        return EntryRows(columns, range(length))


class EntryRows(Sequence[Mapping[str, Any]]):
    """Observations of a Dict space, stored by entry.

    Args:
        columns: Array ``[T, ...]`` or list of encoded values of each entry.
        places: Places of the observations in the columns.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], places: range) -> None:
        self._columns, self._places = columns, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> EntryRows: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | EntryRows:
        if isinstance(index, slice):
            return EntryRows(self._columns, self._places[index])
        place = self._places[index]
        return {key: as_entry(column[place]) for key, column in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def stack(self) -> dict[str, Any]:
        """Return the entries of all observations by key, ``[T, ...]`` each."""
        first, stop = self._places.start, self._places.stop
        parts = {key: column[first:stop] for key, column in self._columns.items()}
        return {
            key: as_entry(part) if isinstance(part, np.ndarray) else torch.stack(list(part))
            for key, part in parts.items()
        }


def as_entry(value: Any) -> Any:
    """Return an array as a tensor, and an encoded value unchanged."""
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
