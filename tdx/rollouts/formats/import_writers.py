"""Write the content of a file into the folder of a new dump.

An export of tdx becomes the same dump. The entries of any other file are named after its columns,
and their specs are inferred.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.array_files import FileColumn
from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError
from tdx.foundation.keys import split_key
from tdx.foundation.text import dtype_name
from tdx.pipeline import EnvConfig, Pipeline, write_pipeline
from tdx.rollouts.dump.entries import Parts, SpecEntry
from tdx.rollouts.dump.episodes import EpisodeIndex, EpisodeKeys
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.dump.index import Chunk, ChunkList
from tdx.rollouts.dump.manifest import Goal, Manifest, package_versions
from tdx.rollouts.dump.progress import Progress
from tdx.rollouts.dump.track import Track
from tdx.rollouts.formats.files import check_key, from_array, is_numeric
from tdx.rollouts.formats.interface import ColumnReader

UNKNOWN = "unknown"
_BLOCK = 2**23
_MAX_NAMES = 5
_FLAGS = ("terminated", "truncated", "done")
_ALIASES: dict[str, Parts] = {
    "observations": ("observation",),
    "obs": ("observation",),
    "next_observations": ("next", "observation"),
    "next_obs": ("next", "observation"),
    "next_observation": ("next", "observation"),
    "actions": ("action",),
    "reward": ("next", "reward"),
    "rewards": ("next", "reward"),
    "terminal": ("next", "terminated"),
    "terminals": ("next", "terminated"),
    "terminated": ("next", "terminated"),
    "terminations": ("next", "terminated"),
    "timeout": ("next", "truncated"),
    "timeouts": ("next", "truncated"),
    "truncated": ("next", "truncated"),
    "truncations": ("next", "truncated"),
    "done": ("next", "done"),
    "dones": ("next", "done"),
}
"""Common names of entries in other libraries."""
_HINT = "each column needs one row of numbers per step"


class OwnImport:
    """Restores the dump that a file was exported from."""

    def __init__(self, reader: ColumnReader, note: Mapping[str, Any], source: Path) -> None:
        self._reader, self._source = reader, source
        self._manifest = Manifest.from_dict(note["manifest"])
        self._names: dict[str, dict[Parts, str]] = {}
        for column in note["columns"]:
            self._names.setdefault(column["track"], {})[tuple(column["key"])] = column["name"]

    def write(
        self, root: Container, on_rows: Callable[[Progress], None]
    ) -> tuple[Manifest, tuple[str, ...]]:
        """Write the tracks into a new dump; return its manifest, not yet written, and remarks."""
        manifest = self._manifest
        for track, steps in manifest.tracks:
            found, names = self._reader.columns(), self._names.get(track.name, {})
            for path in track.leaves:
                column = found.get(names.get(path, ""))
                if column is None:
                    raise self._changed(f"{names.get(path)!r} is missing")
                if column.shape[:1] != (steps,):
                    found_steps = column.shape[0] if column.shape else 0
                    raise self._changed(f"it has {found_steps:,} steps, not {steps:,}")
            self._copy(track, root, on_rows)
        if not self._reader.is_at_end():
            raise self._changed("it has more steps")
        notes: tuple[str, ...] = ()
        if not manifest.complete:
            manifest.complete, manifest.goal = True, Goal(steps=manifest.steps)
            manifest.chunks = ChunkList(replace(chunk, partial=False) for chunk in manifest.chunks)
            notes = ("the rollout was unfinished; the imported dump cannot be resumed",)
        return manifest, notes

    def _copy(self, track: Track, root: Container, on_rows: Callable[[Progress], None]) -> None:
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
            for file, crc in track.write(root, columns, start).items():
                if chunk.crc32.get(file) != crc:
                    raise self._changed(f"the checksum of chunk {index} of {file} differs")
            start += steps
            on_rows(Progress(min(start, manifest.steps), 0, goal, start))

    def _changed(self, what: str) -> StorageError:
        return StorageError(
            f"{self._source} was changed after its export: {what}", hint="export the dump again"
        )


@dataclass(frozen=True, slots=True)
class _Leaf:
    name: str
    path: Parts
    dtype: torch.dtype
    shape: tuple[int, ...]


class ForeignImport:
    """Imports a file that tdx did not export; the user may know the id of its env."""

    def __init__(self, reader: ColumnReader, source: Path, env: str | None) -> None:
        self._reader, self._source = reader, source
        every = reader.columns()
        found = {
            name: column for name, column in every.items() if column.shape and _torch_dtype(column)
        }
        self._left_out = [name for name in every if name not in found]
        if not found:
            raise StorageError(f"{source} has no numeric columns", hint=_HINT)
        lengths = {name: column.shape[0] for name, column in found.items()}
        one, other = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        self._steps = lengths[one]
        if self._steps != lengths[other]:
            raise StorageError(
                f"{source}: {one!r} has {lengths[one]:,} rows and {other!r} {lengths[other]:,}",
                hint=_HINT,
            )
        if not self._steps:
            raise StorageError(f"{source} has no steps", hint=_HINT)
        self._leaves = [self._leaf(name, path, found[name]) for name, path in _paths(found).items()]
        paths = [leaf.path for leaf in self._leaves]
        for path in paths:
            check_key(path, source)
        inside = {path[:end] for path in paths for end in range(1, len(path))}
        for path in inside.intersection(paths):
            raise StorageError(
                f"{'.'.join(path)!r} in {source} is both a column and a group",
                hint="rename one of them",
            )
        if len(set(paths)) < len(paths):
            twice = next(path for path in paths if paths.count(path) > 1)
            raise StorageError(
                f"two columns of {source} are named {'.'.join(twice)!r}", hint="rename one of them"
            )
        self._adds_done = ("next", "done") not in paths and any(
            ("next", flag) in paths for flag in _FLAGS
        )
        self._env = env or (reader.env[0] if reader.env else UNKNOWN)
        self._kwargs = dict(reader.env[1]) if reader.env and env is None else {}

    def _leaf(self, name: str, path: Parts, found: FileColumn) -> _Leaf:
        dtype = _torch_dtype(found)
        assert dtype is not None
        shape = found.shape[1:]
        if path[0] == "next" and path[-1] in _FLAGS:
            dtype = torch.bool
        if path[0] == "next" and path[-1] in (*_FLAGS, "reward") and not shape:
            shape = (1,)
        return _Leaf(name, path, dtype, shape)

    def write(
        self, root: Container, on_rows: Callable[[Progress], None]
    ) -> tuple[Manifest, tuple[str, ...]]:
        """Write the entries into a new dump; return its manifest, not yet written, and remarks."""
        leaves = {leaf.path: (leaf.dtype, leaf.shape) for leaf in self._leaves}
        if self._adds_done:
            flags = [leaves[path] for flag in _FLAGS if (path := ("next", flag)) in leaves]
            leaves["next", "done"] = flags[0]
        track = Track(DATA, (), leaves)
        manifest = self._manifest(track)
        steps, read = manifest.chunk_steps, _flags(track)
        names = [leaf.name for leaf in self._leaves]
        for start in range(0, self._steps, steps):
            count = min(steps, self._steps - start)
            columns = self._columns(self._reader.read_steps(names, start, start + count), count)
            sums = track.write(root, columns, start)
            signals = {
                key: columns["next", *split_key(key)].reshape(1, count, -1)
                for key in (*read.rewards, *read.ends)
            }
            manifest.episodes.add(*read.read_flat(signals.__getitem__, 1, count))
            manifest.chunks.append(Chunk(count, 0, sums))
            on_rows(Progress(start + count, 0, manifest.goal, start + count))
        manifest.complete = True
        return manifest, self._notes()

    def _columns(self, rows: Mapping[str, Any], steps: int) -> dict[Parts, Tensor]:
        found = {}
        for leaf in self._leaves:
            array = np.asarray(rows[leaf.name])
            if leaf.dtype is torch.bool and array.dtype != np.bool_:
                array = array != 0
            try:
                found[leaf.path] = from_array(array, leaf.dtype, (steps, *leaf.shape))
            except (ValueError, RuntimeError, TypeError) as error:
                raise StorageError(
                    f"the shape of {leaf.name!r} in {self._source} differs from its declaration",
                    hint=_HINT,
                ) from error
        if self._adds_done:
            flags = [found[path] for flag in _FLAGS if (path := ("next", flag)) in found]
            found["next", "done"] = torch.stack(flags).any(0)
        return found

    def _manifest(self, track: Track) -> Manifest:
        step = sum(map(track.step_bytes, track.leaves))
        env = EnvConfig(self._env, kwargs=self._kwargs)
        return Manifest(
            pipeline=write_pipeline(Pipeline(env)),
            seed=0,
            policy=UNKNOWN,
            policy_sha256=None,
            goal=Goal(steps=self._steps),
            chunk_steps=max(1, min(10_000, _BLOCK // max(step, 1))),
            keys=None,
            batch_size=(),
            specs=_specs(track),
            versions=package_versions(),
            data=track,
            flags=_flags(track),
            episodes=EpisodeIndex(1),
        )

    def _notes(self) -> tuple[str, ...]:
        notes = [
            "not an export of tdx: specs are inferred from the values, seed and policy are unknown"
        ]
        if self._env == UNKNOWN:
            notes.append("its env is unknown too: name it with --env")
        if self._left_out:
            names, more = self._left_out[:_MAX_NAMES], len(self._left_out) - _MAX_NAMES
            listed = ", ".join(names) + (f" and {more} more" if more > 0 else "")
            notes.append(f"left out, because they are not numeric: {listed}")
        paths = {leaf.path for leaf in self._leaves}
        if not any(("next", flag) in paths for flag in _FLAGS):
            notes.append(
                "no column marks the end of an episode: the file is imported as one episode"
            )
        elif self._adds_done:
            notes.append("next.done is computed from next.terminated and next.truncated")
        return (*notes, *self._reader.notes())


def _torch_dtype(found: FileColumn) -> torch.dtype | None:
    """Return the dtype of the entry for a column; ``None`` if the column is not numeric."""
    if not is_numeric(found.dtype):
        return None
    try:
        return torch.from_numpy(np.empty(0, np.dtype(found.dtype).newbyteorder("="))).dtype
    except TypeError:
        return None


def _paths(found: Mapping[str, FileColumn]) -> dict[str, Parts]:
    parts = {name: tuple(part for part in re.split(r"[./]", name) if part) for name in found}
    if any(path[:1] == ("next",) for path in parts.values()):
        return parts
    return {
        name: (*path[:-1], *_ALIASES.get(path[-1], path[-1:])) if len(path) == 1 else path
        for name, path in parts.items()
    }


def _specs(track: Track) -> list[SpecEntry]:
    found: dict[Parts, SpecEntry] = {}
    for path, (dtype, shape) in track.leaves.items():
        key = path[1:] if path[0] == "next" and path[1:] else path
        part = "observation"
        if key[-1] == "reward":
            part = "reward"
        elif key[-1] in _FLAGS:
            part = "done"
        elif key[0] == "action":
            part = "action"
        entry = SpecEntry(
            part=part,
            key=list(key),
            kind="UnboundedContinuous" if dtype.is_floating_point else "UnboundedDiscrete",
            shape=list(shape),
            dtype=dtype_name(dtype),
            low=None,
            high=None,
        )
        found.setdefault(key, entry)
    return list(found.values())


def _flags(track: Track) -> EpisodeKeys:
    rewards = ("reward",) if ("next", "reward") in track.leaves else ()
    return EpisodeKeys(rewards, tuple(flag for flag in _FLAGS if ("next", flag) in track.leaves))
