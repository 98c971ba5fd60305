"""The chunks of a dump, stored compactly."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

_NONE = -1


@dataclass(frozen=True, slots=True)
class Chunk:
    """A block of steps that was written at once.

    Args:
        steps: Number of steps of the rollout.
        raw_steps: Number of steps of the env itself, if these are stored.
        crc32: Checksum of its part of each file, by file.
        partial: True if the env failed in it; such a chunk is the last one.
    """

    steps: int
    raw_steps: int
    crc32: Mapping[str, str]
    partial: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        counts = {"steps": self.steps, "raw_steps": self.raw_steps, "partial": self.partial}
        return {**counts, "crc32": dict(self.crc32)}


class ChunkList(Sequence[Chunk]):
    """Chunks in order, in a few bytes each; the total number of steps is known at once.

    Args:
        chunks: To begin with.
    """

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
            self._add_files(chunk.crc32)
        crc32 = chunk.crc32
        self._sums.extend(int(crc32[file], 16) if file in crc32 else _NONE for file in self._files)
        self._counts.extend((chunk.steps, chunk.raw_steps))
        self._partial.append(chunk.partial)
        self.steps += chunk.steps
        self.raw_steps += chunk.raw_steps

    def _add_files(self, names: Iterable[str]) -> None:
        before = list(self)
        for name in names:
            self._files.setdefault(name, len(self._files))
        self._sums = array("q")
        for chunk in before:
            self._sums.extend(int(chunk.crc32.get(file, "-1"), 16) for file in self._files)

    def __len__(self) -> int:
        return len(self._partial)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> list[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | list[Chunk]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
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
