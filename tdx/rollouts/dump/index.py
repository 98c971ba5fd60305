"""Index of a dump, ``chunks.jsonl``, which grows by one line per chunk.

Each line carries a checksum that continues the checksum of the preceding line; that of the first
line continues the manifest's. A chunk counts as soon as its line is complete. A line after that of
a partial chunk replaces the partial chunk. The file is never memory-mapped, so it may be truncated.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar, overload

from tdx.foundation.container import append_line, read_seal, seal
from tdx.foundation.errors import StorageError
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.untrusted import Fields, is_crc32, parse_json
from tdx.rollouts.dump.encoding import DAMAGED
from tdx.rollouts.dump.episodes import Columns, line_columns, parse_line_columns
from tdx.rollouts.dump.folder import RAW, TRACKS, StateFile
from tdx.rollouts.dump.track import Track

_NONE = -1


@dataclass(frozen=True, slots=True)
class Chunk(Result):
    """A block of steps that is written at once.

    Args:
        steps: Number of steps of the rollout.
        raw_steps: Number of raw steps, if they are stored.
        crc32: Checksum of its block in each file, by file.
        partial: Whether the env failed in it; such a chunk is the last one.
    """

    json_entries: ClassVar[Entries] = ("steps", "raw_steps", "partial", "crc32")

    steps: int
    raw_steps: int
    crc32: Mapping[str, str]
    partial: bool = False


class ChunkList(Sequence[Chunk]):
    """Compact list of chunks."""

    def __init__(self, chunks: Iterable[Chunk] = ()) -> None:
        self.steps = self.raw_steps = 0
        self._counts = array("q")
        self._partial = array("b")
        self._files: dict[str, int] = {}
        self._sums = array("q")
        for chunk in chunks:
            self.append(chunk)

    def append(self, chunk: Chunk) -> None:
        """Add a chunk.

        Raises:
            ValueError: A checksum is not a hexadecimal number.
        """
        if any(file not in self._files for file in chunk.crc32):
            before = list(self)
            for name in chunk.crc32:
                self._files.setdefault(name, len(self._files))
            self._sums = array("q")
            for chunk_before in before:
                self._sums.extend(
                    int(chunk_before.crc32.get(file, "-1"), 16) for file in self._files
                )
        crc32 = chunk.crc32
        self._sums.extend(int(crc32[file], 16) if file in crc32 else _NONE for file in self._files)
        self._counts.extend((chunk.steps, chunk.raw_steps))
        self._partial.append(chunk.partial)
        self.steps += chunk.steps
        self.raw_steps += chunk.raw_steps

    def __len__(self) -> int:
        return len(self._partial)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> list[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | list[Chunk]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        width = len(self._files)
        sums = self._sums[place * width : (place + 1) * width]
        steps, raw_steps = self._counts[2 * place : 2 * place + 2]
        crc32 = {
            file: f"{crc:08x}" for file, crc in zip(self._files, sums, strict=True) if crc != _NONE
        }
        return Chunk(steps, raw_steps, crc32, bool(self._partial[place]))

    def __iter__(self) -> Iterator[Chunk]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (ChunkList, list)):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


_MAX_LINE = 2**28
_START = b'{"steps": '


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the index."""

    chunk: Chunk
    episodes: Columns  # that ended in the chunk
    running: list[Any] | None = None  # rewards so far of the episodes that run after it, by row
    tracks: tuple[Track, ...] = ()  # that start with this chunk
    transforms: dict[str, Any] | None = None  # running state of the stages; None: unchanged
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


def parse_entry(fields: Fields, tracks: dict[str, Track], batch: tuple[int, ...]) -> IndexEntry:
    """Parse a line of the index, given the tracks so far."""
    raw_steps = fields.count("raw_steps")
    new: list[Track] = []
    if "tracks" in fields.data:
        for name in fields.object("tracks").data:
            if name not in TRACKS or name in tracks:
                raise fields.invalid("tracks", "new tracks")
            new.append(Track.from_dict(name, batch, fields.data["tracks"][name]))
    known = {**tracks, **{track.name: track for track in new}}
    files = [
        track.file(path)
        for name, track in known.items()
        if name != RAW or raw_steps
        for path in track.leaves
    ]
    sums = fields.texts("crc32")
    if len(sums) != len(files) or not all(map(is_crc32, sums)):
        raise fields.invalid("crc32", f"{len(files)} checksums")
    crc32 = dict(zip(files, sums, strict=True))
    partial = "partial" in fields.data and fields.boolean("partial")
    return IndexEntry(
        Chunk(fields.count("steps", least=1), raw_steps, crc32, partial),
        parse_line_columns(fields.object("episodes")),
        None if fields.value("running") is None else fields.list("running"),
        tuple(new),
        dict(fields.object("transforms").data) if "transforms" in fields.data else None,
        StateFile.from_fields(fields.object("state", optional=True)),
    )


@dataclass(frozen=True, slots=True)
class Position(Result):
    """Position between two lines of the index.

    Args:
        check: Checksum of the preceding line, or of the manifest for the first line.
        offset: Number of preceding bytes.
        lines: Number of preceding lines.
    """

    json_entries: ClassVar[Entries] = (
        *("lines", Entry("bytes", "offset"), Entry("check", convert="{:08x}".format)),
    )

    check: int
    offset: int = 0
    lines: int = 0


def read_lines(file: IO[bytes], start: Position, source: str) -> Iterator[tuple[Fields, Position]]:
    """Yield each complete line and the position after it.

    An incomplete last line, left by a killed process, is ignored.
    """
    place = start
    while text := file.readline(_MAX_LINE):
        check = read_seal(text, place.check)
        number = place.lines + 1
        if check is None:
            # The start of a line that was not completed, unless only its newline was replaced.
            written = text.rstrip(b"\0")
            is_cut = not text.endswith(b"\n") and len(text) < _MAX_LINE
            is_whole = read_seal(text[:-1] + b"\n", place.check) is not None
            if is_cut and not is_whole and written[: len(_START)] == _START[: len(written)]:
                return
            raise StorageError(f"line {number} of {source} was changed", hint=DAMAGED)
        fields = Fields(parse_json(text, source), f"{source}, line {number}", DAMAGED)
        place = Position(check, place.offset + len(text), number)
        yield fields, place


def append_entry(
    descriptor: int, entry: IndexEntry, place: Position, *, sync: bool = True
) -> Position:
    """Write a line of the index, cutting off what follows, and return the position after it.

    With ``sync``, the line is on the disk then.

    Raises:
        OSError: It cannot be written. The line is removed again.
    """
    text, check = seal(entry.to_dict(), place.check)
    append_line(descriptor, text, place.offset, sync=sync)
    return Position(check, place.offset + len(text), place.lines + 1)
