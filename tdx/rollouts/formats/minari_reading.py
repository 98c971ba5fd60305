"""Check and read Minari datasets, written by tdx or by other programs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import parse_json, read_limited, validate_shape
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.formats.files import (
    MAX_NOTE_BYTES,
    Array,
    FileColumn,
    array_bytes,
    array_format,
    check_expansion,
    check_folder,
    check_note,
)
from tdx.rollouts.formats.hdf5 import find_datasets, open_hdf5
from tdx.rollouts.formats.interface import NOTE, ColumnReader
from tdx.rollouts.formats.minari import (
    INFOS,
    NEXT,
    ONE_HOT,
    ROOT,
    flatten_arrays,
    ignore_warnings,
)

if TYPE_CHECKING:
    from minari.dataset.minari_storage import MinariStorage


_METADATA, _NUMBERS = "data/metadata.json", "data/main_data.hdf5"
_MAX_OBJECTS = 10_000_000
_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_SPACES = ("observation_space", "action_space")
_AGAIN = "write the dataset again with Minari 0.5 or newer"
_EXPANSION = 16
"""Largest ratio of the entries' size to the stored size."""


@contextmanager
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a dataset; episodes are read on demand."""
    from minari.dataset.minari_storage import MinariStorage

    metadata, size = check_dataset(path)
    note = metadata.get(NOTE)
    try:
        with ignore_warnings():
            storage = MinariStorage.read(path / "data")
    except Exception as error:
        message = f"{path} cannot be read as a Minari dataset: {' '.join(str(error).split())}"
        raise StorageError(message, hint="name the folder that `data` is in") from error
    if note is None:
        yield ForeignReader(storage)
    else:
        yield OwnReader(storage, note, path, size)


def check_dataset(folder: Path) -> tuple[dict[str, Any], int]:
    """Check the metadata and the HDF5 file of a dataset.

    Args:
        folder: Folder of the dataset.

    Returns:
        The metadata, and the number of bytes that the dataset has after decompression.

    Raises:
        StorageError: There are links, spaces are missing or odd, or the HDF5 file is not safe.
    """
    files = check_folder(folder)
    if _METADATA not in files:
        raise StorageError(
            f"{folder} cannot be read as a Minari dataset: {_METADATA} is missing",
            hint="name the folder that `data` is in",
        )
    metadata = parse_json(read_limited(folder / _METADATA, MAX_NOTE_BYTES), folder / _METADATA)
    if not isinstance(metadata, dict):
        raise StorageError(f"{folder / _METADATA} is not a JSON object", hint=_AGAIN)
    if metadata.get("data_format") != "hdf5" or _NUMBERS not in files:
        raise StorageError(
            f"{folder} has the data format {metadata.get('data_format')!r}",
            hint="only Minari datasets in HDF5 are imported",
        )
    for name in _SPACES:
        # Without a space, Minari would make the env that env_spec describes, and run its code.
        if not isinstance(metadata.get(name), str):
            raise StorageError(f"{folder / _METADATA} has no {name}", hint=_AGAIN)
        _check_space(parse_json(metadata[name], folder / _METADATA), folder)
    path = folder / _NUMBERS
    with open_hdf5(path) as file:
        datasets = find_datasets(path, file, _MAX_OBJECTS)
        sizes = (array_bytes(each.shape or (), each.dtype, name) for name, each in datasets.items())
        return metadata, sum(sizes)


def _check_space(space: Any, folder: Path) -> None:
    for each in _parts(space):
        dtype, shape = each.get("dtype", "int64"), each.get("shape", [])
        if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
            raise StorageError(f"a space in {folder} has the dtype {dtype!r}", hint=_AGAIN)
        validate_shape(shape, f"a space in {folder}")


def _parts(space: Any) -> Iterator[dict[str, Any]]:
    """Yield every nested space; the parser limits the depth."""
    if isinstance(space, dict):
        if "type" in space:
            yield space
        for each in space.values():
            yield from _parts(each)
    elif isinstance(space, list):
        for each in space:
            yield from _parts(each)


@contextmanager
def _reading(storage: MinariStorage) -> Iterator[None]:
    """Turn the errors of a dataset with an unexpected layout into one error."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StorageError(
            f"the episodes in {storage.data_path} cannot be read: {error}",
            hint="write the dataset again with Minari 0.5 or newer",
        ) from error


