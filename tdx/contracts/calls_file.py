"""Write the recorded calls of a contract as JSON and tensors, and parse them from a stranger.

``calls.json`` has one line for each call: who made it, what it received and what it returned.
Arrays are numbered; equal ones are stored once, and large ones are compressed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from tdx.compare.replay import MAX_ROWS
from tdx.compare.values import digest
from tdx.contracts.decoding import damaged, unpack
from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import parse_json, validate_shape
from tdx.stacks.observe import MAX_EVENTS, OPAQUE, CallRecording, Event, LevelForm, RecordedMethod

MAX_ARRAY_BYTES = 2**30
"""Size of all arrays together, after they are unpacked."""
_PACKED_BYTES = 2_048
_MAX_VALUE_DEPTH = 40
_MAX_ITEMS = 10_000
_DTYPES = ("bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
_FLOATS = ("float16", "float32", "float64")
_RESET_ARGUMENTS = {"seed", "options"}
_SECTIONS = {
    *("seed", "rows", "learning", "env_repeats", "unrepeatable", "forms", "start", "arrays"),
    "events",
}


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.arrays: list[dict[str, Any]] = []
        self._known: dict[tuple[str, ...], int] = {}

    def value(self, value: object) -> Any:
        if value is OPAQUE:
            return {"opaque": True}
        if isinstance(value, np.generic):
            return {"number": self._array(np.asarray(value), "number")}
        if isinstance(value, np.ndarray):
            return {"array": self._array(value, "array")}
        if isinstance(value, Tensor):
            return {"array": self._array(value.numpy(), "tensor")}
        if isinstance(value, float):
            return {"float": repr(value)}
        if isinstance(value, tuple):
            return {"tuple": [self.value(item) for item in value]}
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {"dict": [[name, self.value(item)] for name, item in value.items()]}
        return value

    def _array(self, array: np.ndarray[Any, Any], form: str) -> int:
        raw = np.ascontiguousarray(array).tobytes()
        key = (form, str(array.dtype), str(array.shape), digest(_bytes(raw)))
        if key not in self._known:
            index = self._known[key] = len(self.arrays)
            packed = len(raw) > _PACKED_BYTES
            self.arrays.append(
                {
                    "form": form,
                    "dtype": str(array.dtype),
                    "shape": list(array.shape),
                    "packed": packed,
                }
            )
            self.tensors[f"calls/{index}"] = _bytes(zlib.compress(raw, 6) if packed else raw)
        return self._known[key]


def _bytes(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0).byte()


def encode_recording(recording: CallRecording) -> tuple[bytes, dict[str, Tensor]]:
    """Return the content of ``calls.json``, and the tensors that belong to it."""
    encoder = _Encoder()
    rows: list[list[object]] = []

    def add(event: Event, parent: int | None) -> None:
        index = len(rows)
        given, returned = encoder.value(event.given), encoder.value(event.returned)
        called = [event.level, event.row, event.method]
        rows.append([parent, *called, event.start, event.end, given, returned])
        for child in event.children:
            add(child, index)

    for root in recording.roots:
        add(root, None)
    for index, values in recording.start.items():
        for name, value in values.items():
            encoder.tensors[f"start/{index}/{name}"] = value
    document = {
        "seed": recording.seed,
        "rows": recording.rows,
        "learning": recording.learning,
        "env_repeats": recording.env_repeats,
        "unrepeatable": sorted(recording.unrepeatable),
        "forms": {
            str(index): [form.protocol, form.is_batch] for index, form in recording.forms.items()
        },
        "arrays": encoder.arrays,
    }
    head = json.dumps(document, indent=1)
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{head[:-2]},\n "events": [\n{lines}\n]}}\n'.encode(), encoder.tensors


def decode_recording(
    data: bytes, tensors: Mapping[str, Tensor], last: int, name: str
) -> CallRecording:
    """Parse the recorded calls of a contract, the content of ``calls.json``.

    Raises:
        StorageError: It is damaged.
    """
    document = parse_json(data, name)
    if not isinstance(document, dict) or set(document) - _SECTIONS:
        raise damaged(name, "it is not a recording")
    try:
        return _Decoder(document, tensors, last, name).recording()
    except StorageError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise damaged(name, f"{type(error).__name__}: {error}"[:200]) from error


class _Decoder:
    def __init__(
        self, document: dict[str, Any], tensors: Mapping[str, Tensor], last: int, name: str
    ) -> None:
        self._document, self._tensors, self._last, self._name = document, tensors, last, name
        self._arrays: dict[int, Any] = {}
        self._size = 0

    def recording(self) -> CallRecording:
        rows, seed = self._integer("rows", 1, MAX_ROWS), self._integer("seed", 0, 2**63)
        forms = {
            self._level(int(index)): LevelForm(protocol, is_batch is True)
            for index, (protocol, is_batch) in self._document["forms"].items()
            if protocol in ("env", "vec_env")
        }
        unrepeatable = frozenset(self._level(index) for index in self._document["unrepeatable"])
        start: dict[int, dict[str, Tensor]] = {}
        for name, value in self._tensors.items():
            if name.startswith("start/"):
                _, index, attribute = name.split("/", 2)
                start.setdefault(self._level(int(index)), {})[attribute] = value
        return CallRecording(
            seed,
            rows,
            forms,
            tuple(self._events(forms, rows)),
            start,
            learning=self._document["learning"] is True,
            unrepeatable=unrepeatable,
            env_repeats=self._document["env_repeats"] is True,
        )

    def _integer(self, key: str, low: int, high: int) -> int:
        value = self._document[key]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise damaged(self._name, f"{key} must be an integer from {low} to {high}")
        return value

    def _level(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= self._last:
            raise damaged(self._name, f"there is no stage {value!r:.20}")
        return value

    def _events(self, forms: Mapping[int, LevelForm], rows: int) -> list[Event]:
        lines = self._document["events"]
        if not isinstance(lines, list) or not 0 < len(lines) <= MAX_EVENTS:
            raise damaged(self._name, f"it must have 1 to {MAX_EVENTS:,} calls")
        events: list[Event] = []
        roots: list[Event] = []
        for line in lines:
            parent, level, row, method, start, end, given, returned = line
            if method not in get_args(RecordedMethod) or self._level(level) not in forms:
                raise damaged(self._name, f"unknown call {method!r:.20} of stage {level}")
            numbers = (row, start, end)
            if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
                raise damaged(self._name, "a call has no numbers")
            if not 0 <= row < rows or not 0 <= start <= end <= 2 * MAX_EVENTS:
                raise damaged(self._name, "a call has impossible numbers")
            event = Event(level, row, method, self._value(given), start, self._value(returned), end)
            self._check(event, forms[level], rows)
            if parent is None:
                if method == "reset" and set(event.given) - _RESET_ARGUMENTS:
                    raise damaged(self._name, "a reset has unknown arguments")
                roots.append(event)
            else:
                if not 0 <= parent < len(events):
                    raise damaged(self._name, "a call has no caller")
                events[parent].children.append(event)
            events.append(event)
        return roots

    def _check(self, event: Event, form: LevelForm, rows: int) -> None:
        """Refuse a call without the form of its level, which a replay relies on."""
        if event.method == "reset" and not isinstance(event.given, dict):
            raise damaged(self._name, "a reset has no arguments by name")
        returned = event.returned
        parts: tuple[Any, ...] = (event.given,) if event.takes_action else ()
        if form.protocol == "env":
            count = 2 if event.method == "reset" else 5
            is_known = isinstance(returned, tuple) and len(returned) == count
            parts += returned[:-1] if is_known else ()
        elif event.method == "reset":
            is_known, parts = True, (returned,)
        elif event.method == "step_async":
            is_known = returned is None
        else:
            is_known = isinstance(returned, tuple) and len(returned) == 4
            infos = returned[3] if is_known else []
            is_known = is_known and isinstance(infos, list) and len(infos) == rows
            parts += returned[:3] if is_known else ()
        if not is_known:
            raise damaged(self._name, f"a {event.method} of stage {event.level} has another form")
        if form.is_batch and not all(_has_rows(part, rows) for part in parts):
            raise damaged(self._name, f"a value of stage {event.level} has not {rows} rows")

    def _value(self, value: object, depth: int = 0) -> object:
        if depth > _MAX_VALUE_DEPTH:
            raise damaged(self._name, "a value is nested too deeply")
        if isinstance(value, list):
            return [self._value(item, depth + 1) for item in value[:_MAX_ITEMS]]
        if not isinstance(value, dict):
            if value is None or isinstance(value, bool | int | str):
                return value
            raise damaged(self._name, f"unknown value {value!r:.40}")
        (form, content), *rest = value.items()
        if rest:
            raise damaged(self._name, f"unknown value {value!r:.40}")
        if form == "opaque":
            return OPAQUE
        if form == "float":
            return float(content)
        if form == "tuple":
            return tuple(self._value(item, depth + 1) for item in content[:_MAX_ITEMS])
        if form == "dict":
            return {
                name: self._value(item, depth + 1)
                for name, item in content[:_MAX_ITEMS]
                if isinstance(name, str | int)
            }
        if form in ("array", "number") and isinstance(content, int):
            return self._array(content)
        raise damaged(self._name, f"unknown value {value!r:.40}")

    def _array(self, index: int) -> Any:
        if index not in self._arrays:
            entry = self._document["arrays"][index]
            dtype, form = entry["dtype"], entry["form"]
            if dtype not in (*_DTYPES, *_FLOATS):
                raise damaged(self._name, f"unknown dtype {dtype!r:.20}")
            shape = validate_shape(entry["shape"], f"array {index} in {self._name}")
            size = torch.Size(shape).numel() * np.dtype(dtype).itemsize
            self._size += size
            if self._size > MAX_ARRAY_BYTES:
                raise damaged(self._name, f"its arrays have more than {MAX_ARRAY_BYTES:,} bytes")
            raw = self._tensors[f"calls/{index}"].numpy().tobytes()
            if entry["packed"]:
                raw = unpack(raw, size, self._name, f"array {index}")
            if len(raw) != size:
                raise damaged(self._name, f"array {index} does not have its declared size")
            array = np.frombuffer(raw, dtype=dtype).reshape(shape).copy()
            value: Any = array
            if form == "number":
                value = array[()]
            elif form == "tensor":
                value = torch.from_numpy(array)
            self._arrays[index] = value
        return self._arrays[index]


def _has_rows(value: object, rows: int) -> bool:
    if isinstance(value, dict):
        return all(_has_rows(item, rows) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_has_rows(item, rows) for item in value)
    return not isinstance(value, np.ndarray | Tensor) or value.ndim == 0 or len(value) == rows
