"""Records of ``tdx.watch``: where they are written, and what has drifted between them."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, pvariance
from typing import IO, TYPE_CHECKING, Any, Protocol

from tdx.foundation.container import UnsyncedError, append_line, make_folders
from tdx.foundation.errors import ArgumentError, StorageError, explain_os_error
from tdx.foundation.files import atomic_write, is_stream, report_write_errors
from tdx.foundation.serialization import Result
from tdx.foundation.untrusted import parse_json

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "tdx.watch"
VERSION = 1
_STATISTICS = ("mean", "std", "minimum", "maximum", "nan", "outside", "changed")
_MAX_SCALARS = 64
"""Largest value that Rerun shows as curves."""
_MAX_LINE = 2**24
"""Longest line of a file that is read, in bytes."""
_MOVED = 2.0
"""Number of standard deviations between the first and the last quarter of the samples from which a
mean counts as moved."""
_MIN_QUARTER = 2
_CHANGED = 0.5
"""Change of a normalizer, relative to its first scale, from which it counts as moved."""
_LOCATION, _SCALE = re.compile(r"^loc of |\.mean\b"), re.compile(r"^scale of |\.var\b")
_COMPANIONS = {"loc of ": ("scale of ", False), ".mean": (".var", True)}
"""The scale of each kind of location, and whether it is a variance."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Statistics of one key after one stage.

    Args:
        nan: Share of NaN, from 0 to 1.
        outside: Share of the values outside the spec; ``None`` if it was not compared.
        microseconds: Time of the stage; ``None`` in a rollout.
        changed: False if the value passed through the stage; ``None`` if it comes from no stage.
    """

    stage: str
    key: str
    mean: float | None
    std: float | None
    minimum: float | None
    maximum: float | None
    nan: float
    outside: float | None
    microseconds: float | None
    changed: bool | None = None


@dataclass(frozen=True, slots=True)
class StateRecord:
    """State of a stage."""

    stage: str
    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WatchRecord:
    """One sample.

    Args:
        values: The values themselves, by stage and key; only Rerun gets them.
    """

    step: int
    seconds: float
    keys: tuple[KeyRecord, ...]
    states: tuple[StateRecord, ...]
    values: Mapping[tuple[str, str], Tensor] = field(default_factory=dict)

    def numbers(self) -> dict[tuple[str, str], float]:
        """Return all numbers by stage and name, such as ``("1 VecNorm", "observation/mean")``."""
        found: dict[tuple[str, str], float] = {}
        for record in self.keys:
            for name in _STATISTICS:
                value = getattr(record, name)
                if value is not None:
                    found[record.stage, f"{record.key}/{name}"] = float(value)
            if record.microseconds is not None:
                found[record.stage, "microseconds"] = record.microseconds
        for state in self.states:
            for index, value in enumerate(state.values):
                place = f"[{index}]" if len(state.values) > 1 else ""
                found[state.stage, f"{state.name}{place}"] = value
        return found


class Sink(Protocol):
    """Where records are written."""

    def begin(self, env: str, stages: Sequence[str]) -> None:
        """Start a block."""

    def write(self, record: WatchRecord) -> None:
        """Write a record."""

    def end(self) -> None:
        """End the block."""


class JsonLines:
    """Writes one line per record, after a line with the stages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._size = 0

    def begin(self, env: str, stages: Sequence[str]) -> None:
        """Create the file; an existing one stays if that fails.

        Raises:
            StorageError: It cannot be written.
            OutputError: It is in place, but a power failure may bring the old one back.
        """
        head = _line({"format": FORMAT, "version": VERSION, "env": env, "stages": list(stages)})
        with self._report_errors():
            if is_stream(self._path):
                self._file = self._path.open("wb", buffering=0)
                self._append(head)
                return
            path = self._path.resolve()
            make_folders(path.parent)
            with ExitStack() as stack:
                with atomic_write(path) as file:
                    file.write(head)
                    # Opening it by name afterwards could fail when the old file is gone.
                    copy = os.fdopen(os.dup(file.fileno()), "wb", buffering=0)
                    self._file = stack.enter_context(copy)
                stack.pop_all()
            self._size = len(head)

    def write(self, record: WatchRecord) -> None:
        """Append a record.

        Raises:
            StorageError: It cannot be written; the records before it stay.
        """
        with self._report_errors():
            self._append(_line(asdict(replace(record, values={}))))

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        if is_stream(self._path):
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        else:
            append_line(self._file.fileno(), line, self._size, sync=False)
        self._size += len(line)

    def end(self) -> None:
        """Close the file.

        Raises:
            UnsyncedError: A power failure may take the last records.
        """
        if self._file is None:
            return
        with self._file as file:
            try:
                if not is_stream(self._path):
                    os.fsync(file.fileno())
            except OSError as error:
                raise UnsyncedError(self._path, error) from error

    def _report_errors(self) -> AbstractContextManager[None]:
        return report_write_errors(self._path, "pass another file", kind=StorageError)


