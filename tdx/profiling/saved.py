"""A profile as plain data, with every sample, and back again."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tdx.engine.meter import Lane, Part
from tdx.errors import ArgumentError
from tdx.profiling.machine import Machine
from tdx.profiling.result import (
    DeviceUse,
    MemoryUse,
    ModeProfile,
    OperatorUse,
    Profile,
    Row,
    Settings,
)
from tdx.profiling.statistics import Counts

SCHEMA_VERSION = 1
"""Grows where a document can no longer be read as before."""
KIND = "profile"
ENCODING = "base64 of zlib of the differences between neighbours, int64, little-endian"
_COLUMNS = ("times_ns", "starts_ns", "spans_ns", "steps", "repeats")
_DIGITS = 4

Made = TypeVar("Made")
Key = tuple[str, Lane]


def to_json(profile: Profile) -> dict[str, Any]:
    """All of a profile as plain data: what :func:`from_json` reads, and statistics for others.

    Args:
        profile: what was measured.

    Example:
        >>> from tdx import GymEnv
        >>> from tdx.profiling.run import ProfilePlan, profile_env
        >>> found = profile_env(GymEnv("Pendulum-v1"), plan=ProfilePlan(steps=9, passes=()))
        >>> document = to_json(found)
        >>> document["modes"][0]["rows"][0]["n"] > 0, from_json(document).subject
        (True, 'Pendulum-v1')
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "subject": profile.subject,
        "stages": list(profile.stages),
        "settings": asdict(profile.settings),
        "machine": {**asdict(profile.machine), "accelerators": list(profile.machine.accelerators)},
        "encoding": ENCODING,
        "modes": [_mode_data(mode) for mode in profile.modes],
    }


def _mode_data(mode: ModeProfile) -> dict[str, Any]:
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
        "notes": list(mode.notes),
        "error": mode.error,
        "rows": [row_data(mode, row) | {"samples": _samples(row)} for row in mode.rows],
        "memory": [_named(key, asdict(use)) for key, use in mode.memory.items()],
        "operators": [
            _named(key, asdict(use)) for key, uses in mode.operators.items() for use in uses
        ],
        "on_device": [_named(key, asdict(use)) for key, use in mode.on_device.items()],
    }


def row_data(mode: ModeProfile, row: Row) -> dict[str, Any]:
    """What one row of a table says, as plain data; times are in µs.

    Args:
        mode: the measurement that it is a part of.
        row: which.
    """
    rounded = {name: round(value, _DIGITS) for name, value in asdict(row.statistics).items()}
    return {
        "part": asdict(row.part),
        "label": row.part.label,
        "lane": row.part.lane,
        "per": "step" if row.covers_many else "call",
        **rounded,
        "steps": int(row.steps.sum()),
        "step_us": round(mode.step_share_us(row), _DIGITS),
        "share": round(mode.share(row), 2 * _DIGITS),
    }


def _samples(row: Row) -> dict[str, str]:
    return {name: encoded(getattr(row, name)) for name in _COLUMNS}


def _named(key: Key, values: dict[str, Any]) -> dict[str, Any]:
    return {"label": key[0], "lane": key[1], **values}


def encoded(numbers: Counts) -> str:
    """Whole numbers ``[n]`` as text, see :data:`ENCODING`."""
    differences = np.diff(numbers, prepend=np.int64(0)).astype("<i8")
    return base64.b64encode(zlib.compress(differences.tobytes())).decode("ascii")


def decoded(text: str) -> Counts:
    """The whole numbers that :func:`encoded` has written, int64 ``[n]``.

    Example:
        >>> import numpy as np
        >>> decoded(encoded(np.array([3, 1, 4]))).tolist()
        [3, 1, 4]
    """
    differences = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8")
    return np.cumsum(differences, dtype=np.int64)


def from_json(document: Mapping[str, Any], name: str = "this document") -> Profile:
    """The profile that :func:`to_json` has written.

    Args:
        document: plain data.
        name: what it is called in an error.

    Raises:
        ArgumentError: it is no profile, or of another version.
    """
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise ArgumentError(f"{name} is no profile", hint="`tdx profile --save FILE` writes one")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise ArgumentError(
            f"{name} has schema version {document.get('schema_version')}, "
            f"this tdx reads version {SCHEMA_VERSION}",
            hint="measure again with `tdx profile --save FILE`",
        )
    try:
        return _profile(document)
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise ArgumentError(
            f"{name} is damaged: {type(error).__name__}: {error}",
            hint="measure again with `tdx profile --save FILE`",
        ) from error


def read_profile(path: str | Path) -> Profile:
    """The profile in a file.

    Raises:
        ArgumentError: there is none, or it cannot be read.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ArgumentError(
            f"cannot read {path}: {reason}", hint="`tdx profile --save FILE` writes one"
        ) from error
    except ValueError as error:
        raise ArgumentError(
            f"{path} is no JSON: {error}", hint="`tdx profile --save FILE` writes it"
        ) from error
    return from_json(document, str(path))


def profile_text(profile: Profile) -> str:
    """The profile as the text of a file; as small as JSON can be, and one line a row."""
    document = to_json(profile)
    modes = document.pop("modes")
    head = json.dumps(document, ensure_ascii=False, allow_nan=False)[:-1]
    return f'{head},\n"modes": [{",".join(_mode_text(mode) for mode in modes)}]}}\n'


def _mode_text(mode: dict[str, Any]) -> str:
    rows = mode.pop("rows")
    head = json.dumps(mode, ensure_ascii=False, allow_nan=False)[:-1]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    return f'\n{head},\n"rows": [\n{lines}\n]}}'


def _profile(document: Mapping[str, Any]) -> Profile:
    machine = dict(document["machine"])
    machine["accelerators"] = tuple(machine["accelerators"])
    return Profile(
        subject=str(document["subject"]),
        stages=tuple(document["stages"]),
        settings=_made(Settings, document["settings"]),
        machine=_made(Machine, machine),
        modes=tuple(_mode(mode) for mode in document["modes"]),
    )


def _mode(data: Mapping[str, Any]) -> ModeProfile:
    operators: dict[Key, tuple[OperatorUse, ...]] = {}
    for key, each in _by_key(data["operators"]):
        operators[key] = (*operators.get(key, ()), _made(OperatorUse, each))
    return ModeProfile(
        mode=data["mode"],
        rows=tuple(_row(row) for row in data["rows"]),
        total_ns=np.array(data["total_ns"], np.int64),
        steps=np.array(data["steps"], np.int64),
        frames=np.array(data["frames"], np.int64),
        specs_ns=np.array(data["specs_ns"], np.int64),
        memory={key: _made(MemoryUse, each) for key, each in _by_key(data["memory"])},
        operators=operators,
        on_device={key: _made(DeviceUse, each) for key, each in _by_key(data["on_device"])},
        notes=tuple(data["notes"]),
        error=data["error"],
    )


def _by_key(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for entry in entries:
        yield (entry["label"], entry["lane"]), entry


def _row(data: Mapping[str, Any]) -> Row:
    columns = {name: decoded(data["samples"][name]) for name in _COLUMNS}
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("columns of samples differ in length")
    return Row(_made(Part, data["part"]), **columns)


def _made(kind: type[Made], data: Mapping[str, Any]) -> Made:
    """A dataclass from those entries that it has."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in data.items() if name in names})
