"""Parquet: one row per step of each env, with its episode and its step in the episode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tdx.foundation.array_files import (
    FORGED,
    MAX_COLUMNS,
    MAX_NOTE_BYTES,
    ZSTD_RATIO,
    Array,
    FileColumn,
    array_bytes,
    check_expansion,
)
from tdx.foundation.errors import StorageError
from tdx.foundation.text import dtype_name
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats.export_source import EpisodeLookup, ExportSource, name_columns
from tdx.rollouts.formats.files import is_numeric, parse_note, to_array
from tdx.rollouts.formats.interface import NOTE, ColumnReader, ExportColumn, ExportOptions, Format

if TYPE_CHECKING:
    import pyarrow as pa

format = Format(
    name="parquet",
    title="a table with one row per step, for pyarrow, pandas, Polars and DuckDB",
    suffixes=(".parquet", ".pq"),
    packages=("pyarrow",),
    extra="parquet",
)


_READ_ROWS, _READ_BYTES = 4096, 2**26
_PANDAS_INDEX = "__index_level_"


def name_index_columns(names: Sequence[str], is_batched: bool) -> dict[str, str]:
    """Return unused names for the columns ``env``, ``episode`` and ``step``."""
    found = {}
    for name in (*(["env"] if is_batched else []), "episode", "step"):
        free = name
        while free in names:
            free += "_"
        found[name] = free
    return found


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one row per step of each env, and the note as metadata of the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = name_columns(source.manifest)
    index = name_index_columns([column.name for column in columns], bool(source.batch_size))
    fields = [pa.field(index[name], pa.int64()) for name in index]
    fields += [_field(source, column) for column in columns]
    schema = pa.schema(fields, metadata={NOTE: source.note_text(columns)})
    clock = EpisodeLookup(source.episodes, source.rows)
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for start, leaves in source.blocks(DATA):
            steps = len(next(iter(leaves.values())))
            arrays = [pa.array(numbers) for numbers in _index(source, clock, start, steps)]
            arrays += [
                _arrow(
                    to_array(leaves[column.path], splits_complex=True),
                    schema.field(column.name),
                    steps * source.rows,
                )
                for column in columns
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return ()


def check(path: Path) -> None:
    """Read back the end, which describes the columns.

    Raises:
        OSError: It is missing.
        ValueError: It is damaged.
    """
    import pyarrow.parquet as pq

    pq.read_metadata(path)


def _field(source: ExportSource, column: ExportColumn) -> pa.Field:
    import pyarrow as pa

    dtype, step = source.data.leaves[column.path][0], source.step_array(column.path)
    size = math.prod(step.shape)
    # Parquet cannot read back lists of length 0.
    single = pa.from_numpy_dtype(step.dtype) if size else pa.null()
    metadata = {"shape": str(list(step.shape)), "dtype": dtype_name(dtype)}
    return pa.field(column.name, single if size <= 1 else pa.list_(single, size), metadata=metadata)


def _index(source: ExportSource, clock: EpisodeLookup, start: int, steps: int) -> list[Array]:
    episodes, counts = (numbers.reshape(-1) for numbers in clock.read(start, steps))
    if not source.batch_size:
        return [episodes, counts]
    return [np.tile(np.arange(source.rows), steps), episodes, counts]


def _arrow(array: Array, field: pa.Field, rows: int) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_null(field.type):
        return pa.nulls(rows)
    flat = pa.array(array.reshape(-1))
    if pa.types.is_fixed_size_list(field.type):
        return pa.FixedSizeListArray.from_arrays(flat, type=field.type)
    return flat


@contextmanager
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a file, and read its schema."""
    import pyarrow.parquet as pq

    limits = {"thrift_string_size_limit": MAX_NOTE_BYTES, "thrift_container_size_limit": 10**6}
    with _reading(f"{path} is not a Parquet file", "the file may be truncated"):
        file = pq.ParquetFile(path, **limits)
    with file:
        yield _ParquetReader(path, file)


@contextmanager
def _reading(message: str, hint: str = "export it again") -> Iterator[None]:
    """Turn the errors of Arrow about a damaged file into one error."""
    import pyarrow as pa

    try:
        yield
    except StorageError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, MemoryError) as error:
        raise StorageError(message, hint=hint) from error


