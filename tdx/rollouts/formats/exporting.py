"""Export a dump to another format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from tdx.errors import ArgumentError
from tdx.rollouts.dump.reading import Dump, open_dump
from tdx.rollouts.formats import jsonl
from tdx.rollouts.formats.interface import Exported, ExportOptions
from tdx.rollouts.formats.registry import Format, find_format, format_of_suffix
from tdx.rollouts.formats.stored import ExportSource, measure_bytes
from tdx.rollouts.formats.target import check_export_target, replace_atomically
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
    """Write a dump in another format: its numbers bit for bit, and all that the dump knows of them.

    Args:
        dump: the dump, or its folder.
        path: where to write; beside the dump, with its name, by default.
        to: the format: ``minari``, ``parquet``, ``hdf5``, ``zarr``, ``safetensors``, ``npz``,
            ``jsonl``, ``mp4`` or ``gif``; what ``path`` ends with by default.
        keys: the entries to export, as ``reward`` or ``next.reward``; all by default.
        episodes: of a film: which ones, by their place in the manifest.
        fps: of a film: frames a second.
        split: of a film: whether each episode gets a file of its own, in a folder.
        lossy: of an mp4: whether it is to play everywhere, rather than to be exact.
        force: whether what is there is overwritten.
        dry_run: whether nothing is written.
        on_rows: told how far the writing is.

    Returns:
        what was written; :func:`import_dump` makes a dump of it again.

    Raises:
        TdxError: the format cannot hold the dump, a package is missing, something is there
            already, or the disk is full. Nothing is left of an export that failed.

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
    kind = (
        find_format(to)
        if to is not None
        else format_of_suffix(None if path is None else Path(path))
    )
    options = ExportOptions(None if episodes is None else tuple(episodes), fps, split, lossy)
    _check_options(kind, options)
    target = Path(path) if path is not None else _beside(opened.path, kind, split)
    is_folder = kind.is_folder or split
    check_export_target(target, kind, is_folder, force)
    stored = ExportSource(opened, keys, raw=kind.holds_raw, on_rows=on_rows)
    module = kind.module
    plan = module.plan(stored, options) if hasattr(module, "plan") else stored.plan()
    notes = (*_left_out(opened, stored, kind), *plan.notes)
    size = plan.size
    if not dry_run:
        with replace_atomically(target, folder=is_folder) as part:
            notes += module.write(stored, part, replace(options, name=target.name))
            size = measure_bytes(part)
    return Exported(
        source=str(opened.path),
        path=str(target),
        format=kind.name,
        steps=stored.steps,
        batch_size=stored.batch_size,
        episodes=plan.episodes,
        size=size,
        entries=plan.entries,
        notes=notes,
        written=not dry_run,
    )


def export_lines(
    dump: str | Path,
    stream: IO[bytes],
    *,
    keys: Sequence[str] | None = None,
) -> None:
    """Write a dump as JSON lines to a stream, a line for each step of each env.

    Args:
        dump: its folder.
        stream: where to.
        keys: the entries to export; all by default.
    """
    jsonl.write_lines(ExportSource(open_dump(dump), keys, raw=False), stream)


def _check_options(kind: Format, options: ExportOptions) -> None:
    if kind.has_frames:
        if options.lossy and kind.name != "mp4":
            raise ArgumentError("--lossy is for mp4", hint=f"leave it out for {kind.name}")
        return
    for name in ("episodes", "split", "lossy"):
        if getattr(options, name):
            raise ArgumentError(f"--{name} is for films", hint=f"leave it out for {kind.name}")


def _beside(folder: Path, kind: Format, split: bool) -> Path:
    place = folder.resolve()
    ending = f"-{kind.name}" if split else kind.suffixes[0]
    name = f"{place.name}{ending}"
    return folder.parent / name if folder.name else place.parent / name


def _left_out(dump: Dump, stored: ExportSource, kind: Format) -> tuple[str, ...]:
    notes = []
    if dump.raw is not None and stored.manifest.raw is None and not kind.has_frames:
        notes.append(
            f"what the env itself gave (--raw) is left out: {kind.name} has one row a step"
            if not kind.holds_raw
            else "what the env itself gave (--raw) is left out"
        )
    if not dump.manifest.complete:
        notes.append("the rollout is unfinished: what is there is exported")
    return tuple(notes)
