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
from tdx.rollouts.formats.foreign import ForeignImport
from tdx.rollouts.formats.interface import ColumnReader, Imported
from tdx.rollouts.formats.registry import Format, detect_format, export_formats, find_format
from tdx.rollouts.formats.target import check_no_link, replace_atomically
from tdx.rollouts.formats.untrusted_files import check_columns, check_regular_file
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
    """Make a dump of a file in another format.

    What :func:`export_dump` wrote becomes the dump that it was, checksums and all. Of a file by
    somebody else the entries are named after its columns, and their specs are read off the values.

    Args:
        path: a file, or the folder of a Minari dataset or a Zarr group.
        out: a new folder, for the dump.
        format: that of the file; told by its name or by what is in it by default.
        env: of a file by somebody else: the id of the env that it comes from.
        force: whether a dump that is there is overwritten.
        on_rows: told how far the reading is.

    Raises:
        TdxError: it cannot be read, a package is missing, or the disk is full. Nothing is left of
            an import that failed.

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
        raise StorageError(f"there is no {source}", hint="name the file or folder of an export")
    check_regular_file(source)
    kind = _format(source, format)
    check_no_link(folder)
    check_target(folder, force, hint="--force overwrites it")
    module = kind.module
    with module.read(source) as reader, replace_atomically(folder, folder=True) as part:
        check_columns(reader.columns(), source, folder)
        if reader.note is None:
            manifest, notes = ForeignImport(reader, source, env).write(part, on_rows)
        else:
            if env is not None:
                raise ArgumentError(
                    f"{source} says itself which env it comes from", hint="leave --env out"
                )
            manifest, notes = _as_it_was(reader, reader.note, source, part, on_rows)
        for track, steps in manifest.tracks:
            track.describe(part, steps)
        manifest.save(part)
    return Imported(str(source), kind.name, str(folder), summarize(str(folder), manifest), notes)


def _format(source: Path, name: str | None) -> Format:
    kind = detect_format(source) if name is None else find_format(name)
    if not kind.can_import:
        names = ", ".join(each.name for each in export_formats() if each.can_import)
        raise UnknownNameError(f"{kind.name} cannot be imported", hint=f"these can: {names}")
    if source.is_dir() != kind.is_folder:
        what = "folder" if kind.is_folder else "file"
        raise ArgumentError(f"{source} is no {kind.name}: that is a {what}", hint="name another")
    return kind


def _as_it_was(
    reader: ColumnReader,
    note: Mapping[str, Any],
    source: Path,
    folder: Path,
    on_rows: Callable[[Progress], None],
) -> tuple[Manifest, tuple[str, ...]]:
    """The dump that an export was made of."""
    manifest = Manifest.from_dict(note["manifest"])
    names: dict[str, dict[Parts, str]] = {}
    for each in note["columns"]:
        names.setdefault(each["track"], {})[tuple(each["key"])] = each["name"]
    for track, steps in manifest.tracks:
        places = names.get(track.name, {})
        _check_columns(reader, track, places, steps, source)
        _copy(reader, manifest, track, places, source, folder, on_rows)
    if not reader.is_at_end():
        raise _changed(source, "it has more steps")
    notes: tuple[str, ...] = ()
    if not manifest.complete:
        manifest.complete, manifest.goal = True, Goal(steps=manifest.steps)
        manifest.chunks = ChunkList(replace(each, partial=False) for each in manifest.chunks)
        notes = ("the rollout was unfinished; its import is not gone on with",)
    return manifest, notes


def _check_columns(
    reader: ColumnReader, track: Track, places: Mapping[Parts, str], steps: int, source: Path
) -> None:
    found = reader.columns()
    for path in track.leaves:
        column = found.get(places.get(path, ""))
        if column is None:
            raise _changed(source, f"{places.get(path)!r} is missing")
        if column.shape[:1] != (steps,):
            found_steps = column.shape[0] if column.shape else 0
            raise _changed(source, f"it has {found_steps:,} steps, not {steps:,}")


def _copy(
    reader: ColumnReader,
    manifest: Manifest,
    track: Track,
    places: Mapping[Parts, str],
    source: Path,
    folder: Path,
    on_rows: Callable[[Progress], None],
) -> None:
    start, names = 0, [places[path] for path in track.leaves]
    goal = Goal(steps=manifest.steps)
    for index, chunk in enumerate(manifest.chunks):
        steps = chunk.steps if track is manifest.data else chunk.raw_steps
        rows = reader.rows(names, start, start + steps)
        columns = {}
        for path, (dtype, shape) in track.leaves.items():
            try:
                columns[path] = from_array(rows[places[path]], dtype, (steps, *shape))
            except (ValueError, RuntimeError, TypeError) as error:
                raise _changed(source, f"{places[path]!r} has another shape") from error
        for file, crc in track.append(folder, columns, start).items():
            if chunk.crc32.get(file) != crc:
                raise _changed(source, f"the checksum of chunk {index} of {file} is another")
        start += steps
        on_rows(Progress(min(start, manifest.steps), 0, goal, start))


def _changed(source: Path, what: str) -> StorageError:
    return StorageError(f"{source} is not what was exported: {what}", hint="export the dump again")
