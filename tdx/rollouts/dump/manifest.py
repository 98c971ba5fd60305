"""Manifest of a dump: how it was recorded, and the index of its chunks and episodes."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

from tdx.foundation.container import Container, read_seal, seal
from tdx.foundation.errors import StorageError
from tdx.foundation.serialization import to_plain
from tdx.foundation.untrusted import MAX_HEADER_BYTES, Fields, parse_json
from tdx.rollouts.dump.encoding import DAMAGED
from tdx.rollouts.dump.entries import SpecEntry, parse_spec_entries
from tdx.rollouts.dump.episodes import EpisodeIndex, EpisodeKeys, check_row_count
from tdx.rollouts.dump.folder import (
    INDEX,
    MANIFEST,
    SHARDS,
    TRACKS,
    StateFile,
    check_links,
    missing_dump,
    read_dump_folder,
)
from tdx.rollouts.dump.index import (
    Chunk,
    ChunkList,
    IndexEntry,
    Position,
    append_entry,
    parse_entry,
    read_lines,
)
from tdx.rollouts.dump.track import Track

FORMAT, VERSION = "tdx-dump", 2
SHARDS_FORMAT = "tdx-shards"
"""Format of the plan of a sharded dump."""
_PACKAGES = ("tdx", "torch", "tensordict", "gymnasium", "numpy")
_CHANGING = ("complete", "index", "check")
"""Fields of the file that change while the dump grows."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Length of a rollout, as one of two numbers.

    Args:
        steps: Number of steps of each env.
        episodes: Number of episodes of all envs together.
    """

    steps: int | None = None
    episodes: int | None = None

    def __str__(self) -> str:
        count, noun = (self.steps, "step") if self.steps else (self.episodes, "episode")
        return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(slots=True)
class Manifest:
    """Description of a dump: how it was recorded, its tracks, chunks and episodes.

    Args:
        pipeline: The pipeline as YAML.
        seed: Seed of the env and of the actions.
        policy: Policy as the user named it: ``"random"``, ``"module:FILE"``, ...
        policy_sha256: Hash of its file, if it has one.
        goal: Length of the rollout.
        chunk_steps: Number of steps of every chunk but the last.
        keys: Entries that are stored; ``None``: all.
        batch_size: ``[*B]``.
        specs: Spec of each entry, as plain data.
        versions: Versions of the packages that recorded it.
        source: Dump that was replayed, if it is a replay.
        data: Track of the rollout; ``None``: no steps yet.
        raw: Track of the raw steps of the base env, if they are stored.
        keeps_raw: Whether raw steps are stored.
        flags: Keys of rewards and of episode ends; ``None``: unknown.
        chunks: Chunks in order.
        episodes: Starts, lengths and returns of the episodes.
        transforms: Running state of ``VecNorm`` and the like, by stage and name.
        state: State file that ``--resume`` needs.
        complete: Whether the goal was reached.
        shards: Number of committed shards, and of all; ``None``: the dump is not sharded.
    """

    pipeline: str
    seed: int
    policy: str
    policy_sha256: str | None
    goal: Goal
    chunk_steps: int
    keys: tuple[str, ...] | None
    batch_size: tuple[int, ...]
    specs: list[SpecEntry] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    data: Track | None = None
    raw: Track | None = None
    keeps_raw: bool = False
    flags: EpisodeKeys | None = None
    chunks: ChunkList = field(default_factory=ChunkList)
    episodes: EpisodeIndex = field(default_factory=lambda: EpisodeIndex(1))
    transforms: dict[str, Any] = field(default_factory=dict)
    state: StateFile | None = None
    complete: bool = False
    shards: tuple[int, int] | None = None

    @property
    def steps(self) -> int:
        """Number of steps of each env that are stored."""
        return self.chunks.steps

    @property
    def raw_steps(self) -> int:
        """Number of raw steps that are stored."""
        return self.chunks.raw_steps

    @property
    def tracks(self) -> list[tuple[Track, int]]:
        """Tracks, each with its number of steps."""
        both = ((self.data, self.steps), (self.raw, self.raw_steps))
        return [(track, steps) for track, steps in both if track is not None]

    @property
    def size(self) -> int:
        """Number of bytes of the stored entries."""
        return sum(
            steps * track.step_bytes(path) for track, steps in self.tracks for path in track.leaves
        )

    @property
    def env(self) -> str:
        """The env's id."""
        from tdx.pipeline import read_pipeline

        return read_pipeline(self.pipeline, MANIFEST).env.id

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            **self.header(),
            "complete": self.complete,
            "steps": self.steps,
            "tracks": {track.name: track.to_dict() for track, _ in self.tracks},
            "transforms": self.transforms,
            "state": None if self.state is None else self.state.to_dict(),
            "episodes": self.episodes.to_dict(),
            "chunks": [chunk.to_dict() for chunk in self.chunks],
        }

    def header(self) -> dict[str, Any]:
        """Return the fields that do not change while the dump grows."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "pipeline": self.pipeline,
            "seed": self.seed,
            "policy": {"name": self.policy, "sha256": self.policy_sha256},
            "goal": to_plain(self.goal),
            "chunk_steps": self.chunk_steps,
            "keys": None if self.keys is None else list(self.keys),
            "batch_size": list(self.batch_size),
            "source": self.source,
            "versions": self.versions,
            "specs": self.specs,
            "flags": None if self.flags is None else self.flags.to_dict(),
            "keeps_raw": self.keeps_raw,
        }

    # Writing

    def start(self) -> Position:
        """Return the start of the index."""
        return header_start(self.header())

    def save_header(self, root: Container, end: Position) -> None:
        """Replace ``manifest.json``.

        Args:
            root: The dump's folder.
            end: End of the index, which the manifest of a complete dump records.
        """
        index = end.to_dict() if self.complete else None
        text, _ = seal({**self.header(), "complete": self.complete, "index": index}, indent=1)
        root.replace(MANIFEST, text, completes=self.complete)

    def save(self, root: Container) -> None:
        """Write the manifest and index of a dump whose data is written.

        Raises:
            OSError: They cannot be written.
        """
        root.replace(INDEX, b"")
        with root.open_file(INDEX, os.O_RDWR) as file:
            place = self.start()
            for entry in self._entries():
                place = append_entry(file.fileno(), entry, place, sync=False)
            os.fsync(file.fileno())
        self.save_header(root, place)

    def _entries(self) -> Iterator[IndexEntry]:
        tracks = tuple(track for track, _ in self.tracks)
        ends = list(accumulate(chunk.steps for chunk in self.chunks))
        parts = self.episodes.split(ends)
        for index, (chunk, episodes) in enumerate(zip(self.chunks, parts, strict=True)):
            crc32 = {file: chunk.crc32[file] for file in self.files(chunk.raw_steps)}
            is_last = index == len(ends) - 1
            yield IndexEntry(
                replace(chunk, crc32=crc32),
                episodes,
                self.episodes.running() if is_last else None,
                tracks if index == 0 else (),
                self.transforms if is_last else None,
                self.state if is_last else None,
            )

    # Reading

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest and index of a dump.

        Args:
            folder: The dump's folder. It may be a symbolic link; links below it are refused.

        Raises:
            StorageError: The dump is missing, damaged, of another version, or has links.
        """
        return read_dump_folder(folder, lambda root: load_manifest(root)[0])

    @classmethod
    def from_dict(cls, data: object) -> Manifest:
        """Parse the output of :meth:`to_dict`.

        Raises:
            StorageError: A field is invalid, or fields contradict each other.
        """
        fields = Fields(data, "the manifest", DAMAGED)
        manifest = cls.of_header(fields)
        tracks = fields.object("tracks")
        for name in tracks.data:
            if name not in TRACKS:
                raise fields.invalid("tracks", "the tracks data and raw")
            track = Track.from_dict(name, manifest.batch_size, tracks.data[name])
            setattr(manifest, name, track)
        for chunk in fields.objects("chunks"):
            crc32 = chunk.object("crc32")
            sums = {file: crc32.crc32(file) for file in crc32.data}
            steps, raw_steps = chunk.count("steps"), chunk.count("raw_steps")
            manifest.chunks.append(Chunk(steps, raw_steps, sums, chunk.boolean("partial")))
            if sums.keys() != set(manifest.files(raw_steps)):
                raise chunk.invalid("crc32", "the checksums of all files")
        manifest.check_steps()
        rows = prod(manifest.batch_size)
        manifest.episodes = EpisodeIndex.from_dict(fields.value("episodes"), rows, manifest.steps)
        manifest.transforms = dict(fields.object("transforms").data)
        manifest.state = StateFile.from_fields(fields.object("state", optional=True))
        manifest.complete = fields.boolean("complete")
        return manifest

    @classmethod
    def of_header(cls, fields: Fields) -> Manifest:
        """Return the manifest of a dump without steps from its :meth:`header`.

        Raises:
            StorageError: A field is invalid.
        """
        policy, goal = fields.object("policy"), fields.object("goal")
        flags, batch = fields.object("flags", optional=True), fields.shape("batch_size")
        return cls(
            pipeline=fields.text("pipeline"),
            seed=fields.seed("seed"),
            policy=policy.text("name"),
            policy_sha256=policy.text("sha256", optional=True),
            goal=Goal(goal.count("steps", optional=True), goal.count("episodes", optional=True)),
            chunk_steps=fields.count("chunk_steps", least=1),
            keys=None if fields.value("keys") is None else fields.texts("keys"),
            batch_size=batch,
            specs=parse_spec_entries(fields),
            versions=dict(fields.object("versions").data),
            source=fields.text("source", optional=True),
            keeps_raw=fields.boolean("keeps_raw"),
            flags=None if flags is None else EpisodeKeys.from_fields(flags),
            episodes=EpisodeIndex(check_row_count(prod(batch))),
        )

    def files(self, raw_steps: int) -> list[str]:
        """Return the files that a chunk is written to, in the order of their checksums."""
        return [
            track.file(path)
            for track in (self.data, self.raw if raw_steps else None)
            if track is not None
            for path in track.leaves
        ]

    def check_steps(self) -> None:
        """Refuse steps without entries, or more than can be; called when everything is read.

        Raises:
            StorageError: There are such steps.
        """
        for track, steps in self.tracks:
            track.check_steps(steps)
        if self.chunks and self.data is None:
            raise StorageError("the manifest has steps without entries", hint=DAMAGED)

    def add(self, entry: IndexEntry, source: str) -> None:
        """Add a line of the index, as it is read; ``source`` is its name in error messages.

        Raises:
            StorageError: Its episodes do not fit the steps so far.
        """
        chunk = entry.chunk
        for track in entry.tracks:
            setattr(self, track.name, track)
        steps = self.steps + chunk.steps
        self.episodes.extend(entry.episodes, steps, entry.running, source)
        self.chunks.append(chunk)
        if entry.transforms is not None:
            self.transforms = entry.transforms
        if not chunk.partial:
            self.state = entry.state


