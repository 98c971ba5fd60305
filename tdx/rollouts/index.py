"""``chunks.jsonl``: the index of a dump, which grows by one line per chunk.

Each line carries a checksum that continues the one of the line before; that of the first continues
the manifest's. A chunk counts as soon as its line is complete. A line after that of a partial chunk
takes the partial chunk's place. The file is never memory-mapped, so it may be shortened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from tdx.errors import StorageError
from tdx.rollouts.chunks import Chunk
from tdx.rollouts.episodes import Columns, columns_of_line, line_columns
from tdx.rollouts.fields import DAMAGED, Fields, is_crc32
from tdx.rollouts.sealed import seal, seal_of
from tdx.rollouts.track import Track, write_all
from tdx.untrusted import parse_json

INDEX = "chunks.jsonl"
DATA, RAW = "data", "raw"
TRACKS = (DATA, RAW)
STATE = "state"
_STATE_SUFFIX = ".state"
_MAX_LINE = 2**28
_START = b'{"steps": '


@dataclass(frozen=True, slots=True)
class StateFile:
    """The file with what is needed to resume after a chunk.

    Args:
        name: Its name in the folder ``state``.
        crc32: Its checksum.
    """

    name: str
    crc32: str

    @property
    def path(self) -> str:
        """Where it is, relative to the dump's folder."""
        return f"{STATE}/{self.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"file": self.name, "crc32": self.crc32}

    @classmethod
    def from_fields(cls, fields: Fields | None) -> StateFile | None:
        """Return what :meth:`to_dict` described.

        Raises:
            StorageError: It is none, or its name leads elsewhere.
        """
        if fields is None:
            return None
        name = fields.text("file")
        if "/" in name or "\0" in name or not name.endswith(_STATE_SUFFIX) or name[0] == ".":
            raise fields.wrong("file", "the name of a state file")
        return cls(name, fields.crc32("crc32"))

    @classmethod
    def after(cls, steps: int, crc32: int) -> StateFile:
        """Return the state file after so many steps."""
        return cls(f"{steps:012}{_STATE_SUFFIX}", f"{crc32:08x}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the index.

    Args:
        chunk: Lengths and checksums.
        episodes: Those that ended in the chunk.
        running: Rewards so far of the episodes that run after it, as plain data, by row.
        tracks: The tracks that begin with this chunk.
        transforms: Running state of the stages after it; ``None``: as before.
        state: What is needed to resume after it.
    """

    chunk: Chunk
    episodes: Columns
    running: list[Any] | None = None
    tracks: tuple[Track, ...] = ()
    transforms: dict[str, Any] | None = None
    state: StateFile | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        chunk = self.chunk
        found: dict[str, Any] = {"steps": chunk.steps, "raw_steps": chunk.raw_steps}
        if chunk.partial:
            found["partial"] = True
        if self.tracks:
            found["tracks"] = {track.name: track.to_dict() for track in self.tracks}
        found["crc32"] = list(chunk.crc32.values())
        found["episodes"] = line_columns(self.episodes)
        found["running"] = self.running
        if self.transforms is not None:
            found["transforms"] = self.transforms
        found["state"] = None if self.state is None else self.state.to_dict()
        return found


def parse_entry(fields: Fields, tracks: dict[str, Track], batch: tuple[int, ...]) -> Entry:
    """Return the entry that a line describes.

    Args:
        fields: The parsed line.
        tracks: Tracks so far, by name.
        batch: Batch size of the dump.

    Raises:
        StorageError: It describes none.
    """
    raw_steps = fields.count("raw_steps")
    begun: list[Track] = []
    if "tracks" in fields.data:
        for name in fields.object("tracks").data:
            if name not in TRACKS or name in tracks:
                raise fields.wrong("tracks", "new tracks")
            begun.append(Track.from_dict(name, batch, fields.data["tracks"][name]))
    known = {**tracks, **{track.name: track for track in begun}}
    files = [
        track.file(path)
        for name, track in known.items()
        if name != RAW or raw_steps
        for path in track.leaves
    ]
    sums = fields.texts("crc32")
    if len(sums) != len(files) or not all(map(is_crc32, sums)):
        raise fields.wrong("crc32", f"{len(files)} checksums")
    crc32 = dict(zip(files, sums, strict=True))
    partial = "partial" in fields.data and fields.is_true("partial")
    return Entry(
        Chunk(fields.count("steps", least=1), raw_steps, crc32, partial),
        columns_of_line(fields.object("episodes")),
        None if fields.value("running") is None else fields.list("running"),
        tuple(begun),
        fields.object("transforms").data if "transforms" in fields.data else None,
        StateFile.from_fields(fields.optional_object("state")),
    )


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two lines of the index.

    Args:
        check: Checksum of the line before it; of the manifest before the first one.
        offset: Bytes before it.
        lines: Lines before it.
    """

    check: int
    offset: int = 0
    lines: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"lines": self.lines, "bytes": self.offset, "check": f"{self.check:08x}"}


def read_lines(file: IO[bytes], start: Position, source: str) -> Iterator[tuple[Fields, Position]]:
    """Yield each complete line and the position after it.

    A line that a kill cut short is ignored.

    Args:
        file: The index.
        start: Its beginning.
        source: What an error message calls it.

    Raises:
        StorageError: A line was changed, removed or moved.
    """
    place = start
    while text := file.readline(_MAX_LINE):
        check = seal_of(text, place.check)
        number = place.lines + 1
        if check is None:
            if _is_torn(text, place.check):
                return
            raise StorageError(f"line {number} of {source} was changed", hint=DAMAGED)
        fields = Fields(parse_json(text, source), f"{source}, line {number}")
        place = Position(check, place.offset + len(text), number)
        yield fields, place


def _is_torn(text: bytes, check: int) -> bool:
    """True if this is the beginning of a line whose writing was cut short."""
    if text.endswith(b"\n") or len(text) == _MAX_LINE:
        return False
    if seal_of(text[:-1] + b"\n", check) is not None:
        # A whole line, and its newline is another character.
        return False
    begun = text.rstrip(b"\0")
    return begun[: len(_START)] == _START[: len(begun)]


def append_entry(descriptor: int, entry: Entry, place: Position, *, sync: bool = True) -> Position:
    """Write a line at a position of the index, and wait until it is on the disk.

    Args:
        descriptor: The index, open for writing.
        entry: What to write.
        place: Where; what follows there is cut off.
        sync: Whether to wait.

    Returns:
        The position after it.

    Raises:
        OSError: It cannot be written.
    """
    text, check = seal(entry.to_dict(), place.check)
    try:
        write_all(descriptor, text, place.offset)
    except OSError:
        os.ftruncate(descriptor, place.offset)
        raise
    if sync:
        os.fsync(descriptor)
    return Position(check, place.offset + len(text), place.lines + 1)
