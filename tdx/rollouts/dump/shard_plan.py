"""Plan of a sharded dump, the list of its shards, and the index of all shards.

A sharded dump is a folder with a plan, ``manifest.json``, and one ordinary dump per shard below
``shards``. What a shard contains follows from the plan alone. When all shards are committed, the
index ``shards.jsonl`` gets one sealed line per shard, so that opening reads none of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tdx.foundation.container import TEMPORARY_FILE, Container, seal
from tdx.foundation.errors import StorageError
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.untrusted import Fields
from tdx.pipeline import read_pipeline, write_pipeline
from tdx.rollouts.dump.encoding import DAMAGED
from tdx.rollouts.dump.episodes import EpisodeIndex
from tdx.rollouts.dump.folder import (
    MANIFEST,
    SHARD_INDEX,
    SHARDS,
    read_dump_folder,
    report_unreadable,
)
from tdx.rollouts.dump.index import ChunkList, Position, read_lines
from tdx.rollouts.dump.manifest import SHARDS_FORMAT, Goal, Manifest, load_manifest, read_header
from tdx.rollouts.dump.track import Track

VERSION = 1
MAX_SHARDS = 100_000
_ENTRY = re.compile(r"(\d{5})(\.part|\.failed)?")
_MAX_FAILURE_BYTES = 10_000
_ANY_SEED = 5_317_263_998_120_487_113
_SEED_RANGE = 2**31
_SEED_STEP = 1_327_217_885
"""Odd, and close to 2**31 divided by the golden ratio: any number of successive multiples are
spread almost evenly, so that the consecutive seeds of a batch stay within their shard."""


def derive_shard_seed(root_seed: int, shard: int) -> int:
    """Return the seed of a shard, which differs from that of every other shard.

    Example:
        >>> len({derive_shard_seed(0, shard) for shard in range(2048)})
        2048
    """
    start = int.from_bytes(sha256(f"tdx shards {root_seed}".encode()).digest()[:4], "little")
    return (start + shard * _SEED_STEP) % _SEED_RANGE


@dataclass(frozen=True)
class ShardPlan:
    """What the shards of a dump contain.

    Args:
        manifest: Description of the whole rollout: its seed is the root seed, and its goal the
            total length. It has no steps.
        count: Number of shards.
    """

    manifest: Manifest
    count: int

    def header(self) -> dict[str, Any]:
        """Return everything as plain data."""
        fields = {**self.manifest.header(), "format": SHARDS_FORMAT, "version": VERSION}
        return {**fields, "shards": self.count}

    def save(self, root: Container) -> None:
        """Write the plan below the descriptor of the dump's folder.

        Raises:
            OSError: It cannot be written.
        """
        text, _ = seal(self.header(), indent=1)
        root.replace(MANIFEST, text)

    @classmethod
    def read(cls, root: Container) -> ShardPlan:
        """Read the plan of a dump.

        Raises:
            StorageError: It is missing or damaged, or the dump has no shards.
        """
        fields = read_header(root, SHARDS_FORMAT, VERSION)
        count = fields.count("shards", least=1, most=MAX_SHARDS)
        return cls(Manifest.of_header(fields), count)

    @classmethod
    def load(cls, folder: Path) -> ShardPlan:
        """Read the plan of a dump by its folder; see :meth:`read`."""
        return read_dump_folder(folder, cls.read)

    def goal(self, shard: int) -> Goal:
        """Return the length of a shard; the first shards have one step or episode more."""
        total = self.manifest.goal

        def share(number: int | None) -> int | None:
            return None if number is None else number // self.count + (shard < number % self.count)

        return Goal(share(total.steps), share(total.episodes))

    @cached_property
    def _pipeline(self) -> str:
        """The pipeline as YAML with a placeholder for the seed, because writing YAML is slow."""
        pipeline = read_pipeline(self.manifest.pipeline, MANIFEST)
        return write_pipeline(replace(pipeline, env=replace(pipeline.env, seed=_ANY_SEED)))

    def shard_manifest(self, shard: int) -> Manifest:
        """Return the manifest of a shard without steps."""
        whole, seed = self.manifest, derive_shard_seed(self.manifest.seed, shard)
        return replace(
            whole,
            pipeline=self._pipeline.replace(str(_ANY_SEED), str(seed)),
            seed=seed,
            goal=self.goal(shard),
            source=None if whole.source is None else f"{whole.source}/{shard_name(shard)}",
            chunks=ChunkList(),
            episodes=EpisodeIndex(max(prod(whole.batch_size), 1)),
        )

    def read_shard(self, root: Container, shard: int) -> tuple[Manifest, Position]:
        """Read the manifest of a committed shard, and the end of its index.

        Args:
            root: The dump's folder.
            shard: Index of the shard.

        Raises:
            StorageError: It is damaged, or not the shard of this plan.
        """
        path = root.path / shard_name(shard)
        with report_unreadable(path), root.subfolder(shard_name(shard)) as inner:
            manifest, end = load_manifest(inner)
        if not manifest.complete or manifest.header() != self.shard_manifest(shard).header():
            raise changed_shard(path)
        return manifest, end


def shard_name(shard: int) -> str:
    """Return the folder of a shard, relative to the dump's folder."""
    return f"{SHARDS}/{shard:05}"


