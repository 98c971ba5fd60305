"""Export a dump to another format, and import a file as a dump."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from tdx.engines import map_in_processes
from tdx.foundation.container import Container, make_folders, replaced_error
from tdx.foundation.errors import (
    ArgumentError,
    OutputError,
    StorageError,
    TdxError,
    UnknownNameError,
    get_first_line,
)
from tdx.foundation.files import (
    FULL,
    atomic_folder,
    atomic_path,
    check_no_link,
    check_replaceable,
    check_replaceable_folder,
)
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.rollouts.dump.index import Chunk
from tdx.rollouts.dump.progress import Progress, ignore_progress
from tdx.rollouts.dump.reading import Dump, DumpSummary, open_dump, summarize
from tdx.rollouts.dump.remote import is_url
from tdx.rollouts.dump.writing import check_target
from tdx.rollouts.formats.export_source import ExportSource
from tdx.rollouts.formats.files import check_columns
from tdx.rollouts.formats.import_writers import ForeignImport, OwnImport
from tdx.rollouts.formats.interface import Exported, ExportOptions, Format
from tdx.rollouts.formats.registry import (
    Exporter,
    detect_format,
    export_formats,
    find_format,
    format_of_suffix,
    load_exporter,
)

_FULL_TEXT = {os.strerror(number).lower(): number for number in FULL}
_PARALLEL_BYTES = 2**28
"""Size of a sharded dump from which starting processes is worth its time."""


@dataclass(frozen=True, slots=True)
class Imported(Result):
    """Result of an import.

    Args:
        source: File or folder that was read.
        format: Name of its format.
        path: Folder of the new dump.
        summary: Result of :func:`~tdx.rollouts.dump.reading.summarize`.
        notes: Remarks for the user.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("summary", inline=True), Entry("imported", "source"), "format", "notes"),
    )

    source: str
    format: str
    path: str
    summary: DumpSummary
    notes: tuple[str, ...]


def export_dump(
    dump: str | Path | Dump,
    path: str | Path | None = None,
    *,
    to: str | None = None,
    keys: Sequence[str] | None = None,
    episodes: Sequence[int] | None = None,
    fps: int = 30,
    split: bool = False,
    lossy: bool = False,
    force: bool = False,
    dry_run: bool = False,
    on_rows: Callable[[Progress], None] = ignore_progress,
) -> Exported:
    """Write a dump in another format: its numbers bit for bit, and its manifest.

    Args:
        dump: The dump, or its folder.
        path: Target. ``None``: next to the dump, with its name.
        to: Name of a format, one of :func:`export_formats`, such as ``parquet``. ``None``: that of
            the suffix of ``path``.
        keys: Entries to export, as ``reward`` or ``next.reward``. ``None``: all.
        episodes: Indices of the episodes in a video, as in the manifest. ``None``: all.
        fps: Frames per second of a video.
        split: Whether each episode of a video gets its own file, in a folder.
        lossy: Whether an mp4 plays everywhere, rather than being exact.
        force: Whether an existing export may be replaced.
        dry_run: Whether nothing is written.
        on_rows: Called with the progress.

    Returns:
        What was written; :func:`import_dump` imports it as a dump.

    Raises:
        TdxError: The format cannot hold the dump, a package is missing, the target exists, or the
            disk is full. A failed export leaves nothing behind.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tdx import Pipeline, export_dump, record_dump
        >>> folder = tempfile.mkdtemp() + "/pendulum"
        >>> _ = record_dump(Pipeline.of("Pendulum-v1"), folder, steps=250, seed=0)
        >>> exported = export_dump(folder, to="npz")
        >>> np.load(exported.path)["next.reward"].shape
        (250, 1)
    """
    if is_url(dump) and path is None:
        raise ArgumentError("an export of a URL needs a target", hint="add --out PATH")
    opened = dump if isinstance(dump, Dump) else open_dump(dump)
    kind = find_format(to) if to is not None else format_of_suffix(path)
    options = ExportOptions(None if episodes is None else tuple(episodes), fps, split, lossy)
    for name in ("episodes", "split", "lossy"):
        if getattr(options, name) and not (kind.has_lossy if name == "lossy" else kind.has_frames):
            exact = [other.name for other in export_formats() if other.has_lossy]
            wanted = ", ".join(exact) if kind.has_frames else "videos"
            raise ArgumentError(f"--{name} is for {wanted}", hint=f"leave it out for {kind.name}")
    split = split or bool(opened.shards)
    if path is not None:
        target = Path(path)
    else:
        resolved = opened.path.resolve()
        parent = opened.path.parent if opened.path.name else resolved.parent
        target = parent / (resolved.name + (f"-{kind.name}" if split else kind.suffixes[0]))
    check_export_target(target, kind, kind.is_folder or split, force)
    if opened.shards:
        return _export_shards(opened, kind, target, options, keys, on_rows, dry_run)
    source = ExportSource(opened, keys, raw=kind.holds_raw, on_rows=on_rows)
    return _export(source, opened, kind, target, options, dry_run)


