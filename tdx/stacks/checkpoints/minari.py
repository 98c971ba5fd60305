"""Read Minari datasets in HDF5: episodes with T+1 observations and T actions.

Arrays and JPEG images are read by rows; texts and tuples by whole episodes, as Minari does.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tdx.foundation.array_files import (
    MAX_FILES,
    MAX_NOTE_BYTES,
    Array,
    FileColumn,
    array_bytes,
)
from tdx.foundation.container import Container
from tdx.foundation.errors import MissingPackageError, StorageError, install_extra
from tdx.foundation.hdf5 import find_datasets, open_hdf5
from tdx.foundation.untrusted import parse_json, read_limited, validate_shape
from tdx.stacks.checkpoints.dataset import Dataset, DatasetFeature, flatten_rows, rows_at_once
from tdx.stacks.checkpoints.frames import MAX_FRAMES, decode_image, spread

if TYPE_CHECKING:
    import h5py
    from gymnasium import Space
    from minari.dataset.minari_storage import MinariStorage

METADATA, DATA_FILE = "metadata.json", "main_data.hdf5"
INFOS = "infos/"
_METADATA, _NUMBERS = "data/metadata.json", "data/main_data.hdf5"
_MAX_OBJECTS = 10_000_000
_MAX_EPISODE_BYTES = 2**31
_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_SPACES = ("observation_space", "action_space")
_FLAGS = {"terminated": "terminations", "truncated": "truncations"}
_AGAIN = "write the dataset again with Minari 0.5 or newer"


@contextmanager
def read_steps(path: Path) -> Iterator[MinariReader]:
    """Open a dataset of any program with the columns that Minari defines."""
    check_dataset(path)
    reader = MinariReader(open_storage(path))
    if reader.reads_episodes:
        check_dataset(path, _MAX_EPISODE_BYTES)
    yield reader


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Suppress Minari's advice to authors who publish a dataset."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def flatten_arrays(values: object, name: str, path: Sequence[str] = ()) -> dict[str, Array]:
    """Flatten arrays in dicts to places such as ``observations/agent/position``."""
    if isinstance(values, dict):
        found: dict[str, Array] = {}
        for value, inner in values.items():
            found |= flatten_arrays(inner, name, (*path, value))
        return found
    return {"/".join((name, *path)): np.asarray(values)}


def open_storage(path: Path) -> MinariStorage:
    """Open the storage of a dataset that was checked."""
    from minari.dataset.minari_storage import MinariStorage

    try:
        with ignore_warnings():
            return MinariStorage.read(path / "data")
    except Exception as error:
        message = f"{path} cannot be read as a Minari dataset: {' '.join(str(error).split())}"
        raise StorageError(message, hint="name the folder that `data` is in") from error


def check_dataset(folder: Path, most: int | None = None) -> tuple[dict[str, Any], int]:
    """Check the metadata and the HDF5 file of a dataset.

    ``most`` is the largest number of bytes of an episode.

    Returns:
        The metadata, and the number of bytes that the dataset has after decompression.
    """
    with Container.open(folder) as container:
        files = container.check_links(most=MAX_FILES)
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
        for part in _parts(parse_json(metadata[name], folder / _METADATA)):
            dtype = part.get("dtype", "int64")
            if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
                raise StorageError(f"a space in {folder} has the dtype {dtype!r}", hint=_AGAIN)
            validate_shape(part.get("shape", []), f"a space in {folder}")
    path = folder / _NUMBERS
    with open_hdf5(path) as file:
        datasets = find_datasets(path, file, _MAX_OBJECTS)
        sizes: Counter[str] = Counter()
        for name, dataset in datasets.items():
            episode = name.partition("/")[0]
            sizes[episode] += array_bytes(dataset.shape or (), dataset.dtype, name)
        for episode, size in sizes.most_common(1):
            if most is not None and size > most:
                raise StorageError(f"{episode} of {folder} has {size:,} bytes, more than {most:,}")
        return metadata, sizes.total()


def _parts(space: Any) -> Iterator[dict[str, Any]]:
    """Yield every nested space; the parser limits the depth."""
    if isinstance(space, dict):
        if "type" in space:
            yield space
        for inner in space.values():
            yield from _parts(inner)
    elif isinstance(space, list):
        for inner in space:
            yield from _parts(inner)


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


def read_episode(storage: MinariStorage, number: int) -> dict[str, Any]:
    """Return the arrays of an episode, by place such as ``observations/position``."""
    try:
        found = next(iter(storage.get_episodes([number])))
    except Exception as error:
        raise StorageError(
            f"episode {number} in {storage.data_path} cannot be read", hint="export it again"
        ) from error
    infos = {
        f"{INFOS}{name}": array for name, array in flatten_arrays(found["infos"] or {}, "").items()
    }
    return {
        **flatten_arrays(found["observations"], "observations"),
        **flatten_arrays(found["actions"], "actions"),
        **{name.replace(f"{INFOS}/", INFOS): np.asarray(info) for name, info in infos.items()},
        **{name: found[name] for name in ("rewards", "terminations", "truncations")},
    }


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the rows of an entry are in an episode."""

    path: str  # Below the group of the episode.
    is_image: bool = False  # The rows are JPEG files.
    first: int = 0  # Row of the first step.


