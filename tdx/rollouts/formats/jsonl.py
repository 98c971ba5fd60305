"""JSON lines: one line per step of each env, bit for bit.

A float is written with enough digits to restore it. Values that JSON cannot represent become text:
``"nan"``, ``"inf"`` and ``"-inf"``, and ``"nan:7fc00001"`` for a NaN with an undefault bit pattern.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from tdx.foundation.array_files import MAX_NOTE_BYTES, Array, FileColumn
from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import (
    MAX_HEADER_BYTES,
    check_claimed_bytes,
    parse_json,
    validate_shape,
)
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.dump.reading import open_dump
from tdx.rollouts.formats.export_source import EpisodeLookup, ExportSource, name_columns
from tdx.rollouts.formats.files import array_column, check_note, to_array
from tdx.rollouts.formats.interface import NOTE, ColumnReader, ExportOptions, Format
from tdx.rollouts.formats.parquet import name_index_columns

format = Format(
    name="jsonl",
    title="one line of JSON per step",
    suffixes=(".jsonl", ".ndjson"),
)


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one line per step of each env; the first line has the note as well."""
    with target.open("wb") as file:
        write_lines(source, file)
    return ()


def write_lines(source: ExportSource, stream: IO[bytes]) -> None:
    """Write the lines to a stream."""
    columns = name_columns(source.manifest)
    roots = [NOTE, *(column.path[0] for column in columns)]
    index = name_index_columns(roots, bool(source.batch_size))
    clock = EpisodeLookup(source.episodes, source.rows)
    note = NOTE
    while note in roots[1:]:
        note += "_"
    first: dict[str, Any] = {note: source.note(columns)}
    for start, leaves in source.blocks(DATA):
        steps = len(next(iter(leaves.values())))
        episodes, counts = (numbers.reshape(-1).tolist() for numbers in clock.read(start, steps))
        values = {column.path: _list_values(source, leaves[column.path]) for column in columns}
        for row in range(steps * source.rows):
            line: dict[str, Any] = {}
            if source.batch_size:
                line[index["env"]] = row % source.rows
            line |= {index["episode"]: episodes[row], index["step"]: counts[row]}
            for path, listed in values.items():
                inner = line
                for part in path[:-1]:
                    inner = inner.setdefault(part, {})
                inner[path[-1]] = listed[row]
            line |= first
            first = {}
            stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")


def export_lines(dump: str | Path, stream: IO[bytes], *, keys: Sequence[str] | None = None) -> None:
    """Write a dump as JSON lines to a stream, one line per step of each env.

    Args:
        dump: Folder of the dump.
        stream: Target.
        keys: Entries to export. ``None``: all.
    """
    opened = open_dump(dump)
    for shard in opened.shards or (opened,):
        write_lines(ExportSource(shard, keys, raw=False), stream)


def _list_values(source: ExportSource, leaf: torch.Tensor) -> list[Any]:
    """Return the values of each step of each env as JSON."""
    array = to_array(leaf, splits_complex=True)
    dims = 1 + len(source.batch_size)
    flat = array.reshape(len(array) * source.rows, *array.shape[dims:])
    listed: list[Any] = flat.tolist()
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        bits = flat.view(f"u{flat.dtype.itemsize}").tolist()
        nan = int(np.array(np.nan, flat.dtype).view(f"u{flat.dtype.itemsize}"))
        return _encode_floats(listed, bits, nan, flat.dtype.itemsize * 2)
    return listed


def _encode_floats(value: Any, bits: Any, default: int, digits: int) -> Any:
    if isinstance(value, list):
        pairs = zip(value, bits, strict=True)
        return [_encode_floats(item, its_bits, default, digits) for item, its_bits in pairs]
    if value != value:
        return "nan" if bits == default else f"nan:{bits:0{digits}x}"
    return value if abs(value) != float("inf") else str(value)