def _line(data: Mapping[str, Any]) -> bytes:
    # JSON has no NaN.
    return json.dumps(_without_nan(data), ensure_ascii=False).encode() + b"\n"


def _without_nan(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {name: _without_nan(value) for name, value in data.items()}
    return [_without_nan(item) for item in data] if isinstance(data, list | tuple) else data


@dataclass(frozen=True, slots=True)
class _Scalars:
    """Writes the numbers of records to TensorBoard, W&B or a similar logger."""

    target: Any

    def begin(self, env: str, stages: Sequence[str]) -> None:
        if hasattr(self.target, "add_text"):
            text = "\n".join(f"{index} {stage}" for index, stage in enumerate(stages))
            self.target.add_text("tdx/stages", f"{env}\n\n{text}")

    def write(self, record: WatchRecord) -> None:
        numbers = {f"tdx/{'/'.join(name)}": value for name, value in record.numbers().items()}
        if hasattr(self.target, "add_scalar"):
            for name, value in numbers.items():
                self.target.add_scalar(name.replace(" ", "_"), value, record.step)
        else:
            self.target.log(numbers, step=record.step)

    def end(self) -> None:
        if hasattr(self.target, "flush"):
            self.target.flush()


@dataclass(frozen=True, slots=True)
class _Rerun:
    """Writes what each stage wrote, and all numbers of records, to a recording of Rerun."""

    target: Any

    def begin(self, env: str, stages: Sequence[str]) -> None:
        import rerun

        text = "\n".join(f"{index} {stage}" for index, stage in enumerate(stages))
        self.target.log("stages", rerun.TextDocument(f"{env}\n\n{text}"), static=True)

    def write(self, record: WatchRecord) -> None:
        import rerun

        self.target.set_time("step", sequence=record.step)
        for (stage, key), value in record.values.items():
            array = value.detach().cpu().numpy()
            entity = f"{rerun.escape_entity_path_part(stage)}/{rerun.escape_entity_path_part(key)}"
            if array.size <= _MAX_SCALARS:
                self.target.log(entity, rerun.Scalars(array.reshape(-1).astype("float64")))
            elif array.ndim == 2 or (array.ndim == 3 and 3 in (array.shape[0], array.shape[2])):
                channels_last = array.transpose(1, 2, 0) if array.shape[0] in (1, 3) else array
                self.target.log(entity, rerun.Image(channels_last))
            else:
                self.target.log(entity, rerun.Tensor(array))
        for (stage, name), number in record.numbers().items():
            parts = ("statistics", stage, *name.split("/"))
            entity = "/".join(map(rerun.escape_entity_path_part, parts))
            self.target.log(entity, rerun.Scalars(number))

    def end(self) -> None:
        self.target.flush()


def sink_of(to: object) -> Sink:
    """Return the sink for the argument ``to`` of :class:`tdx.watch`."""
    if isinstance(to, str | Path):
        return JsonLines(Path(to))
    if hasattr(to, "set_time") and hasattr(to, "log"):
        return _Rerun(to)
    if hasattr(to, "add_scalar") or hasattr(to, "log"):
        return _Scalars(to)
    raise ArgumentError(
        f"to={to!r} is not supported",
        hint="pass a file, a SummaryWriter, a run of W&B, or a recording of Rerun",
    )


@dataclass(frozen=True, slots=True)
class Drift(Result):
    """Course of one number over the samples.

    Args:
        stage: The stage, ``env`` or ``output``.
        name: Key and statistic, or state.
        first: Number in the first sample.
        last: Number in the last sample.
        values: Numbers of all samples; ``None`` where it is missing.
        moved: How it moved, as a sentence; ``None`` if it did not.
    """

    stage: str
    name: str
    first: float
    last: float
    values: tuple[float | None, ...]
    moved: str | None


@dataclass(frozen=True, slots=True)
class WatchReport(Result):
    """Records of one file.

    Args:
        path: The file.
        env: Name of the env.
        chain: The stages.
        steps: Step of each sample.
        drifts: Course of each number.
    """

    path: str
    env: str
    chain: tuple[str, ...]
    steps: tuple[int, ...]
    drifts: tuple[Drift, ...]


def read_watch(path: str | Path) -> WatchReport:
    """Read a file that ``tdx.watch`` wrote, also while it is still written.

    Raises:
        StorageError: It cannot be read, or ``tdx.watch`` did not write it.
    """
    try:
        lines = _read_lines(path)
        head = next(lines, None)
        records = _with_passed_values([_parse(line) for line in lines])
    except StorageError as error:
        raise _invalid(path) from error
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {explain_os_error(error)}", hint="tdx.watch writes it"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _invalid(path) from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise _invalid(path)
    if head.get("version") != VERSION:
        raise StorageError(
            f"{path} has version {head.get('version')!r}, this tdx reads {VERSION}",
            hint="update tdx",
        )
    steps = tuple(record.step for record in records)
    chain = tuple(str(stage) for stage in head["stages"])
    return WatchReport(str(path), str(head["env"]), chain, steps, tuple(_drifts(records)))


def _read_lines(path: str | Path) -> Iterator[Mapping[str, Any]]:
    """Yield the documents of a file; a last line that is still written is left out."""
    with Path(path).open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), 1):
            if b"\0" in line:
                # Zeros where a power failure took what was not flushed to the disk.
                warnings.warn(
                    f"{path} is damaged from line {number} on, as after a power failure; the "
                    "samples before it are shown",
                    stacklevel=3,
                )
                return
            if line.endswith(b"\n"):
                yield parse_json(line, str(path))


