"""Import a file of another format as a dump."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tdx.errors import ArgumentError, StorageError, UnknownNameError
from tdx.rollouts.dump.creation import check_target
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.index import ChunkList
from tdx.rollouts.dump.manifest import Goal, Manifest
from tdx.rollouts.dump.reading import summarize
from tdx.rollouts.dump.track import Track
from tdx.rollouts.formats.arrays import from_array
from tdx.rollouts.formats.codecs import find_codec
from tdx.rollouts.formats.files import (
    check_columns,
    check_no_link,
    check_regular_file,
    replace_atomically,
)
from tdx.rollouts.formats.foreign import ForeignImport
from tdx.rollouts.formats.interface import ColumnReader, Imported
from tdx.rollouts.formats.registry import Format, detect_format, export_formats, find_format
from tdx.rollouts.recording.stream import Progress, ignore_progress


def import_dump(
    path: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    env: str | None = None,
    force: bool = False,
    on_rows: Callable[[Progress], None] = ignore_progress,
) -> Imported:
    """Import a file in another format as a dump.

    An export of :func:`export_dump` becomes an identical dump, with the same checksums. For any
    other file, entries are named after its columns, and specs are inferred from the values.

    Args:
        path: A file, or the folder of a Minari dataset or a Zarr group.
        out: New folder for the dump.
        format: Format of the file. ``None``: detected by its name or content.
        env: Id of the env that the data comes from, for a file that tdx did not export.
        force: Whether an existing dump may be replaced.
        on_rows: Called with the progress.

    Raises:
        TdxError: The file cannot be read, a package is missing, or the disk is full. A failed
            import leaves nothing behind.

    Example:
        >>> import tempfile
        >>> from tdx import Pipeline, export_dump, import_dump, open_dump, record_dump
        >>> folder = tempfile.mkdtemp()
        >>> _ = record_dump(Pipeline.of("Pendulum-v1"), f"{folder}/dump", steps=250, seed=0)
        >>> _ = export_dump(f"{folder}/dump", f"{folder}/data.npz")
        >>> _ = import_dump(f"{folder}/data.npz", f"{folder}/again")
        >>> before, after = open_dump(f"{folder}/dump"), open_dump(f"{folder}/again")
        >>> before.manifest == after.manifest, bool((before.data == after.data).all())
        (True, True)
    """
    source, folder = Path(path), Path(out)
    if not source.exists():
        raise StorageError(f"{source} does not exist", hint="name the file or folder of an export")
    check_regular_file(source)
    kind = _find_import_format(source, format)
    check_no_link(folder)
    check_target(folder, force, hint="use --force to replace it")
    read = find_codec(kind).read
    assert read is not None
    with read(source) as reader, replace_atomically(folder, folder=True) as part:
        check_columns(reader.columns(), source, folder)
        if reader.note is None:
            manifest, notes = ForeignImport(reader, source, env).write(part, on_rows)
        else:
            if env is not None:
                raise ArgumentError(f"{source} already names its env", hint="leave --env out")
            manifest, notes = _NotedImport(reader, reader.note, source).write(part, on_rows)
        for track, steps in manifest.tracks:
            track.describe(part, steps)
        manifest.save(part)
    return Imported(str(source), kind.name, str(folder), summarize(str(folder), manifest), notes)


def _find_import_format(source: Path, name: str | None) -> Format:
    kind = detect_format(source) if name is None else find_format(name)
    if not kind.can_import:
        names = ", ".join(each.name for each in export_formats() if each.can_import)
        raise UnknownNameError(f"{kind.name} cannot be imported", hint=f"these can: {names}")
    if source.is_dir() != kind.is_folder:
        found, wanted = ("file", "folder") if kind.is_folder else ("folder", "file")
        raise ArgumentError(
            f"{source} is a {found}, but {kind.name} is a {wanted}", hint=f"name a {wanted}"
        )
    return kind


class _NotedImport:
    """Restores the dump that a file was exported from.

    Args:
        reader: Reader of the file.
        note: Its note.
        source: The file.
    """

    def __init__(self, reader: ColumnReader, note: Mapping[str, Any], source: Path) -> None:
        self._reader, self._source = reader, source
        self._manifest = Manifest.from_dict(note["manifest"])
        self._names: dict[str, dict[Parts, str]] = {}
        for each in note["columns"]:
            self._names.setdefault(each["track"], {})[tuple(each["key"])] = each["name"]

    def write(
        self, folder: Path, on_rows: Callable[[Progress], None]
    ) -> tuple[Manifest, tuple[str, ...]]:
        """Write the tracks into the folder of a new dump.

        Returns:
            The manifest, which is not written yet, and remarks for the user.
        """
        manifest = self._manifest
        for track, steps in manifest.tracks:
            self._check_columns(track, steps)
            self._copy(track, folder, on_rows)
        if not self._reader.is_at_end():
            raise self._changed("it has more steps")
        notes: tuple[str, ...] = ()
        if not manifest.complete:
            manifest.complete, manifest.goal = True, Goal(steps=manifest.steps)
            manifest.chunks = ChunkList(replace(each, partial=False) for each in manifest.chunks)
            notes = ("the rollout was unfinished; the imported dump cannot be resumed",)
        return manifest, notes

    def _check_columns(self, track: Track, steps: int) -> None:
        found, names = self._reader.columns(), self._names.get(track.name, {})
        for path in track.leaves:
            column = found.get(names.get(path, ""))
            if column is None:
                raise self._changed(f"{names.get(path)!r} is missing")
            if column.shape[:1] != (steps,):
                found_steps = column.shape[0] if column.shape else 0
                raise self._changed(f"it has {found_steps:,} steps, not {steps:,}")

    def _copy(self, track: Track, folder: Path, on_rows: Callable[[Progress], None]) -> None:
        manifest, places = self._manifest, self._names.get(track.name, {})
        start, names = 0, [places[path] for path in track.leaves]
        goal = Goal(steps=manifest.steps)
        for index, chunk in enumerate(manifest.chunks):
            steps = chunk.steps if track is manifest.data else chunk.raw_steps
            rows = self._reader.read_steps(names, start, start + steps)
            columns = {}
            for path, (dtype, shape) in track.leaves.items():
                try:
                    columns[path] = from_array(rows[places[path]], dtype, (steps, *shape))
                except (ValueError, RuntimeError, TypeError) as error:
                    raise self._changed(f"{places[path]!r} has another shape") from error
            for file, crc in track.append(folder, columns, start).items():
                if chunk.crc32.get(file) != crc:
                    raise self._changed(f"the checksum of chunk {index} of {file} differs")
            start += steps
            on_rows(Progress(min(start, manifest.steps), 0, goal, start))

    def _changed(self, what: str) -> StorageError:
        return StorageError(
            f"{self._source} was changed after its export: {what}", hint="export the dump again"
        )
