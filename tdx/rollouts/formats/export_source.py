"""A dump as the source of an export: its entries in blocks, its episodes, and its note."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.array_files import Array, FileColumn
from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError, UnknownNameError, did_you_mean
from tdx.foundation.keys import format_key, normalize_key
from tdx.foundation.text import dtype_name
from tdx.rollouts.dump.entries import Parts, key_names
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.dump.index import ChunkList
from tdx.rollouts.dump.manifest import Goal, Manifest
from tdx.rollouts.dump.progress import Progress, ignore_progress
from tdx.rollouts.dump.reading import Dump
from tdx.rollouts.dump.track import Track, checksum
from tdx.rollouts.formats.files import VERSION, array_column
from tdx.rollouts.formats.interface import ExportColumn, ExportedEntry, ExportPlan

_BLOCK = 2**23
"""Number of bytes that are read at a time, unless a chunk is larger."""


def name_columns(manifest: Manifest, taken: Sequence[str] = ()) -> list[ExportColumn]:
    """Give each entry a unique name: its key with dots, with the prefix ``raw/`` for raw ones."""
    found, used = [], set(taken)
    for track, _ in manifest.tracks:
        for path in track.leaves:
            name = format_key(normalize_key(path))
            name = name if track.name == DATA else f"{track.name}/{name}"
            while name in used:
                name += "_"
            used.add(name)
            found.append(ExportColumn(track.name, path, name))
    return found


class ExportSource:
    """A dump, or the entries in it that ``keys`` names, as the source of an export."""

    def __init__(
        self,
        dump: Dump,
        keys: Sequence[str] | None = None,
        *,
        raw: bool = True,
        on_rows: Callable[[Progress], None] = ignore_progress,
    ) -> None:
        self.dump, self.folder = dump, dump.path
        self.manifest = _select_entries(dump.manifest, keys, raw)
        self._on_rows = on_rows

    @property
    def name(self) -> str:
        """Name of the dump."""
        return self.folder.resolve().name

    @property
    def steps(self) -> int:
        """Number of steps of each env."""
        return self.manifest.steps

    @property
    def batch_size(self) -> tuple[int, ...]:
        """``[*B]``."""
        return self.manifest.batch_size

    @property
    def rows(self) -> int:
        """Number of rows in the batch."""
        return torch.Size(self.batch_size).numel()

    @property
    def data(self) -> Track:
        """Track of the rollout."""
        assert self.manifest.data is not None
        return self.manifest.data

    @property
    def episodes(self) -> list[Episode]:
        """All episodes, as ``tdx show`` lists them; those still running are the last."""
        return list(self.manifest.episodes)

    def note(self, columns: Sequence[ExportColumn]) -> dict[str, Any]:
        """Return the note, from which an import restores the same dump."""
        listed = [column.to_dict() for column in columns]
        return {"export": VERSION, "manifest": self.manifest.to_dict(), "columns": listed}

    def note_text(self, columns: Sequence[ExportColumn]) -> str:
        """Return :meth:`note` as JSON."""
        return json.dumps(self.note(columns), allow_nan=False)

    def entries(self, columns: Sequence[ExportColumn]) -> tuple[ExportedEntry, ...]:
        """Return the entries and their places in the file."""
        tracks = {track.name: track for track, _ in self.manifest.tracks}
        found = []
        for column in columns:
            dtype, shape = tracks[column.track].leaves[column.path]
            name = format_key(normalize_key(column.path))
            key = name if column.track == DATA else f"{column.track}:{name}"
            inner = tuple(shape[len(self.batch_size) :])
            found.append(ExportedEntry(key, column.name, inner, dtype_name(dtype)))
        return tuple(found)

    def plan(self) -> ExportPlan:
        """Return the plan to export all entries under their own names."""
        columns = name_columns(self.manifest)
        return ExportPlan(self.entries(columns), len(self.episodes), self.manifest.size)

    def track(self, name: str) -> tuple[Track, int]:
        """Return a track, and its number of steps."""
        return next(found for found in self.manifest.tracks if found[0].name == name)

    def array(self, column: ExportColumn) -> FileColumn:
        """Return dtype and shape of the array of an entry, ``[T, *B, ...]``."""
        track, steps = self.track(column.track)
        dtype, shape = track.leaves[column.path]
        return array_column(dtype, (steps, *shape))

    def step_array(self, path: Parts) -> FileColumn:
        """Return dtype and shape of the array of an entry in one step of one row."""
        dtype, shape = self.data.leaves[path]
        return array_column(dtype, shape[len(self.batch_size) :], splits_complex=True)

    def column_blocks(self, column: ExportColumn) -> Iterator[Tensor]:
        """Yield the blocks of one entry, ``[n, *B, ...]``, in order."""
        for _, leaves in self.blocks(column.track, [column.path]):
            yield leaves[column.path]

    def blocks(
        self, name: str = DATA, paths: Sequence[Parts] | None = None
    ) -> Iterator[tuple[int, dict[Parts, Tensor]]]:
        """Read entries a few chunks at a time, and compare them with their checksums.

        Yields:
            The first step, and each entry, ``[n, *B, ...]``.
        """
        track, _ = self.track(name)
        wanted = list(track.leaves) if paths is None else list(paths)
        step_bytes = sum(map(track.step_bytes, wanted))
        start, goal = 0, Goal(steps=self.manifest.steps)
        for sizes in self._group_chunks(name, step_bytes):
            yield start, {path: self._read(track, path, start, sizes) for path in wanted}
            start += sum(steps for _, steps in sizes)
            steps = self.manifest.steps
            self._on_rows(Progress(min(start, steps), 0, goal, start))

    def _group_chunks(self, name: str, step_bytes: int) -> Iterator[list[tuple[int, int]]]:
        """Group successive chunks into blocks; yields the index and steps of each chunk."""
        group: list[tuple[int, int]] = []
        size = 0
        for index, chunk in enumerate(self.manifest.chunks):
            steps = chunk.steps if name == DATA else chunk.raw_steps
            if not steps:
                continue
            if group and size + steps * step_bytes > _BLOCK:
                yield group
                group, size = [], 0
            group.append((index, steps))
            size += steps * step_bytes
        if group:
            yield group

    def _read(self, track: Track, path: Parts, start: int, sizes: list[tuple[int, int]]) -> Tensor:
        file, offset = track.file(path), 0
        with Container.open(self.folder) as root:
            column = track.read_column(root, path, start, sum(count for _, count in sizes))
        for index, count in sizes:
            crc = checksum(column[offset : offset + count])
            if crc != self.manifest.chunks[index].crc32.get(file):
                raise StorageError(
                    f"the checksum of chunk {index} in {self.folder / file} differs",
                    hint=f"`tdx verify {self.folder}` lists all problems",
                )
            offset += count
        return column

    def check(self, paths: Sequence[Parts]) -> None:
        """Read entries once, and compare them with their checksums."""
        for _ in self.blocks(DATA, paths):
            pass

    def span(self, path: Parts, row: int, start: int, stop: int) -> Tensor:
        """Read a range of steps of one row, ``[n, ...]``."""
        leaf: Tensor = self.dump.data.get(normalize_key(path))
        for place in np.unravel_index(row, self.batch_size) if self.batch_size else ():
            leaf = leaf[int(place)]
        return leaf[start:stop].contiguous()


class EpisodeLookup:
    """Looks up the episode of each step, and the step within the episode."""

    def __init__(self, episodes: Sequence[Episode], rows: int) -> None:
        by_row: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
        for number, episode in enumerate(episodes):
            by_row[episode.row].append((episode.start, number))
        self._starts, self._numbers = [], []
        for spans in by_row:
            spans.sort()
            self._starts.append(np.array([start for start, _ in spans], dtype=np.int64))
            self._numbers.append(np.array([number for _, number in spans], dtype=np.int64))

    def read(self, start: int, steps: int) -> tuple[Array, Array]:
        """Return the index of the episode and the step in it, both ``[steps, rows]``."""
        times = np.arange(start, start + steps)
        numbers, counts = [], []
        for starts, number in zip(self._starts, self._numbers, strict=True):
            place = np.searchsorted(starts, times, side="right") - 1
            numbers.append(number[place])
            counts.append(times - starts[place])
        return np.stack(numbers, 1), np.stack(counts, 1)


def _select_entries(manifest: Manifest, keys: Sequence[str] | None, raw: bool) -> Manifest:
    """Return the manifest of a dump with some of the entries; an export cannot be resumed."""
    assert manifest.data is not None
    known = {name for path in manifest.data.leaves for name in key_names(normalize_key(path))}
    for name in keys or ():
        if name not in known:
            hint = did_you_mean(name, known, f"known entries: {', '.join(sorted(known))}")
            raise UnknownNameError(f"--keys: unknown entry {name!r}", hint=hint)

    def select(track: Track | None) -> Track | None:
        if track is None or keys is None:
            return track
        leaves = {
            path: leaf
            for path, leaf in track.leaves.items()
            if not set(keys).isdisjoint(key_names(normalize_key(path)))
        }
        groups = {
            path: batch
            for path, batch in track.groups.items()
            if any(leaf[: len(path)] == path for leaf in leaves)
        }
        return replace(track, leaves=leaves, groups=groups) if leaves else None

    data, raw_track = select(manifest.data), select(manifest.raw) if raw else None
    tracks = [track for track in (data, raw_track) if track is not None]
    files = {track.file(path) for track in tracks for path in track.leaves}
    return replace(
        manifest,
        keys=manifest.keys if keys is None else tuple(keys),
        data=data,
        raw=raw_track,
        keeps_raw=manifest.keeps_raw and keys is None and raw_track is not None,
        state=None,
        chunks=ChunkList(
            replace(
                chunk,
                raw_steps=0 if raw_track is None else chunk.raw_steps,
                crc32={file: crc for file, crc in chunk.crc32.items() if file in files},
            )
            for chunk in manifest.chunks
        ),
    )