def _invalid(path: str | Path) -> StorageError:
    return StorageError(f"{path} was not written by tdx.watch", hint="see tdx.watch(env, to=FILE)")


def _parse(data: Mapping[str, Any]) -> WatchRecord:
    states = (
        StateRecord(
            str(state["stage"]),
            str(state["name"]),
            tuple(math.nan if value is None else float(value) for value in state["values"]),
        )
        for state in data["states"]
    )
    keys = (KeyRecord(**key) for key in data["keys"])
    return WatchRecord(int(data["step"]), float(data["seconds"]), tuple(keys), tuple(states))


def _with_passed_values(records: Sequence[WatchRecord]) -> list[WatchRecord]:
    """Add what passed a stage in the samples before the first one in which it changed the key.

    The value is that of the stage before, which later samples name.
    """
    sources: dict[tuple[str, str], str] = {}
    for record in records:
        latest: dict[str, str] = {}
        for entry in record.keys:
            if entry.changed is not None and entry.key in latest:
                sources.setdefault((entry.stage, entry.key), latest[entry.key])
            latest[entry.key] = entry.stage
    pending, filled = set(sources), []
    for record in records:
        known = {(entry.stage, entry.key): entry for entry in record.keys}
        pending.difference_update(known)
        added = []
        for stage, key in sources:
            source = stage
            while (source, key) in pending and (source, key) in sources:
                source = sources[source, key]
            if (stage, key) in pending and (source, key) in known:
                value = replace(known[source, key], outside=None, microseconds=None)
                added.append(replace(value, stage=stage, changed=False))
        filled.append(replace(record, keys=(*record.keys, *added)))
    return filled


def _drifts(records: Sequence[WatchRecord]) -> Iterator[Drift]:
    columns = [record.numbers() for record in records]
    names = dict.fromkeys(name for numbers in columns for name in numbers)
    for name in names:
        column = [numbers.get(name) for numbers in columns]
        values = tuple(
            None if number is None or math.isnan(number) else number for number in column
        )
        known = [value for value in values if value is not None]
        if not known:
            continue
        first, last = known[0], known[-1]
        since = f"since step {records[0].step:,}"
        moved = _describe_value(name[1], known, since)
        moved = moved or _describe_state(*name, first, last, columns[0], since)
        yield Drift(*name, first, last, values, moved)


def _describe_value(name: str, values: Sequence[float], since: str) -> str | None:
    """Return how a mean or a share moved; ``None`` if it did not."""
    statistic = name.rpartition("/")[2]
    if statistic in ("nan", "outside") and values[-1] > values[0]:
        return f"rose from {values[0]:.1%} to {values[-1]:.1%} {since}"
    quarter = len(values) // 4
    if statistic != "mean" or quarter < _MIN_QUARTER:
        return None
    early, late = values[:quarter], values[-quarter:]
    before, after = fmean(early), fmean(late)
    spread = math.sqrt((pvariance(early) + pvariance(late)) / 2)
    if abs(after - before) <= max(_MOVED * spread, _CHANGED * abs(before)):
        return None
    return f"moved from {before:.4g} to {after:.4g} on average {since}"


def _describe_state(
    stage: str,
    name: str,
    first: float,
    last: float,
    numbers: Mapping[tuple[str, str], float],
    since: str,
) -> str | None:
    """Return how the location or the scale of a normalizer moved; ``None`` if it did not."""
    location = _LOCATION.search(name)
    if location is not None:
        of_scale, of_variance = _COMPANIONS[location[0]]
        scale = numbers.get((stage, name.replace(location[0], of_scale)), 0.0)
        scale = math.sqrt(max(scale, 0)) if of_variance else scale
        if scale and abs(last - first) > _CHANGED * scale:
            return f"moved by {abs(last - first) / scale:.1f} scales {since}"
    elif _SCALE.search(name) and first and abs(last - first) > _CHANGED * abs(first):
        return f"changed from {first:.4g} to {last:.4g} {since}"
    return None