def load_manifest(root: Container, *, without_partial: bool = False) -> tuple[Manifest, Position]:
    """Read the manifest and index of a dump, perhaps without a partial last chunk.

    Also returns the end of the index.
    """
    check_links(root)
    fields = read_header(root)
    manifest = Manifest.of_header(fields)
    end = header_start(fields.data)
    source = str(root.path / INDEX)
    pending: IndexEntry | None = None
    is_open = False
    tracks: dict[str, Track] = {}
    try:
        with root.open_file(INDEX) as file:
            for line, after in read_lines(file, end, source):
                end = after
                entry = parse_entry(line, tracks, manifest.batch_size)
                pending = entry if entry.chunk.partial else None
                if pending is None:
                    manifest.add(entry, line.source)
                    is_open = entry.running is None
                    tracks.update((track.name, track) for track in entry.tracks)
            if pending is not None and not without_partial:
                manifest.add(pending, source)
                is_open = pending.running is None
            length = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise StorageError(f"{source} is missing", hint=DAMAGED) from None
    manifest.check_steps()
    if manifest.chunks and is_open:
        raise StorageError(f"{source} does not state the running episodes", hint=DAMAGED)
    manifest.complete = fields.boolean("complete")
    if manifest.complete:
        # The state file that the last line names was removed.
        manifest.state = None
    if manifest.complete and (fields.value("index"), length) != (end.to_dict(), end.offset):
        raise StorageError(f"{source} does not have the lines that {MANIFEST} states", hint=DAMAGED)
    return manifest, end