def _leaves(
    space: Space[object], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Space[object]]]:
    from gymnasium.spaces import Dict

    if isinstance(space, Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, space


class MinariReader:
    """Reads the columns that Minari defines, of a dataset of any program."""

    def __init__(self, storage: MinariStorage) -> None:
        self._storage = storage
        with _reading(storage):
            self.lengths = [
                int(episode["total_steps"])
                for episode in storage.get_episode_metadata(range(storage.total_episodes))
            ]
            if min(self.lengths, default=1) < 1:
                raise ValueError("an episode has no steps")
        self._ends = np.cumsum(self.lengths)
        self._current_episode: tuple[int, dict[str, Any]] | None = None
        self.env = _parse_env_spec(storage.metadata.get("env_spec"))
        with _reading(storage):
            self._places = dict(self._find_places()) if self.lengths else {}

    @property
    def reads_episodes(self) -> bool:
        """True if some entries are read by whole episodes."""
        return any(place is None for place in self._places.values())

    def _find_places(self) -> Iterator[tuple[str, _Place | None]]:
        """Yield the entries, and where their rows are; ``None`` if only Minari can read them."""
        from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
        from minari.dataset.minari_storage import is_image_space

        storage = self._storage
        for part, whole in (
            ("observations", storage.observation_space),
            ("actions", storage.action_space),
        ):
            for path, space in _leaves(whole):
                place = None
                if isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete):
                    is_image = storage.jpeg_encoding and is_image_space(space)
                    place = _Place("/".join((part, *path)), is_image)
                key = ".".join(path)
                if part == "actions":
                    yield f"action.{key}" if key else "action", place
                    continue
                key = key or "observation"
                yield key, place
                yield f"next.{key}", None if place is None else replace(place, first=1)
        yield "next.reward", _Place("rewards")
        for name in ("terminated", "truncated", "done"):
            yield f"next.{name}", _Place(_FLAGS.get(name, ""))

    def columns(self) -> Mapping[str, FileColumn]:
        if not self.lengths:
            return {}
        total = int(self._ends[-1])
        return {
            name: FileColumn(array.dtype, (total, *array.shape[1:]))
            for name, array in self.read_steps(list(self._places), 0, 1).items()
        }

    def read_steps(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        parts: dict[str, list[Array]] = {name: [] for name in names}
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        with open_hdf5(self._storage.data_path / DATA_FILE) as file:
            for number in range(int(first), int(last) + 1):
                begin = int(self._ends[number]) - self.lengths[number]
                rows = max(0, start - begin), min(stop - begin, self.lengths[number])
                with _reading(self._storage):
                    for name, found in parts.items():
                        found.append(self._read(file, number, name, *rows))
        with _reading(self._storage):
            return {name: np.concatenate(found) for name, found in parts.items()}

    def _read(self, file: h5py.File, number: int, name: str, start: int, stop: int) -> Array:
        place = self._places[name]
        group = file[f"episode_{number}"]
        if name == "next.done":
            flags = (group[path][start:stop].astype(bool) for path in _FLAGS.values())
            done: Array = np.logical_or(*flags)
            # An episode without an end flag ends at its last step.
            done[self.lengths[number] - 1 - start :] = True
            return done
        if place is None:
            return self._read_episode(number)[name][start:stop]
        rows: Array = group[place.path][start + place.first : stop + place.first]
        if place.is_image:
            where = f"{place.path} of episode {number} in {self._storage.data_path}"
            return np.stack([decode_image(row.tobytes(), where) for row in rows])
        return rows.astype(bool) if place.path in _FLAGS.values() else rows

    def _read_episode(self, number: int) -> dict[str, Any]:
        """Return the observations and actions of an episode that rows cannot be read of."""
        if self._current_episode is None or self._current_episode[0] != number:
            entries: dict[str, Any] = {}
            for place, array in read_episode(self._storage, number).items():
                kind, _, rest = place.partition("/")
                key = rest.replace("/", ".")
                if kind == "observations":
                    key = key or "observation"
                    entries[key], entries[f"next.{key}"] = array[:-1], array[1:]
                elif kind == "actions":
                    entries[f"action.{key}" if key else "action"] = array
            self._current_episode = number, entries
        return self._current_episode[1]

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


def read_minari(path: Path) -> Dataset:
    """Read what a Minari dataset has."""
    if importlib.util.find_spec("minari") is None or importlib.util.find_spec("h5py") is None:
        raise MissingPackageError("Minari is not installed", hint=install_extra("minari"))
    with read_steps(path) as reader:
        columns = {
            name: column
            for name, column in reader.columns().items()
            if not name.startswith("next.") and column.dtype.kind in "biuf"
        }
        steps = next((column.shape[0] for column in columns.values()), 0)
    features = {
        # An observation without dimensions is one number.
        name: DatasetFeature(column.dtype.name, column.shape[1:] or (1,))
        for name, column in columns.items()
    }
    vectors = [key for key, feature in features.items() if not feature.is_image]
    read_rows = partial(_read_rows, path, features, steps)
    read_frames = partial(_read_frames, path)
    return Dataset(
        *(path, "a Minari dataset", None, steps, features, None, vectors, read_rows, read_frames)
    )


def _read_rows(
    path: Path, features: Mapping[str, DatasetFeature], steps: int, keys: Sequence[str]
) -> Iterator[Mapping[str, Array]]:
    if not keys:
        return
    size = rows_at_once(features, keys)
    with read_steps(path) as reader:
        for start in range(0, steps, size):
            arrays = reader.read_steps(keys, start, min(start + size, steps))
            yield {
                key: flatten_rows(array, features[key], f"{key!r} in {path}")
                for key, array in arrays.items()
            }


def _read_frames(path: Path, key: str) -> Iterator[Array]:
    with read_steps(path) as reader:
        for index in spread(sum(reader.lengths), MAX_FRAMES):
            yield reader.read_steps([key], index, index + 1)[key][0]