@contextmanager
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a file; all lines of a file that tdx did not export are read once."""
    with path.open("rb") as file:
        yield _JsonlReader(path, file)


class _JsonlReader(ColumnReader):
    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file, self._number = path, file, 0
        self._envs = 1
        first = self._line() or {}
        self._columns: dict[str, tuple[Parts, FileColumn]]
        notes = [
            name
            for name, value in first.items()
            if name.rstrip("_") == NOTE and isinstance(value, dict) and "export" in value
        ]
        if notes:
            self.note = check_note(first[notes[-1]], path)
            manifest = Manifest.from_dict(self.note["manifest"])
            self._envs = math.prod(manifest.batch_size)
            assert manifest.data is not None
            names = {tuple(column["key"]): column["name"] for column in self.note["columns"]}
            self._columns = {}
            for key, (dtype, shape) in manifest.data.leaves.items():
                validate_shape(shape, f"{names[key]!r} in {path}")
                column = array_column(dtype, (manifest.steps, *shape), splits_complex=True)
                self._columns[names[key]] = (key, column)
            count = sum(math.prod(column.shape) for _, column in self._columns.values())
            check_claimed_bytes(count, path, str(path))
        else:
            self._columns = self._scan_columns(first)
        file.seek(0)
        self._number = 0

    def _line(self) -> dict[str, Any] | None:
        most = MAX_HEADER_BYTES if self._number else MAX_NOTE_BYTES
        text = self._file.readline(most + 1)
        if not text:
            return None
        self._number += 1
        if len(text) > most:
            raise StorageError(
                f"{self._path}:{self._number}: the line has more than {most:,} bytes",
                hint="a line holds one step",
            )
        try:
            line = parse_json(text, self._path)
        except StorageError:
            line = None
        if not isinstance(line, dict):
            raise StorageError(
                f"{self._path}:{self._number}: the line is not a JSON object",
                hint="the file may be truncated",
            )
        return line

    def _scan_columns(self, first: dict[str, Any]) -> dict[str, tuple[Parts, FileColumn]]:
        """Return the columns of a file without a note: every line must have all of them."""
        kinds: dict[Parts, tuple[Any, tuple[int, ...]]] = {}
        steps, line = 0, first or None
        while line is not None:
            flat = dict(_leaves(line, ()))
            for path in kinds.keys() ^ flat.keys() if steps else ():
                raise self._inconsistent(path)
            for path, value in flat.items():
                array = self._array(value)
                if array is None:
                    if not steps:
                        kinds[path] = (np.dtype(object), ())
                    elif kinds[path][0].kind != "O":
                        raise self._inconsistent(path)
                    continue
                kind, shape = kinds.get(path, (array.dtype, array.shape))
                if kind.kind == "O":
                    continue
                if shape != array.shape:
                    raise self._inconsistent(path)
                kinds[path] = (np.promote_types(kind, array.dtype), shape)
            steps, line = steps + 1, self._line()
        return {
            "/".join(path): (path, FileColumn(kind, (steps, *shape)))
            for path, (kind, shape) in kinds.items()
        }

    def _array(self, value: Any) -> Array | None:
        """Return a value as an array; ``None`` if it is not numeric."""
        try:
            found = np.array(_decode_floats(value, np.dtype(np.float64)))
        except (ValueError, TypeError, OverflowError):
            return None
        return found if found.dtype.kind in "biuf" else None

    def _inconsistent(self, path: Parts) -> StorageError:
        return StorageError(
            f"{self._path}:{self._number}: {'.'.join(path)!r} differs from the preceding lines",
            hint="every line needs the same keys, with numbers of the same shape",
        )

    def columns(self) -> Mapping[str, FileColumn]:
        return {name: found for name, (_, found) in self._columns.items()}

    def read_steps(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        listed: dict[str, list[Any]] = {name: [] for name in names}
        for _ in range((stop - start) * self._envs):
            line = self._line()
            if line is None:
                raise StorageError(f"{self._path} is truncated", hint="export it again")
            for name, values in listed.items():
                path = self._columns[name][0]
                try:
                    value: Any = line
                    for part in path:
                        value = value[part]
                    values.append(value)
                except (KeyError, TypeError):
                    raise self._inconsistent(path) from None
        return {name: self._to_array(name, values) for name, values in listed.items()}

    def _to_array(self, name: str, values: list[Any]) -> Array:
        path, found = self._columns[name]
        # A number outside the range of the dtype is damage, not infinity.
        with np.errstate(over="raise"):
            try:
                return np.array(values, dtype=found.dtype)
            except (ValueError, TypeError, ArithmeticError):
                pass
            try:
                return np.array(
                    [_decode_floats(value, found.dtype) for value in values], dtype=found.dtype
                )
            except (ValueError, TypeError, ArithmeticError):
                raise self._inconsistent(path) from None

    def is_at_end(self) -> bool:
        return not self._file.readline(MAX_HEADER_BYTES).strip()


def _leaves(line: Mapping[str, Any], path: Parts) -> Iterator[tuple[Parts, Any]]:
    for name, value in line.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _decode_floats(value: Any, dtype: Any) -> Any:
    """Replace the text of special floats by their values."""
    if isinstance(value, list):
        return [_decode_floats(item, dtype) for item in value]
    if not isinstance(value, str):
        return value
    name, _, bits = value.partition(":")
    if bits and name == "nan":
        return np.array(int(bits, 16), f"u{dtype.itemsize}").view(dtype)[()]
    return dtype.type(float(value))