def read_header(root: Container, kind: str = FORMAT, version: int = VERSION) -> Fields:
    """Read ``manifest.json``, which must have this format and version."""
    folder = root.path
    file = folder / MANIFEST
    try:
        text = root.read(MANIFEST, MAX_HEADER_BYTES)
    except FileNotFoundError:
        raise missing_dump(folder) from None
    fields = Fields(parse_json(text, file), str(file), DAMAGED)
    written = fields.data.get("format")
    if written == SHARDS_FORMAT and kind == FORMAT:
        raise StorageError(
            f"the shards of the dump are missing: {folder / SHARDS} does not exist",
            hint="restore it from a copy, or record the dump again with --force",
        )
    if written != kind:
        raise StorageError(f"{file} is not the manifest of a dump", hint=DAMAGED)
    written = fields.value("version")
    if written != version:
        is_newer = isinstance(written, int) and written > version
        raise StorageError(
            f"{folder} is a dump of version {str(written)[:20]}; this release reads version "
            f"{version}",
            hint="read it with a newer release of tdx"
            if is_newer
            else "record it again, or read it with the release of tdx that wrote it",
        )
    if read_seal(text) is None:
        raise StorageError(f"{file} was changed after it was written", hint=DAMAGED)
    return fields


def header_start(header: Mapping[str, Any]) -> Position:
    """Return the start of the index of a manifest; its lines continue the checksum."""
    static = {name: value for name, value in header.items() if name not in _CHANGING}
    _, check = seal(static)
    return Position(check)


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that record a dump."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            if name == "tdx":
                import tdx

                found[name] = tdx.__version__
    return found
