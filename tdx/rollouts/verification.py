"""Hold a dump against its own manifest: files, checksums, and what the specs promise."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tdx.keys import format_key
from tdx.rollouts.manifest import DATA, Manifest
from tdx.rollouts.track import Parts, Track

Kind = Literal["missing", "short", "checksum", "spec", "incomplete"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a dump that is not as its manifest says.

    Args:
        kind: what it is.
        file: where.
        chunk: in which chunk, from 0.
        message: in words.
    """

    kind: Kind
    file: str
    chunk: int | None
    message: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "problem": self.kind,
            "file": self.file,
            "chunk": self.chunk,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found.

    Args:
        path: the dump.
        chunks: how many were read.
        size: how many bytes.
        complete: whether the rollout reached its goal.
        problems: all that is wrong.
    """

    path: str
    chunks: int
    size: int
    complete: bool
    problems: tuple[Problem, ...]

    @property
    def is_fine(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "path": self.path,
            "chunks": self.chunks,
            "bytes": self.size,
            "complete": self.complete,
            "problems": [problem.to_dict() for problem in self.problems],
        }


def verify(path: str | Path) -> Verification:
    """Read a whole dump and hold it against its manifest, in constant memory.

    Args:
        path: its folder.

    Raises:
        StorageError: there is no dump, or its manifest cannot be read.
    """
    folder = Path(path)
    manifest = Manifest.load(folder)
    found: list[Problem] = []
    for track, steps in manifest.tracks:
        for leaf in track.leaves:
            problem = track.problem(folder, leaf, steps)
            if problem is None:
                found += _wrong_values(folder, manifest, track, leaf)
                continue
            kind: Kind = "missing" if problem == "is missing" else "short"
            file = track.file(leaf)
            found.append(Problem(kind, file, None, f"{file} {problem}"))
    size = manifest.size
    return Verification(str(path), len(manifest.chunks), size, manifest.complete, tuple(found))


def _wrong_values(folder: Path, manifest: Manifest, track: Track, leaf: Parts) -> Iterator[Problem]:
    file = track.file(leaf)
    spec = _spec_of(manifest, leaf) if track.name == DATA else None
    dtype, shape = track.leaves[leaf]
    told = False
    with (folder / file).open("rb") as stream:
        for index, chunk in enumerate(manifest.chunks):
            steps = chunk.steps if track.name == DATA else chunk.raw_steps
            data = stream.read(steps * track.step_bytes(leaf))
            if f"{zlib.crc32(data):08x}" != chunk.crc32.get(file):
                message = f"the checksum of chunk {index} in {file} is another"
                yield Problem("checksum", file, index, message)
            elif spec is not None and data and not told:
                values = torch.frombuffer(bytearray(data), dtype=dtype).reshape(steps, *shape)
                wrong = _outside(values, spec)
                if wrong:
                    told = True
                    message = f"{format_key(leaf)!r} {wrong} in chunk {index}"
                    yield Problem("spec", file, index, message)


def _spec_of(manifest: Manifest, leaf: Parts) -> dict[str, Any] | None:
    key = list(leaf[1:] if leaf[0] == "next" else leaf)
    return next((spec for spec in manifest.specs if spec["key"] == key), None)


def _outside(values: Tensor, spec: dict[str, Any]) -> str | None:
    """What of the values is not as the spec says."""
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype != spec["dtype"] or list(values.shape[1:]) != [*spec["shape"]]:
        stored = f"{dtype} {list(values.shape[1:])}"
        return f"is {stored}, its spec says {spec['dtype']} {spec['shape']}"
    for name, beyond in (("low", torch.lt), ("high", torch.gt)):
        end = spec[name]
        if end is None:
            continue
        wide = _tensor(end, values)
        count = int(beyond(values, wide).sum())
        if count:
            side = "below" if name == "low" else "above"
            return f"has {count} value{'' if count == 1 else 's'} {side} what its spec says"
    return None


def _tensor(end: Any, values: Tensor) -> Tensor:
    def number(node: Any) -> Any:
        return [number(each) for each in node] if isinstance(node, list) else float(node)

    if not values.dtype.is_floating_point and isinstance(end, int):
        return torch.tensor(end, dtype=torch.int64)
    return torch.tensor(number(end), dtype=torch.float64).to(
        values.dtype if values.dtype.is_floating_point else torch.float64
    )
