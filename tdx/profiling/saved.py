"""Save a profile as JSON with every sample, and load it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, cast, get_args

import numpy as np

from tdx.core.meter import Lane, Part
from tdx.foundation.errors import ArgumentError, StorageError, explain_os_error
from tdx.foundation.serialization import Entries, Entry, Result, from_plain, rounded, to_plain
from tdx.foundation.text import escape_json
from tdx.foundation.untrusted import parse_json, read_limited
from tdx.profiling.machine import Machine
from tdx.profiling.plain import OperatorUse
from tdx.profiling.processor import ProcessorUse
from tdx.profiling.result import (
    Counts,
    DeviceSummary,
    DeviceUse,
    MemoryUse,
    Mode,
    ModeProfile,
    Profile,
    Row,
    Settings,
    Statistics,
)

SCHEMA_VERSION = 1
"""Increased when old documents can no longer be read."""
KIND = "profile"
ENCODING = "base64 of zlib of the differences between neighbors, int64, little-endian"
MAX_PROFILE_BYTES = 2**28
"""Maximum size of a saved profile."""
MAX_SAMPLE_BYTES = 2**28
"""Maximum size of all samples of a document after decompression."""
_COLUMNS = ("times_ns", "starts_ns", "spans_ns", "steps", "repeats")
_WALL = "wall_ns"
"""Column that an earlier tdx wrote for calls in the workers of other libraries."""
_DIGITS = 4

Key = tuple[str, Lane]


class SampleEntries(TypedDict):
    """Encoded samples of a row; see :data:`ENCODING`."""

    times_ns: str
    starts_ns: str
    spans_ns: str
    steps: str
    repeats: str


def _encode_row(row: Row) -> SampleEntries:
    return cast("SampleEntries", {name: encode_samples(getattr(row, name)) for name in _COLUMNS})


def _round_statistics(statistics: Statistics) -> dict[str, Any]:
    return {name: to_plain(value, _DIGITS) for name, value in asdict(statistics).items()}


@dataclass(frozen=True, slots=True)
class RowReport(Result):
    """One row of a profile, with times in µs.

    ``n`` to ``iqr`` are :class:`Statistics` of single calls, as ``per`` says; ``step_us`` is per
    step, ``steps_per_call`` times less than ``mean``.

    Args:
        mode: Measurements that contain the row.
        row: The row.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("part", "row.part"), Entry("label", "row.part.label")),
        *(Entry("lane", "row.part.lane"), "per", Entry("steps_per_call", convert=rounded)),
        Entry("statistics", "row.statistics", _round_statistics, inline=True, type=Statistics),
        *("steps", Entry("step_us", convert=rounded), "share"),
        Entry("samples", "row", _encode_row),
    )

    mode: ModeProfile
    row: Row
    per: Literal["call"] = "call"

    @property
    def steps_per_call(self) -> float:
        """Steps for each call."""
        return self.mode.steps_per_call(self.row)

    @property
    def steps(self) -> int:
        """Steps of all calls."""
        return int(self.row.steps.sum())

    @property
    def step_us(self) -> float:
        """Time per mean step."""
        return self.mode.step_share_us(self.row)

    @property
    def share(self) -> float:
        """Share of the whole time, from 0 to 1."""
        return round(self.mode.share(self.row), 2 * _DIGITS)


@dataclass(frozen=True, slots=True)
class RowUse(Result):
    """What a row used."""

    json_entries: ClassVar[Entries] = ("label", "lane", Entry("use", inline=True))

    label: str
    lane: Lane


@dataclass(frozen=True, slots=True)
class MemoryRow(RowUse):
    """Memory of a row."""

    use: MemoryUse


@dataclass(frozen=True, slots=True)
class OperatorRow(RowUse):
    """An operator in a row."""

    use: OperatorUse


@dataclass(frozen=True, slots=True)
class DeviceRow(RowUse):
    """Device work of a row."""

    use: DeviceUse


def _list_numbers(numbers: Counts) -> list[int]:
    return numbers.tolist()


@dataclass(frozen=True, slots=True)
class ModeReport(Result):
    """One mode of a profile, as it is saved."""

    json_entries: ClassVar[Entries] = (
        Entry("mode", "mode.mode"),
        *(
            Entry(name, f"mode.{name}", rounded)
            for name in ("step_us", "frames_per_second", "unattributed")
        ),
        Entry("noise", "mode.noise"),
        *(
            Entry(name, f"mode.{name}", _list_numbers)
            for name in ("total_ns", "steps", "frames", "specs_ns")
        ),
        *(Entry(name, f"mode.{name}") for name in ("processor", "preemption", "notes", "error")),
        *("rows", "memory", "operators", "on_device"),
        Entry("device", "mode.device", omit_none=True),
    )

    mode: ModeProfile

    @property
    def rows(self) -> list[RowReport]:
        """Parts in the order of the chain."""
        return [RowReport(self.mode, row) for row in self.mode.rows]

    @property
    def memory(self) -> list[MemoryRow]:
        """Memory of each row."""
        return [MemoryRow(*key, use) for key, use in self.mode.memory.items()]

    @property
    def operators(self) -> list[OperatorRow]:
        """Operators of each row, most expensive first."""
        return [OperatorRow(*key, use) for key, uses in self.mode.operators.items() for use in uses]

    @property
    def on_device(self) -> list[DeviceRow]:
        """Device work of each row."""
        return [DeviceRow(*key, use) for key, use in self.mode.on_device.items()]