class _ParquetReader(ColumnReader):
    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        with _reading(f"the schema of {path} is damaged"):
            self._schema = file.schema_arrow
            text = (self._schema.metadata or {}).get(NOTE.encode())
        _check_sizes(path, file.metadata)
        self.note = None if text is None else parse_note(text, path)
        self._envs = 1
        if self.note is not None:
            self._envs = math.prod(self.note["manifest"]["batch_size"])
        self._batches: Iterator[Any] | None = None
        self._left: list[Any] = []
        self._columns: dict[str, FileColumn] = {}
        with _reading(f"the schema of {path} is damaged"):
            steps = file.metadata.num_rows // self._envs
            for field in self._schema:
                if not field.name.startswith(_PANDAS_INDEX):
                    kind, width = self._kind(field)
                    self._columns[field.name] = FileColumn(kind, (steps, *width))
        numbers = (column for column in self._columns.values() if is_numeric(column.dtype))
        claimed = sum(array_bytes(number.shape, number.dtype, str(path)) for number in numbers)
        check_expansion(claimed, path.stat().st_size, ZSTD_RATIO, str(path))

    def columns(self) -> Mapping[str, FileColumn]:
        return self._columns

    def _kind(self, field: pa.Field) -> tuple[Any, tuple[int, ...]]:
        import pyarrow as pa

        kind = field.type
        if pa.types.is_null(kind):
            return np.dtype(np.float32), (0,)
        if pa.types.is_nested(kind) and not pa.types.is_primitive(
            getattr(kind, "value_type", kind)
        ):
            return np.dtype(object), ()
        if pa.types.is_fixed_size_list(kind):
            return np.dtype(kind.value_type.to_pandas_dtype()), (kind.list_size,)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            with _reading(f"{field.name!r} in {self._path} cannot be read"):
                batches = self._file.iter_batches(1, columns=[field.name], use_threads=False)
                first = next(batches, None)
                has_rows = first is not None and len(first)
                width = len(first.column(0)[0].as_py() or ()) if first and has_rows else 0
            return np.dtype(kind.value_type.to_pandas_dtype()), (width,)
        if not pa.types.is_primitive(kind) or pa.types.is_temporal(kind):
            return np.dtype(object), ()
        return np.dtype(kind.to_pandas_dtype()), ()

    def read_steps(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        if self._batches is None:
            columns = (self._columns[name] for name in names)
            row = sum(array_bytes(column.shape[1:], column.dtype, "a row") for column in columns)
            count = max(1, min(_READ_ROWS, _READ_BYTES // max(row, 1)))
            self._batches = self._file.iter_batches(count, columns=list(names), use_threads=False)
        wanted = (stop - start) * self._envs
        batches: list[Any] = []
        while wanted:
            with _reading(f"{self._path} is damaged"):
                batch = self._left.pop() if self._left else next(self._batches, None)
            if batch is None:
                raise StorageError(f"{self._path} is truncated", hint="export it again")
            if len(batch) > wanted:
                self._left.append(batch.slice(wanted))
                batch = batch.slice(0, wanted)
            batches.append(batch)
            wanted -= len(batch)
        return {name: self._concatenate(name, batches) for name in names}

    def _concatenate(self, name: str, batches: list[Any]) -> Array:
        found = self._columns[name]
        none = np.empty((0, *found.shape[1:]), found.dtype)
        return np.concatenate(
            [self._to_numpy(name, batch.column(name)) for batch in batches] or [none]
        )

    def _to_numpy(self, name: str, column: Any) -> Array:
        import pyarrow as pa

        kind, rows = column.type, len(column)
        if pa.types.is_null(kind):
            return np.empty((rows, 0), np.float32)
        is_list = not pa.types.is_primitive(kind)
        flat = column.flatten() if is_list else column
        if column.null_count or flat.null_count or (is_list and rows and len(flat) % rows):
            raise StorageError(
                f"{name!r} in {self._path} has null or uneven rows", hint="fill or drop them first"
            )
        numbers: Array = flat.to_numpy(zero_copy_only=False)
        return numbers.reshape(rows, -1) if is_list else numbers


def _check_sizes(path: Path, metadata: Any) -> None:
    """Compare the sizes in the footer with each other and with the file."""
    with _reading(f"the footer of {path} is damaged"):
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        rows = sum(group.num_rows for group in groups)
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        sizes = [(chunk.total_compressed_size, chunk.total_uncompressed_size) for chunk in chunks]
        columns = metadata.num_columns
    if metadata.num_rows != rows or rows < 0 or min(map(min, sizes), default=0) < 0:
        raise StorageError(f"{path} has contradicting numbers of rows", hint=FORGED)
    if columns > MAX_COLUMNS:
        raise StorageError(f"{path} has {columns:,} columns", hint=f"{MAX_COLUMNS:,} are read")
    stored = sum(compressed for compressed, _ in sizes)
    check_expansion(stored, path.stat().st_size, 1, str(path))
    for compressed, size in sizes:
        check_expansion(size, compressed, ZSTD_RATIO, f"a column of {path}")