def changed_shard(path: Path) -> StorageError:
    """Return the error for a shard that is not the one that was recorded."""
    return StorageError(
        f"{path} is not the shard that was recorded here",
        hint="remove that folder, and run the rollout again: it records only missing shards",
    )


def is_sharded(folder: Path | Container) -> bool:
    """Return True if a folder has the shards of a dump."""
    if isinstance(folder, Container):
        return SHARDS in folder.names()
    return os.path.lexists(folder / SHARDS)


@dataclass(frozen=True, slots=True)
class ShardListing:
    """Shards by their state in the folder."""

    committed: tuple[int, ...]
    parts: tuple[int, ...]  # being recorded, or left by a process that ended
    failures: dict[int, str]  # message of the last attempt


def list_shards(root: Container, count: int) -> ShardListing:
    """List the shards in a folder without opening any of them."""
    found: dict[str, list[int]] = {"": [], ".part": [], ".failed": []}
    try:
        with root.subfolder(SHARDS) as inner:
            for entry in inner.folder.entries():
                if TEMPORARY_FILE.fullmatch(entry.name):
                    continue
                match = _ENTRY.fullmatch(entry.name)
                kind = None if match is None else match[2] or ""
                is_right_type = entry.is_file if kind == ".failed" else entry.is_dir
                if (
                    match is None
                    or int(match[1]) >= count
                    or not is_right_type(follow_symlinks=False)
                ):
                    raise StorageError(
                        f"{inner.path / entry.name} does not belong to the dump",
                        hint="move it elsewhere; tdx neither follows links nor removes other files",
                    )
                found[kind or ""].append(int(match[1]))
    except FileNotFoundError:
        pass
    failures = {}
    for shard in sorted(found[".failed"]):
        with suppress(FileNotFoundError), root.open_file(f"{shard_name(shard)}.failed") as file:
            text = file.read(_MAX_FAILURE_BYTES)
            failures[shard] = text.decode(errors="replace").strip()
    return ShardListing(tuple(sorted(found[""])), tuple(sorted(found[".part"])), failures)


@dataclass(frozen=True, slots=True)
class ShardSummary(Result):
    """Numbers of a committed shard: one line of the index.

    Args:
        shard: Index of the shard.
        steps: Number of steps of each env.
        raw_steps: Number of raw steps, if they are stored.
        chunks: Number of chunks.
        size: Number of bytes of the entries.
        ended: Number of episodes that ended.
        returns: Sum of their returns.
        lengths: Sum of their lengths.
        check: Checksum at the end of the shard's own index.
    """

    json_entries: ClassVar[Entries] = (
        *("shard", "steps", "raw_steps", "chunks", Entry("bytes", "size")),
        *(Entry("episodes", "ended"), Entry("return", "returns"), Entry("length", "lengths")),
        Entry("index", "check", convert="{:08x}".format),
    )

    shard: int
    steps: int
    raw_steps: int
    chunks: int
    size: int
    ended: int
    returns: float
    lengths: int
    check: int

    @classmethod
    def of(cls, shard: int, manifest: Manifest, end: Position) -> ShardSummary:
        """Summarize a shard."""
        episodes = manifest.episodes
        return cls(
            shard,
            manifest.steps,
            manifest.raw_steps,
            len(manifest.chunks),
            manifest.size,
            len(episodes),
            float(np.sum(episodes.column("return"))),
            int(np.sum(episodes.column("length"))),
            end.check,
        )

    @classmethod
    def from_fields(cls, fields: Fields) -> ShardSummary:
        """Parse a line of the index."""
        try:
            returns = float(fields.value("return"))
        except (TypeError, ValueError, OverflowError):
            raise fields.invalid("return", "a number") from None
        return cls(
            fields.count("shard"),
            fields.count("steps"),
            fields.count("raw_steps"),
            fields.count("chunks"),
            fields.count("bytes"),
            fields.count("episodes"),
            returns,
            fields.count("length"),
            int(fields.crc32("index"), 16),
        )


def write_shard_index(
    root: Container, plan: ShardPlan, tracks: Sequence[Track], shards: Sequence[ShardSummary]
) -> None:
    """Write the index of all shards, which marks the dump as complete.

    Raises:
        OSError: It cannot be written.
    """
    lines: list[bytes] = []
    check = seal(plan.header())[1]
    for shard in shards:
        line = shard.to_dict()
        if not lines:
            line["tracks"] = {track.name: track.to_dict() for track in tracks}
        text, check = seal(line, check)
        lines.append(text)
    root.replace(SHARD_INDEX, b"".join(lines), completes=True)


def read_shard_index(
    root: Container, plan: ShardPlan
) -> tuple[dict[str, Track], list[ShardSummary]] | None:
    """Read the tracks and summaries of all shards; ``None`` if the dump is not complete."""
    source, tracks = str(root.path / SHARD_INDEX), {}
    shards: list[ShardSummary] = []
    try:
        with root.open_file(SHARD_INDEX) as file:
            for fields, _ in read_lines(file, Position(seal(plan.header())[1]), source):
                if not shards:
                    found = fields.object("tracks").data
                    batch = plan.manifest.batch_size
                    tracks = {name: Track.from_dict(name, batch, found[name]) for name in found}
                shards.append(ShardSummary.from_fields(fields))
    except FileNotFoundError:
        return None
    if [shard.shard for shard in shards] != list(range(plan.count)):
        raise StorageError(f"{source} does not have a line for each shard", hint=DAMAGED)
    return tracks, shards