@dataclass(frozen=True, slots=True)
class ProfileReport(Result):
    """A profile, as it is saved."""

    json_entries: ClassVar[Entries] = (
        *("schema_version", "kind"),
        *(Entry(name, f"profile.{name}") for name in ("subject", "stages", "settings", "machine")),
        *("encoding", "modes"),
    )

    profile: Profile
    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    encoding: str = ENCODING

    @property
    def modes(self) -> list[ModeReport]:
        """Measurements of each mode."""
        return [ModeReport(mode) for mode in self.profile.modes]


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """Convert a profile to plain data: what :func:`profile_from_json` reads, and statistics."""
    return ProfileReport(profile).to_dict()


def encode_samples(numbers: Counts) -> str:
    """Encode integers ``[n]`` as text; see :data:`ENCODING`."""
    differences = np.diff(numbers, prepend=np.int64(0)).astype("<i8")
    return base64.b64encode(zlib.compress(differences.tobytes())).decode("ascii")


class SampleDecoder:
    """Decodes the columns of one document, up to a limit on their total size."""

    def __init__(self) -> None:
        self._left = MAX_SAMPLE_BYTES

    def decode(self, text: str) -> Counts:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(text), self._left)
        self._left -= len(data)
        if self._left <= 0 or not inflater.eof:
            raise ValueError("the samples are cut short or too many")
        return np.cumsum(np.frombuffer(data, "<i8"), dtype=np.int64)


def profile_from_json(document: Mapping[str, Any], name: str = "this document") -> Profile:
    """Parse a profile from :func:`profile_to_json`; ArgumentError if it is none of this version."""
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise ArgumentError(f"{name} is not a profile", hint="`tdx profile -o FILE` writes one")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise ArgumentError(
            f"{name} has schema version {document.get('schema_version')}, "
            f"this tdx reads version {SCHEMA_VERSION}",
            hint="measure again with `tdx profile -o FILE`",
        )
    try:
        samples = SampleDecoder()
        return Profile(
            subject=str(document["subject"]),
            stages=tuple(map(str, document["stages"])),
            settings=from_plain(Settings, document["settings"]),
            machine=from_plain(Machine, document["machine"]),
            modes=tuple(_parse_mode(mode, samples) for mode in document["modes"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, zlib.error) as error:
        raise ArgumentError(
            f"{name} is damaged: a field is missing, or of another type",
            hint="measure again with `tdx profile -o FILE`",
        ) from error


def read_profile(path: str | Path) -> Profile:
    """Read a profile from a file; ArgumentError if it is missing, or cannot be read."""
    try:
        document = parse_json(read_limited(Path(path), MAX_PROFILE_BYTES), path)
    except StorageError as error:
        raise ArgumentError(error.message, hint="`tdx profile -o FILE` writes it") from error
    except OSError as error:
        raise ArgumentError(
            f"cannot read {path}: {explain_os_error(error)}",
            hint="`tdx profile -o FILE` writes one",
        ) from error
    return profile_from_json(document, str(path))


def format_profile(profile: Profile) -> str:
    """Format a profile as the text of a file: compact JSON, one line per row."""
    document = profile_to_json(profile)
    dump = partial(json.dumps, ensure_ascii=False, allow_nan=False)
    modes = []
    for mode in document.pop("modes"):
        lines = ",\n".join(map(dump, mode.pop("rows")))
        modes.append(f'\n{dump(mode)[:-1]},\n"rows": [\n{lines}\n]}}')
    return escape_json(f'{dump(document)[:-1]},\n"modes": [{",".join(modes)}]}}\n')


def _parse_mode(data: Mapping[str, Any], samples: SampleDecoder) -> ModeProfile:
    mode: Any = data["mode"]
    if mode not in get_args(Mode):
        raise ValueError(f"unknown mode {mode!r:.50}")
    operators: dict[Key, tuple[OperatorUse, ...]] = {}
    for key, use in _by_key(data["operators"]):
        operators[key] = (*operators.get(key, ()), from_plain(OperatorUse, use))
    return ModeProfile(
        mode=mode,
        rows=tuple(_parse_row(row, samples) for row in data["rows"]),
        total_ns=np.array(data["total_ns"], np.int64),
        steps=np.array(data["steps"], np.int64),
        frames=np.array(data["frames"], np.int64),
        specs_ns=np.array(data["specs_ns"], np.int64),
        memory={key: from_plain(MemoryUse, use) for key, use in _by_key(data["memory"])},
        operators=operators,
        on_device={key: from_plain(DeviceUse, use) for key, use in _by_key(data["on_device"])},
        # Profiles of earlier versions have neither of these.
        device=None if data.get("device") is None else from_plain(DeviceSummary, data["device"]),
        processor=tuple(from_plain(ProcessorUse, use) for use in data.get("processor", ())),
        notes=tuple(map(str, data["notes"])),
        error=None if data["error"] is None else str(data["error"]),
    )


def _by_key(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for entry in entries:
        yield (entry["label"], entry["lane"]), entry


def _parse_row(data: Mapping[str, Any], samples: SampleDecoder) -> Row:
    names = (*_COLUMNS, _WALL) if _WALL in data["samples"] else _COLUMNS
    columns = {name: samples.decode(data["samples"][name]) for name in names}
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("columns of samples differ in length")
    if _WALL in columns:
        # Calls in workers that ran at the same time: those that a step waited for are its time.
        columns["times_ns"] = columns.pop(_WALL)
        waited_for = columns["times_ns"] > 0
        if waited_for.any():
            columns = {name: column[waited_for] for name, column in columns.items()}
    return Row(from_plain(Part, data["part"]), **columns)