def _read_episode(storage: MinariStorage, number: int) -> dict[str, Any]:
    try:
        found = next(iter(storage.get_episodes([number])))
    except Exception as error:
        raise StorageError(
            f"episode {number} in {storage.data_path} cannot be read", hint="export it again"
        ) from error
    infos = {
        f"{INFOS}{name}": each for name, each in flatten_arrays(found["infos"] or {}, "").items()
    }
    return {
        **flatten_arrays(found["observations"], "observations"),
        **flatten_arrays(found["actions"], "actions"),
        **{name.replace(f"{INFOS}/", INFOS): np.asarray(each) for name, each in infos.items()},
        **{name: found[name] for name in ("rewards", "terminations", "truncations")},
    }


class OwnReader(ColumnReader):
    """Reads a dataset that tdx exported.

    Args:
        storage: Storage of the dataset.
        note: Note of tdx.
        path: Folder of the dataset.
        size: Number of bytes of its arrays.
    """

    def __init__(self, storage: MinariStorage, note: Any, path: Path, size: int) -> None:
        self._storage = storage
        self.note = check_note(note, path)
        manifest = Manifest.from_dict(self.note["manifest"])
        self._steps, self._batch = manifest.steps, manifest.batch_size
        self._envs = math.prod(self._batch)
        assert manifest.data is not None
        self._leaves = manifest.data.leaves
        self._paths = {each["name"]: tuple(each["key"]) for each in self.note["columns"]}
        if self._paths.keys() and not self._leaves.keys() >= set(self._paths.values()):
            raise StorageError(f"metadata in {path} names unknown entries", hint="export it again")
        self._one_hot = self._check_one_hot(path)
        self._check_size(path, size)
        self._episodes: list[list[tuple[int, Episode]]] = [[] for _ in range(self._envs)]
        for number, each in enumerate(manifest.episodes):
            if not 0 <= each.row < self._envs:
                raise StorageError(f"metadata in {path} has row {each.row}", hint="export it again")
            self._episodes[each.row].append((number, each))
        self._current: dict[int, tuple[int, dict[str, Any]]] = {}

    def _check_one_hot(self, path: Path) -> dict[str, int]:
        """Return the number of categories of each one-hot action, after checking it."""
        found = self.note.get(ONE_HOT, {}) if self.note is not None else {}
        for name, count in found.items() if isinstance(found, dict) else [("", 0)]:
            shape = self._leaves.get(self._paths.get(name, ()), (None, ()))[1]
            if not shape or shape[-1] != count:
                raise StorageError(
                    f"metadata in {path} has wrong categories for {name!r}",
                    hint="export it again",
                )
        return dict(found)

    def _check_size(self, path: Path, stored: int) -> None:
        claimed = 0
        for name, each in self.columns().items():
            size = array_bytes(each.shape, each.dtype, f"{name!r} in {path}")
            claimed += size // self._one_hot.get(name, 1)
        # An observation is stored once for two steps, and a flag as a single byte.
        check_expansion(claimed, stored, _EXPANSION, str(path))

    def columns(self) -> Mapping[str, FileColumn]:
        found = {}
        for name, path in self._paths.items():
            dtype, shape = self._leaves[path]
            kind, more = array_format(dtype, splits_complex=True)
            found[name] = FileColumn(kind, (self._steps, *shape, *more))
        return found

    def read_steps(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        columns = self.columns()
        dims = 1 + len(self._batch)
        found = {
            name: np.empty(
                (stop - start, self._envs, *columns[name].shape[dims:]), columns[name].dtype
            )
            for name in names
        }
        for row, episodes in enumerate(self._episodes):
            for number, each in episodes:
                begin, end = max(start, each.start), min(stop, each.start + each.length)
                if begin >= end:
                    continue
                arrays = self._episode(row, number)
                for name, array in found.items():
                    part = self._part(arrays, name)[begin - each.start : end - each.start]
                    _put(array[begin - start : end - start, row], part, name, number)
        return found

    def _episode(self, row: int, number: int) -> dict[str, Any]:
        current = self._current.get(row)
        if current is None or current[0] != number:
            current = self._current[row] = (number, _read_episode(self._storage, number))
        return current[1]

    def _part(self, arrays: Mapping[str, Any], name: str) -> Any:
        place = name.removesuffix(ROOT).removesuffix(NEXT)
        if place not in arrays:
            raise StorageError(f"{place!r} is missing in an episode", hint="export it again")
        array = arrays[place]
        if name.endswith(ROOT):
            return array[:-1]
        if name.endswith(NEXT):
            return array[1:]
        if name in self._one_hot:
            return self._to_one_hot(array, name)
        return array

    def _to_one_hot(self, array: Array, name: str) -> Array:
        count = self._one_hot[name]
        if array.dtype.kind not in "iu" or ((array < 0) | (array >= count)).any():
            raise StorageError(f"{name!r} is not within 0 to {count - 1}", hint="export it again")
        found: Array = np.eye(count, dtype=self.columns()[name].dtype)[array]
        return found


def _put(place: Array, part: Array, name: str, episode: int) -> None:
    try:
        place[...] = part.reshape(place.shape)
    except ValueError as error:
        raise StorageError(
            f"{name!r} of episode {episode} has another shape", hint="export it again"
        ) from error


class ForeignReader(ColumnReader):
    """Reads a dataset that tdx did not export.

    Args:
        storage: Storage of the dataset.
    """

    def __init__(self, storage: MinariStorage) -> None:
        self._storage = storage
        with _reading(storage):
            self._lengths = [
                int(each["total_steps"])
                for each in storage.get_episode_metadata(range(storage.total_episodes))
            ]
            if min(self._lengths, default=1) < 1:
                raise ValueError("an episode has no steps")
        self._ends = np.cumsum(self._lengths)
        self._current_episode: tuple[int, dict[str, Any]] | None = None
        self.env = _parse_env_spec(storage.metadata.get("env_spec"))

    def columns(self) -> Mapping[str, FileColumn]:
        if not self._lengths:
            return {}
        total = int(self._ends[-1])
        return {
            name: FileColumn(each.dtype, (total, *each.shape[1:]))
            for name, each in self._episode(0).items()
        }

    def read_steps(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        parts: dict[str, list[Array]] = {name: [] for name in names}
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        for number in range(int(first), int(last) + 1):
            begin = int(self._ends[number]) - self._lengths[number]
            arrays = self._episode(number)
            with _reading(self._storage):
                for name, found in parts.items():
                    found.append(arrays[name][max(0, start - begin) : stop - begin])
        with _reading(self._storage):
            return {name: np.concatenate(found) for name, found in parts.items()}

    def _episode(self, number: int) -> dict[str, Any]:
        if self._current_episode is None or self._current_episode[0] != number:
            arrays = _read_episode(self._storage, number)
            with _reading(self._storage):
                self._current_episode = (number, self._entries(arrays))
        return self._current_episode[1]

    def _entries(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, array in arrays.items():
            kind, _, rest = name.partition("/")
            key = rest.replace("/", ".")
            if kind == "observations":
                key = key or "observation"
                found[key], found[f"next.{key}"] = array[:-1], array[1:]
            elif kind == "actions":
                found[f"action.{key}" if key else "action"] = array
        found["next.reward"] = arrays["rewards"]
        found["next.terminated"] = arrays["terminations"].astype(bool)
        found["next.truncated"] = arrays["truncations"].astype(bool)
        done = found["next.terminated"] | found["next.truncated"]
        # An episode without an end flag ends at its last step.
        done[-1:] = True
        found["next.done"] = done
        return found

    def notes(self) -> tuple[str, ...]:
        notes = ["infos are left out"]
        if self._storage.jpeg_encoding:
            notes.append("images are compressed with JPEG, which is lossy")
        return tuple(notes)


def _parse_env_spec(text: Any) -> tuple[str, Mapping[str, Any]] | None:
    try:
        spec = parse_json(text, "env_spec")
        return str(spec["id"]), dict(spec.get("kwargs") or {})
    except (TypeError, ValueError, KeyError, AttributeError, StorageError):
        return None
