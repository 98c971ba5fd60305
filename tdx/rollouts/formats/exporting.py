"""Export a dump to another format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from tdx.errors import ArgumentError
from tdx.rollouts.dump.reading import Dump, open_dump
from tdx.rollouts.formats.codecs import find_codec
from tdx.rollouts.formats.files import check_export_target, replace_atomically
from tdx.rollouts.formats.interface import Exported, ExportOptions
from tdx.rollouts.formats.jsonl import write_lines
from tdx.rollouts.formats.registry import Format, find_format, format_of_suffix
from tdx.rollouts.formats.stored import ExportSource, measure_bytes
from tdx.rollouts.recording.stream import Progress, ignore_progress


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
            ``jsonl``, ``mp4`` or ``gif``. ``None``: that of the suffix of ``path``.
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
    opened = dump if isinstance(dump, Dump) else open_dump(dump)
    kind = find_format(to) if to is not None else format_of_suffix(path)
    options = ExportOptions(None if episodes is None else tuple(episodes), fps, split, lossy)
    _check_options(kind, options)
    target = Path(path) if path is not None else _default_target(opened.path, kind, split)
    is_folder = kind.is_folder or split
    check_export_target(target, kind, is_folder, force)
    source = ExportSource(opened, keys, raw=kind.holds_raw, on_rows=on_rows)
    codec = find_codec(kind)
    plan = codec.plan(source, options)
    notes = (*_list_omissions(opened, source, kind), *plan.notes)
    size = plan.size
    if not dry_run:
        with replace_atomically(target, folder=is_folder) as part:
            notes += codec.write(source, part, replace(options, name=target.name))
            size = measure_bytes(part)
    return Exported(
        source=str(opened.path),
        path=str(target),
        format=kind.name,
        written=not dry_run,
        steps=source.steps,
        batch_size=source.batch_size,
        episodes=plan.episodes,
        size=size,
        notes=notes,
        entries=plan.entries,
    )


def export_lines(dump: str | Path, stream: IO[bytes], *, keys: Sequence[str] | None = None) -> None:
    """Write a dump as JSON lines to a stream, one line per step of each env.

    Args:
        dump: Folder of the dump.
        stream: Target.
        keys: Entries to export. ``None``: all.
    """
    write_lines(ExportSource(open_dump(dump), keys, raw=False), stream)


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
