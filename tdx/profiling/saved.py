"""Save a profile as JSON with every sample, and load it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from tdx.core.meter import Lane, Part
from tdx.foundation.errors import ArgumentError, StorageError
from tdx.foundation.serialization import from_plain, to_plain
from tdx.foundation.text import escape_json
from tdx.foundation.untrusted import parse_json, read_limited
from tdx.profiling.machine import Machine
from tdx.profiling.processor import ProcessorUse
from tdx.profiling.result import (
    Counts,
    DeviceUse,
    MemoryUse,
    Mode,
    ModeProfile,
    NoiseLevel,
    OperatorUse,
    Profile,
    Row,
    Settings,
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


class NoiseEntries(TypedDict):
    """JSON entries of the noise between the repeats."""

    spread: float
    judgement: NoiseLevel
    message: str


class SampleEntries(TypedDict):
    """Encoded samples of a row; see :data:`ENCODING`."""

    times_ns: str
    starts_ns: str
    spans_ns: str
    steps: str
    repeats: str


class RowEntries(TypedDict):
    """JSON entries of one row, with times in µs; ``n`` to ``iqr`` are :class:`Statistics`.

    These are of single calls, as ``per`` says; ``step_us`` is per step, ``steps_per_call`` times
    less than ``mean``.
    """

    part: Part
    label: str
    lane: Lane
    per: Literal["call"]
    steps_per_call: float
    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    iqr: float
    steps: int
    step_us: float
    share: float
    samples: SampleEntries


class MemoryEntries(TypedDict):
    """JSON entries of the memory of a row; see :class:`MemoryUse`."""

    label: str
    lane: Lane
    allocated_bytes: float
    peak_bytes: int
    kept_bytes: float
    objects_peak_bytes: int
    objects_kept_bytes: float


class OperatorEntries(TypedDict):
    """JSON entries of an operator in a row; see :class:`OperatorUse`."""

    label: str
    lane: Lane
    name: str
    calls: float
    time_us: float


class ModeEntries(TypedDict):
    """JSON entries of one mode."""

    mode: Mode
    step_us: float
    frames_per_second: float
    unattributed: float
    noise: NoiseEntries
    total_ns: list[int]
    steps: list[int]
    frames: list[int]
    specs_ns: list[int]
    processor: list[ProcessorUse]
    preemption: str | None
    notes: list[str]
    error: str | None
    rows: list[RowEntries]
    memory: list[MemoryEntries]
    operators: list[OperatorEntries]
    on_device: list[dict[str, Any]]


class ProfileEntries(TypedDict):
    """JSON entries of a profile."""

    schema_version: int
    kind: str
    subject: str
    stages: list[str]
    settings: Settings
    machine: Machine
    encoding: str
    modes: list[ModeEntries]


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """Convert a profile to plain data: what :func:`profile_from_json` reads, and statistics.

    Args:
        profile: The profile.

    Example:
        >>> from tdx import GymEnv
        >>> from tdx.profiling.run import ProfilePlan, profile_env
        >>> found = profile_env(GymEnv("Pendulum-v1"), plan=ProfilePlan(steps=9, passes=()))
        >>> document = profile_to_json(found)
        >>> document["modes"][0]["rows"][0]["n"] > 0, profile_from_json(document).subject
        (True, 'Pendulum-v1')
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "subject": profile.subject,
        "stages": list(profile.stages),
        "settings": to_plain(profile.settings),
        "machine": to_plain(profile.machine),
        "encoding": ENCODING,
        "modes": [_mode_to_json(mode) for mode in profile.modes],
    }


def _mode_to_json(mode: ModeProfile) -> dict[str, Any]:
    return {
        "mode": mode.mode,
        "step_us": round(mode.step_us, _DIGITS),
        "frames_per_second": round(mode.frames_per_second, _DIGITS),
        "unattributed": round(mode.unattributed, _DIGITS),
        "noise": {
            "spread": round(mode.noise.spread, _DIGITS),
            "judgement": mode.noise.judgement,
            "message": mode.noise.message,
        },
        "total_ns": mode.total_ns.tolist(),
        "steps": mode.steps.tolist(),
        "frames": mode.frames.tolist(),
        "specs_ns": mode.specs_ns.tolist(),
        "processor": [to_plain(use) for use in mode.processor],
        "preemption": mode.preemption,
        "notes": list(mode.notes),
        "error": mode.error,
        "rows": [row_to_json(mode, row) | {"samples": _encode_row(row)} for row in mode.rows],
        "memory": [_with_row_key(key, to_plain(use)) for key, use in mode.memory.items()],
        "operators": [
            _with_row_key(key, to_plain(use))
            for key, uses in mode.operators.items()
            for use in uses
        ],
        "on_device": [_with_row_key(key, to_plain(use)) for key, use in mode.on_device.items()],
    }


