"""Read the metadata that mjlab adds to an ONNX file; the graph and its weights are skipped."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TypeVar

from tdx.foundation.errors import StorageError
from tdx.stacks.descriptors.model import Action, Descriptor, Numbers, Robot, Term, number_repeats

MAX_ENTRIES = 1_000
"""Entries of the metadata."""
MAX_ENTRY_BYTES = 2**20
"""Size of an entry of the metadata."""
_MAX_METADATA_BYTES = 8 * 2**20
_MAX_FIELDS = 100_000
_METADATA = 14
"""Field of ``ModelProto`` with a ``StringStringEntryProto``: key in field 1, value in field 2."""
_NAMES = "observation_names"
_ROUNDING = 5.1e-4
"""mjlab writes three decimals."""
_VOCABULARY = frozenset(
    {
        *("actions", "term history", "term flat_history", "term scale", "term clip", "commands"),
        *("action scale", "action joints"),
        *("joints", "positions", "stiffness", "damping"),
    }
)
T = TypeVar("T")


def read_mjlab(path: Path) -> Descriptor:
    """Read the descriptor in an ONNX file.

    Raises:
        OSError: The file cannot be read.
        StorageError: It is not an ONNX file, or has no metadata of mjlab.
    """
    metadata = read_metadata(path)
    if _NAMES not in metadata:
        known = ", ".join(map(repr, list(metadata)[:5])) or "none"
        raise StorageError(
            f"{path} has no {_NAMES!r} in its metadata, which has {known}",
            hint="export the policy with mjlab, which adds its observations and joints",
        )
    return _Metadata(path, metadata).descriptor()


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of an ONNX file by key."""
    metadata: dict[str, str] = {}
    total = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for _ in range(_MAX_FIELDS):
            if file.tell() >= size:
                return metadata
            number, length = _next_field(file, size, path)
            if number != _METADATA or length is None:
                file.seek(length or 0, os.SEEK_CUR)
                continue
            total += length
            if (
                length > MAX_ENTRY_BYTES
                or total > _MAX_METADATA_BYTES
                or len(metadata) >= MAX_ENTRIES
            ):
                raise StorageError(f"the metadata of {path} is larger than that of any policy")
            key, value = _parse_entry(file, file.tell() + length, path)
            metadata[key] = value
    raise StorageError(f"{path} has more than {_MAX_FIELDS:,} fields")


def _parse_entry(file: IO[bytes], end: int, path: Path) -> tuple[str, str]:
    texts = {1: "", 2: ""}
    while file.tell() < end:
        number, length = _next_field(file, end, path)
        if number in texts and length is not None:
            try:
                texts[number] = file.read(length).decode("utf-8")
            except UnicodeDecodeError:
                raise StorageError(f"the metadata of {path} is not UTF-8") from None
        else:
            file.seek(length or 0, os.SEEK_CUR)
    return texts[1], texts[2]


def _next_field(file: IO[bytes], end: int, path: Path) -> tuple[int, int | None]:
    """Return the number of a field, and the length of its content; ``None``: it was skipped."""
    tag = _varint(file, end, path)
    number, wire_type = tag >> 3, tag & 7
    length: int | None
    match wire_type:
        case 0:
            _varint(file, end, path)
            return number, None
        case 1:
            length = 8
        case 2:
            length = _varint(file, end, path)
        case 5:
            length = 4
        case _:
            raise _not_onnx(path, f"a field has the unknown type {wire_type}")
    if number == 0:
        raise _not_onnx(path, "a field has the number 0")
    if (left := end - file.tell()) < length:
        raise _not_onnx(path, f"a field declares {length:,} bytes, but only {left:,} are left")
    if wire_type != 2:
        file.seek(length, os.SEEK_CUR)
        return number, None
    return number, length


def _varint(file: IO[bytes], end: int, path: Path) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1) if file.tell() < end else b""
        if not byte:
            raise _not_onnx(path, "it ends within a field")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise _not_onnx(path, "a number has more than 10 bytes")


def _not_onnx(path: Path, reason: str) -> StorageError:
    return StorageError(f"{path} is not an ONNX file: {reason}")


class _Metadata:
    """The entries that mjlab writes: lists with commas, and pairs with semicolons in them."""

    def __init__(self, path: Path, data: Mapping[str, str]) -> None:
        self.path, self.data = path, data

    def descriptor(self) -> Descriptor:
        names = number_repeats(self._names(_NAMES))
        scales = self._by_term("observation_terms_scale", len(names), self._numbers)
        clips = self._by_term("observation_terms_clip", len(names), self._numbers)
        history = self._by_term("observation_terms_history_length", len(names), self._count)
        flat = self._by_term("observation_terms_flatten_history_dim", len(names), self._count)
        terms = tuple(
            Term(
                name,
                history=None if frames is None else max(frames, 1),
                flat_history=None if flat_history is None else bool(flat_history),
                scale=scale,
                clip=clip,
            )
            for name, frames, flat_history, scale, clip in zip(
                names, history, flat, scales, clips, strict=True
            )
        )
        joints = self._names("joint_names")
        scale = self._optional("action_scale")
        # It has a value per joint that moves, and the names are those of all joints.
        moved = joints if scale is None or len(scale) in (1, len(joints)) else ()
        return Descriptor(
            self.path,
            "mjlab",
            terms,
            (Action("action", scale=scale, joints=moved),) if joints or scale else (),
            Robot(
                joints,
                self._optional("default_joint_pos"),
                self._optional("joint_stiffness"),
                self._optional("joint_damping"),
            ),
            commands=self._names("command_names"),
            tolerance=_ROUNDING,
            vocabulary=_VOCABULARY,
        )

    def _names(self, key: str) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.data.get(key, "").split(",") if name.strip())

    def _optional(self, key: str) -> Numbers | None:
        text = self.data.get(key, "").strip()
        return None if text in ("", "None") else self._numbers(key, text.replace(",", ";"))

    def _by_term(self, key: str, size: int, parse: Callable[[str, str], T]) -> list[T | None]:
        text = self.data.get(key)
        if text is None:
            return [None] * size
        # Older exports write pairs in brackets.
        items = [item.strip() for item in re.findall(r"\[[^\]]*\]|[^,]+", text)]
        if len(items) != size:
            raise StorageError(
                f"{self.path}: {key!r} has {len(items)} values for {size} observation terms"
            )
        return [None if item == "None" else parse(key, item) for item in items]

    def _numbers(self, key: str, text: str) -> Numbers:
        try:
            return tuple(float(number) for number in re.split("[;,]", text.strip("[]() ")))
        except ValueError:
            raise StorageError(f"{self.path}: {key!r} has {text[:40]!r}, not numbers") from None

    def _count(self, key: str, text: str) -> int:
        named = {"True": 1, "False": 0}
        (number, *_) = (named[text],) if text in named else self._numbers(key, text)
        if not math.isfinite(number) or not 0 <= number <= 2**31 or number != int(number):
            raise StorageError(f"{self.path}: {key!r} has {text[:40]!r}, not a whole number")
        return int(number)
