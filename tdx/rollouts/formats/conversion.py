"""Export a dump to another format, and import a file as a dump."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, ClassVar

from tdx.engines import map_in_processes
from tdx.foundation.container import Container, replaced_error
from tdx.foundation.errors import (
    ArgumentError,
    MissingPackageError,
    OutputError,
    StorageError,
    TdxError,
    UnknownNameError,
    get_first_line,
    install_extra,
)
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.rollouts.dump.index import Chunk
from tdx.rollouts.dump.reading import Dump, DumpSummary, open_dump, summarize
from tdx.rollouts.dump.remote import is_url
from tdx.rollouts.dump.writing import Progress, check_target, ignore_progress
from tdx.rollouts.formats import (
    hdf5,
    jsonl,
    lerobot,
    minari,
    minari_reading,
    npz,
    parquet,
    rerun,
    safetensors,
    tensorboard,
    video,
    zarr,
)
from tdx.rollouts.formats.export_source import ExportSource, measure_bytes
from tdx.rollouts.formats.files import (
    check_columns,
    check_regular_file,
)
from tdx.rollouts.formats.import_writers import ForeignImport, OwnImport
from tdx.rollouts.formats.interface import (
    ColumnReader,
    Exported,
    ExportOptions,
    ExportPlan,
    Format,
    detect_format,
    export_formats,
    find_format,
    format_of_suffix,
    plugin_exporters,
)
from tdx.rollouts.formats.jsonl import write_lines
from tdx.rollouts.formats.targets import check_export_target, check_no_link, replace_atomically

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
        to: Format: ``minari``, ``parquet``, ``hdf5``, ``zarr``, ``safetensors``, ``npz``,
            ``jsonl``, ``lerobot``, ``rerun``, ``tensorboard``, ``mp4`` or ``gif``. ``None``: that
            of the suffix of ``path``.
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
    _check_options(kind, options)
    split = split or bool(opened.shards)
    target = Path(path) if path is not None else _default_target(opened.path, kind, split)
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
    codec = find_codec(kind)
    plan = codec.plan(source, options)
    planned = Exported(
        source=str(dump.path),
        path=str(target),
        format=kind.name,
        written=False,
        steps=source.steps,
        batch_size=source.batch_size,
        episodes=plan.episodes,
        size=plan.size,
        notes=(*_list_omissions(dump, source, kind), *plan.notes),
        entries=plan.entries,
    )
    if dry_run:
        return planned
    with replace_atomically(target, folder=kind.is_folder or options.split) as part:
        added = codec.write(source, part, replace(options, name=target.name))
        _check_end(codec, part, target)
        size = measure_bytes(part)
    return replace(planned, written=True, size=size, notes=(*planned.notes, *added))


def _check_end(codec: FormatCodec, part: Path, target: Path) -> None:
    """Read back the end of an export before it replaces another one.

    Raises:
        OutputError: It is incomplete.
    """
    try:
        codec.check(part)
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
            _ShardExport(
                shard.path,
                shard.manifest.chunks[-1],
                folder / f"{shard.path.name}{suffix}",
                kind.name,
                options,
            )
            for shard in dump.shards
        ]
        export = partial(_ShardExport.run, keys=keys, dry_run=dry_run)
        if dry_run or dump.manifest.size < _PARALLEL_BYTES:
            return list(map(partial(export, on_rows=on_rows), jobs))
        return map_in_processes(export, jobs, "shard")

    if dry_run:
        found = export_all(target)
    else:
        with replace_atomically(target, folder=True) as part:
            found = export_all(part)
    sizes = [each.size for each in found if each.size is not None]
    return replace(
        found[0],
        source=str(dump.path),
        path=str(target),
        steps=sum(each.steps for each in found),
        episodes=sum(each.episodes for each in found),
        size=sum(sizes) if sizes else None,
        notes=tuple(dict.fromkeys(note for each in found for note in each.notes)),
    )


@dataclass(frozen=True, slots=True)
class _ShardExport:
    """Exports one shard, in this process or another.

    Args:
        shard: Folder of the shard.
        last: Its last chunk, which differs if another process replaced the dump.
        target: File or folder to write.
        format: Name of the format.
        options: Options of the export.
    """

    shard: Path
    last: Chunk
    target: Path
    format: str
    options: ExportOptions

    def run(
        self,
        *,
        keys: Sequence[str] | None,
        dry_run: bool,
        on_rows: Callable[[Progress], None] = ignore_progress,
    ) -> Exported:
        dump, kind = open_dump(self.shard), find_format(self.format)
        if dump.manifest.chunks[-1] != self.last:
            raise replaced_error(self.shard)
        source = ExportSource(dump, keys, raw=kind.holds_raw, on_rows=on_rows)
        return _export(source, dump, kind, self.target, self.options, dry_run)


def export_lines(dump: str | Path, stream: IO[bytes], *, keys: Sequence[str] | None = None) -> None:
    """Write a dump as JSON lines to a stream, one line per step of each env.

    Args:
        dump: Folder of the dump.
        stream: Target.
        keys: Entries to export. ``None``: all.
    """
    opened = open_dump(dump)
    for each in opened.shards or (opened,):
        write_lines(ExportSource(each, keys, raw=False), stream)


def _check_options(kind: Format, options: ExportOptions) -> None:
    if kind.has_frames:
        if options.lossy and kind.name != "mp4":
            raise ArgumentError("--lossy is for mp4", hint=f"leave it out for {kind.name}")
        return
    for name in ("episodes", "split", "lossy"):
        if getattr(options, name):
            raise ArgumentError(f"--{name} is for videos", hint=f"leave it out for {kind.name}")


def _default_target(folder: Path, kind: Format, split: bool) -> Path:
    resolved = folder.resolve()
    name = resolved.name + (f"-{kind.name}" if split else kind.suffixes[0])
    return folder.parent / name if folder.name else resolved.parent / name


def _list_omissions(dump: Dump, source: ExportSource, kind: Format) -> tuple[str, ...]:
    notes = []
    if dump.raw is not None and source.manifest.raw is None and not kind.has_frames:
        reason = "" if kind.holds_raw else f": {kind.name} has one row per step"
        notes.append(f"the raw steps (--raw) are left out{reason}")
    if not dump.manifest.complete:
        notes.append("the rollout is unfinished: the steps so far are exported")
    return tuple(notes)


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


def _plan_all_entries(source: ExportSource, options: ExportOptions) -> ExportPlan:
    return source.plan()


def _trust(part: Path) -> None:
    """Check nothing: Python reports every error of writing."""


@dataclass(frozen=True, slots=True)
class FormatCodec:
    """Functions of one format.

    Args:
        write: Writes a dump to a path, and returns remarks for the user.
        read: Opens a file or folder; ``None`` if the format cannot be imported.
        plan: Returns what ``write`` would write.
        check: Raises an error if the end of a file is missing, for a library that may not report
            that it could not write it.
    """

    write: Callable[[ExportSource, Path, ExportOptions], tuple[str, ...]]
    read: Callable[[Path], AbstractContextManager[ColumnReader]] | None = None
    plan: Callable[[ExportSource, ExportOptions], ExportPlan] = _plan_all_entries
    check: Callable[[Path], None] = _trust


_CODECS = {
    "minari": FormatCodec(minari.write, minari_reading.read, minari.plan, minari.check),
    "parquet": FormatCodec(parquet.write, parquet.read, check=parquet.check),
    "hdf5": FormatCodec(hdf5.write, hdf5.read, check=hdf5.check),
    "zarr": FormatCodec(zarr.write, zarr.read),
    "safetensors": FormatCodec(safetensors.write, safetensors.read),
    "npz": FormatCodec(npz.write, npz.read),
    "jsonl": FormatCodec(jsonl.write, jsonl.read),
    "lerobot": FormatCodec(lerobot.write, plan=lerobot.plan, check=lerobot.check),
    "rerun": FormatCodec(rerun.write, check=rerun.check_complete),
    "tensorboard": FormatCodec(tensorboard.write),
    "mp4": FormatCodec(video.write_mp4, plan=video.plan, check=video.check_mp4),
    "gif": FormatCodec(video.write_gif, plan=video.plan),
}


def find_codec(kind: Format) -> FormatCodec:
    """Return the functions of a format.

    Raises:
        MissingPackageError: A package that it needs is not installed.
    """
    for package in kind.packages:
        try:
            import_module(package)
        except ImportError as error:
            raise MissingPackageError(
                f"{kind.name} needs {package}, which is not installed",
                hint=install_extra(kind.extra)
                if kind.extra
                else f"install the package that provides {package}",
            ) from error
    return _CODECS.get(kind.name) or _plugin_codec(plugin_exporters()[kind.name])


def _plugin_codec(exporter: Any) -> FormatCodec:
    read = getattr(exporter, "read", None)
    return FormatCodec(exporter.write, read, getattr(exporter, "plan", _plan_all_entries))