def _export(
    source: ExportSource,
    dump: Dump,
    kind: Format,
    target: Path,
    options: ExportOptions,
    dry_run: bool,
) -> Exported:
    """Write an export unless it is a dry run, and describe it."""
    exporter = load_exporter(kind)
    plan = exporter.plan(source, options)
    notes = []
    if dump.raw is not None and source.manifest.raw is None and not kind.has_frames:
        reason = "" if kind.holds_raw else f": {kind.name} has one row per step"
        notes.append(f"the raw steps (--raw) are left out{reason}")
    if not dump.manifest.complete:
        notes.append("the rollout is unfinished: the steps so far are exported")
    planned = Exported(
        source=str(dump.path),
        path=str(target),
        format=kind.name,
        written=False,
        steps=source.steps,
        batch_size=source.batch_size,
        episodes=plan.episodes,
        size=plan.size,
        notes=(*notes, *plan.notes),
        entries=plan.entries,
    )
    if dry_run:
        return planned
    with replace_atomically(target, folder=kind.is_folder or options.split) as part:
        added = exporter.write(source, part, replace(options, name=target.name))
        _check_end(exporter, part, target)
        files = part.rglob("*") if part.is_dir() else (part,)
        size = sum(file.stat().st_size for file in files if file.is_file())
    return replace(planned, written=True, size=size, notes=(*planned.notes, *added))


def _check_end(exporter: Exporter, part: Path, target: Path) -> None:
    """Read back the end of an export before it replaces another one."""
    try:
        if exporter.check is not None:
            exporter.check(part)
    except TdxError:
        raise
    except Exception as error:
        raise OutputError(
            f"cannot write {target}: its end cannot be read back: {get_first_line(error)}",
            hint="check the disk, then export it again",
        ) from error


def _export_shards(
    dump: Dump,
    kind: Format,
    target: Path,
    options: ExportOptions,
    keys: Sequence[str] | None,
    on_rows: Callable[[Progress], None],
    dry_run: bool,
) -> Exported:
    """Write one export per shard into a folder, which appears complete or not at all."""
    if options.episodes is not None:
        raise ArgumentError(
            "--episodes selects episodes of one dump",
            hint=f"export one of its shards: {dump.shards[0].path}",
        )
    suffix = "" if kind.is_folder or options.split else kind.suffixes[0]

    def export_all(folder: Path) -> list[Exported]:
        jobs = [
            (shard.path, shard.manifest.chunks[-1], folder / f"{shard.path.name}{suffix}")
            for shard in dump.shards
        ]
        export = partial(_export_shard, name=kind.name, options=options, keys=keys, dry_run=dry_run)
        if dry_run or dump.manifest.size < _PARALLEL_BYTES:
            return list(map(partial(export, on_rows=on_rows), jobs))
        return map_in_processes(export, jobs, "shard")

    if dry_run:
        found = export_all(target)
    else:
        with replace_atomically(target, folder=True) as part:
            found = export_all(part)
    sizes = [export.size for export in found if export.size is not None]
    return replace(
        found[0],
        source=str(dump.path),
        path=str(target),
        steps=sum(export.steps for export in found),
        episodes=sum(export.episodes for export in found),
        size=sum(sizes) if sizes else None,
        notes=tuple(dict.fromkeys(note for export in found for note in export.notes)),
    )


