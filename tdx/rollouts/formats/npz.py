"""``.npz``: one array per entry, written and read in pieces, and never with pickle."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from tdx.foundation.array_files import (
    DEFLATE_RATIO,
    MAX_COLUMNS,
    MAX_NOTE_BYTES,
    Array,
    FileColumn,
    array_bytes,
    check_expansion,
)
from tdx.foundation.errors import StorageError
from tdx.rollouts.formats.export_source import ExportSource, name_columns
from tdx.rollouts.formats.files import is_numeric, parse_note, read_array_header, to_array
from tdx.rollouts.formats.interface import NOTE, ColumnReader, ExportOptions, Format

format = Format(
    name="npz",
    title="one file for numpy.load, one array per entry",
    suffixes=(".npz",),
    holds_raw=True,
)


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write one array per entry, time first, and the note as bytes of JSON."""
    columns = name_columns(source.manifest, [NOTE])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as file:
        for column in columns:
            entry = source.array(column)
            described = np.lib.format.dtype_to_descr(entry.dtype)
            header = {"descr": described, "fortran_order": False, "shape": entry.shape}
            with _member(file, column.name) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for block in source.column_blocks(column):
                    member.write(np.ascontiguousarray(to_array(block)).data)
        with _member(file, NOTE) as member:
            np.lib.format.write_array(member, np.array(source.note_text(columns).encode()))
    return ()


def _member(file: zipfile.ZipFile, name: str) -> IO[bytes]:
    # A constant date, so that the same dump gives the same file.
    return file.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)


@contextmanager
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a file, and read its headers."""
    try:
        file = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise StorageError(
            f"{path} is not an npz file: {error}", hint="the file may be truncated"
        ) from error
    with file, ExitStack() as members:
        try:
            yield _NpzReader(path, file, members)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise StorageError(f"{path} is damaged: {error}", hint="export it again") from error


class _NpzReader(ColumnReader):
    def __init__(self, path: Path, file: zipfile.ZipFile, members: ExitStack) -> None:
        self._path = path
        self._members: dict[str, IO[bytes]] = {}
        self._found: dict[str, FileColumn] = {}
        for info in _checked_members(path, file):
            name = info.filename.removesuffix(".npy")
            member = members.enter_context(file.open(info))
            found = self._header(member, name)
            if name == NOTE and not found.shape and found.dtype.kind == "S":
                if info.file_size > MAX_NOTE_BYTES:
                    raise StorageError(
                        f"the metadata in {path} has {info.file_size:,} bytes",
                        hint=f"{MAX_NOTE_BYTES:,} can be read",
                    )
                self.note = parse_note(member.read(info.file_size).rstrip(b"\0"), path)
                continue
            if is_numeric(found.dtype):
                size = array_bytes(found.shape, found.dtype, f"{name!r} in {path}")
                if size > info.file_size:
                    raise StorageError(
                        f"{name!r} in {path} declares {size:,} bytes, but has {info.file_size:,}",
                        hint="the file is damaged; export it again",
                    )
            self._members[name], self._found[name] = member, found

    def _header(self, member: IO[bytes], name: str) -> FileColumn:
        try:
            shape, in_columns, dtype = read_array_header(member, f"{name!r} in {self._path}")
        except StorageError:
            raise
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise StorageError(
                f"{name!r} in {self._path} is not an array", hint="np.savez writes such files"
            ) from error
        if in_columns and len(shape) > 1:
            raise StorageError(
                f"{name!r} in {self._path} is in Fortran order",
                hint="save it with np.ascontiguousarray",
            )
        return FileColumn(dtype, shape)

    def columns(self) -> Mapping[str, FileColumn]:
        return self._found

    def read_steps(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        found: dict[str, Array] = {}
        for name in names:
            column = self._found[name]
            shape = (stop - start, *column.shape[1:])
            size = math.prod(shape) * column.dtype.itemsize
            data = bytearray(self._members[name].read(size))
            if len(data) != size or not is_numeric(column.dtype):
                raise StorageError(f"{name!r} in {self._path} is truncated", hint="export it again")
            found[name] = np.frombuffer(data, column.dtype).reshape(shape)
        return found


def _checked_members(path: Path, file: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the arrays in the directory of the file."""
    members = file.infolist()
    if len(members) > MAX_COLUMNS:
        raise StorageError(f"{path} has {len(members):,} arrays", hint=f"{MAX_COLUMNS:,} are read")
    for info in members:
        what = f"{info.filename!r} in {path}"
        if info.flag_bits & 1 or info.compress_type not in _COMPRESSIONS:
            raise StorageError(f"{what} is encrypted or compressed in an unknown way", hint=_SAVE)
        ratio = 1 if info.compress_type == zipfile.ZIP_STORED else DEFLATE_RATIO
        check_expansion(info.file_size, info.compress_size, ratio, what)
    check_expansion(sum(info.compress_size for info in members), path.stat().st_size, 1, str(path))
    return members


_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SAVE = "save it with np.savez or np.savez_compressed"