def row_to_json(mode: ModeProfile, row: Row) -> dict[str, Any]:
    """Convert one row to plain data; times are in µs.

    Args:
        mode: Measurements that contain the row.
        row: The row.
    """
    return {
        "part": to_plain(row.part),
        "label": row.part.label,
        "lane": row.part.lane,
        "per": "call",
        "steps_per_call": round(mode.steps_per_call(row), _DIGITS),
        **to_plain(row.statistics, _DIGITS),
        "steps": int(row.steps.sum()),
        "step_us": round(mode.step_share_us(row), _DIGITS),
        "share": round(mode.share(row), 2 * _DIGITS),
    }


def _encode_row(row: Row) -> dict[str, str]:
    return {name: encode_samples(getattr(row, name)) for name in _COLUMNS}


def _with_row_key(key: Key, values: dict[str, Any]) -> dict[str, Any]:
    return {"label": key[0], "lane": key[1], **values}


def encode_samples(numbers: Counts) -> str:
    """Encode integers ``[n]`` as text; see :data:`ENCODING`."""
    differences = np.diff(numbers, prepend=np.int64(0)).astype("<i8")
    return base64.b64encode(zlib.compress(differences.tobytes())).decode("ascii")


def decode_samples(text: str) -> Counts:
    """Decode integers from :func:`encode_samples`, int64 ``[n]``.

    Example:
        >>> import numpy as np
        >>> decode_samples(encode_samples(np.array([3, 1, 4]))).tolist()
        [3, 1, 4]
    """
    return _SampleDecoder().decode(text)


class _SampleDecoder:
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
    """Parse a profile from :func:`profile_to_json`.

    Args:
        document: Plain data.
        name: Name of the document in error messages.

    Raises:
        ArgumentError: The document is not a profile, or has another version.
    """
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise ArgumentError(f"{name} is not a profile", hint="`tdx profile --save FILE` writes one")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise ArgumentError(
            f"{name} has schema version {document.get('schema_version')}, "
            f"this tdx reads version {SCHEMA_VERSION}",
            hint="measure again with `tdx profile --save FILE`",
        )
    try:
        return _parse_profile(document)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, zlib.error) as error:
        raise ArgumentError(
            f"{name} is damaged: a field is missing, or of another type",
            hint="measure again with `tdx profile --save FILE`",
        ) from error


def read_profile(path: str | Path) -> Profile:
    """Read a profile from a file.

    Raises:
        ArgumentError: The file is missing, or cannot be read.
    """
    try:
        document = parse_json(read_limited(Path(path), MAX_PROFILE_BYTES), path)
    except StorageError as error:
        raise ArgumentError(error.message, hint="`tdx profile --save FILE` writes it") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ArgumentError(
            f"cannot read {path}: {reason}", hint="`tdx profile --save FILE` writes one"
        ) from error
    return profile_from_json(document, str(path))


def format_profile(profile: Profile) -> str:
    """Format a profile as the text of a file: compact JSON, one line per row."""
    document = profile_to_json(profile)
    modes = document.pop("modes")
    head = json.dumps(document, ensure_ascii=False, allow_nan=False)[:-1]
    text = f'{head},\n"modes": [{",".join(_format_mode(mode) for mode in modes)}]}}\n'
    return escape_json(text)


def _format_mode(mode: dict[str, Any]) -> str:
    rows = mode.pop("rows")
    head = json.dumps(mode, ensure_ascii=False, allow_nan=False)[:-1]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    return f'\n{head},\n"rows": [\n{lines}\n]}}'


def _parse_profile(document: Mapping[str, Any]) -> Profile:
    samples = _SampleDecoder()
    return Profile(
        subject=str(document["subject"]),
        stages=tuple(map(str, document["stages"])),
        settings=from_plain(Settings, document["settings"]),
        machine=from_plain(Machine, document["machine"]),
        modes=tuple(_parse_mode(mode, samples) for mode in document["modes"]),
    )


def _parse_mode(data: Mapping[str, Any], samples: _SampleDecoder) -> ModeProfile:
    mode: Any = data["mode"]
    if mode not in get_args(Mode):
        raise ValueError(f"unknown mode {mode!r:.50}")
    operators: dict[Key, tuple[OperatorUse, ...]] = {}
    for key, each in _by_key(data["operators"]):
        operators[key] = (*operators.get(key, ()), from_plain(OperatorUse, each))
    return ModeProfile(
        mode=mode,
        rows=tuple(_parse_row(row, samples) for row in data["rows"]),
        total_ns=np.array(data["total_ns"], np.int64),
        steps=np.array(data["steps"], np.int64),
        frames=np.array(data["frames"], np.int64),
        specs_ns=np.array(data["specs_ns"], np.int64),
        memory={key: from_plain(MemoryUse, each) for key, each in _by_key(data["memory"])},
        operators=operators,
        on_device={key: from_plain(DeviceUse, each) for key, each in _by_key(data["on_device"])},
        # Profiles of earlier versions have none.
        processor=tuple(from_plain(ProcessorUse, use) for use in data.get("processor", ())),
        notes=tuple(map(str, data["notes"])),
        error=None if data["error"] is None else str(data["error"]),
    )


def _by_key(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for entry in entries:
        yield (entry["label"], entry["lane"]), entry


def _parse_row(data: Mapping[str, Any], samples: _SampleDecoder) -> Row:
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