def _export_shard(
    job: tuple[Path, Chunk, Path],
    *,
    name: str,
    options: ExportOptions,
    keys: Sequence[str] | None,
    dry_run: bool,
    on_rows: Callable[[Progress], None] = ignore_progress,
) -> Exported:
    """Export one shard, in this process or another: its folder, its last chunk, and the target."""
    shard, last, target = job
    dump, kind = open_dump(shard), find_format(name)
    if dump.manifest.chunks[-1] != last:
        # Another process replaced the dump.
        raise replaced_error(shard)
    source = ExportSource(dump, keys, raw=kind.holds_raw, on_rows=on_rows)
    return _export(source, dump, kind, target, options, dry_run)


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
    if not source.is_file() and not source.is_dir():
        raise StorageError(f"{source} is not a regular file", hint="save the data to a file first")
    kind = detect_format(source) if format is None else find_format(format)
    if not kind.can_import:
        names = ", ".join(other.name for other in export_formats() if other.can_import)
        raise UnknownNameError(f"{kind.name} cannot be imported", hint=f"these can: {names}")
    if source.is_dir() != kind.is_folder:
        found, wanted = ("file", "folder") if kind.is_folder else ("folder", "file")
        raise ArgumentError(
            f"{source} is a {found}, but {kind.name} is a {wanted}", hint=f"name a {wanted}"
        )
    check_no_link(folder)
    check_target(folder, force, hint="use --force to replace it")
    read = load_exporter(kind).read
    assert read is not None
    with read(source) as reader, replace_atomically(folder, folder=True) as part:
        check_columns(reader.columns(), source, folder)
        if reader.note is not None and env is not None:
            raise ArgumentError(f"{source} already names its env", hint="leave --env out")
        with Container.open(part) as root:
            if reader.note is None:
                manifest, notes = ForeignImport(reader, source, env).write(root, on_rows)
            else:
                manifest, notes = OwnImport(reader, reader.note, source).write(root, on_rows)
            for track, steps in manifest.tracks:
                track.write_descriptions(root, steps)
            manifest.save(root)
    return Imported(str(source), kind.name, str(folder), summarize(str(folder), manifest), notes)


# Targets


def check_export_target(path: Path, kind: Format, folder: bool, force: bool) -> None:
    """Check that an export may be written, before any work is done."""
    if not folder:
        check_replaceable(path, force=force)
        return
    check_replaceable_folder(
        path,
        kind.name,
        lambda folder: (
            (kind.is_folder and kind.is_in(folder)) or all(map(kind.is_in, folder.iterdir()))
        ),
        force=force,
    )


@contextmanager
def replace_atomically(path: Path, *, folder: bool) -> Iterator[Path]:
    """Yield a temporary file or folder, which replaces ``path`` when the block ends.

    If the block raises, or the process is killed, ``path`` is unchanged. Missing folders around it
    are created.
    """
    with _report_write_errors(path):
        make_folders(path.parent)
        with atomic_folder(path) if folder else atomic_path(path) as part:
            yield part


@contextmanager
def _report_write_errors(path: str | Path) -> Iterator[None]:
    """Turn the errors of all libraries about a full or read-only disk into one line."""
    try:
        yield
    except (TdxError, BrokenPipeError):
        raise
    except Exception as error:
        number = _errno_of(error)
        if number is None:
            raise
        hint = "make room, or name another place" if number in FULL else "name another place"
        reason = os.strerror(number).lower()
        raise OutputError(f"cannot write {path}: {reason}", hint=hint) from error


def _errno_of(error: BaseException | None) -> int | None:
    """Return the error number of the system; some libraries only quote its text."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        if isinstance(error, OSError) and error.errno:
            return abs(error.errno)
        text = str(error).lower()
        for reason, number in _FULL_TEXT.items():
            if reason in text:
                return number
        found = re.search(r"(?:errno|os error)[ =:]+(\d+)", text)
        if found:
            return int(found.group(1))
        error = error.__cause__ or error.__context__
    return None
