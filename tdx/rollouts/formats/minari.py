"""Minari datasets: one episode at a time, with T+1 observations and T of everything else.

Datasets of tdx and of other programs are read.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tdx.foundation.array_files import Array, FileColumn, array_bytes, check_expansion
from tdx.foundation.errors import ArgumentError, StorageError
from tdx.foundation.keys import format_key, normalize_key
from tdx.foundation.safe_path import environment_variable
from tdx.pipeline import read_pipeline
from tdx.rollouts.dump.encoding import DTYPES
from tdx.rollouts.dump.entries import Parts, SpecEntry
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.formats.export_source import ExportSource, name_columns
from tdx.rollouts.formats.files import array_column, check_note, to_array
from tdx.rollouts.formats.hdf5 import open_for_library
from tdx.rollouts.formats.interface import (
    NOTE,
    ColumnReader,
    ExportColumn,
    ExportOptions,
    ExportPlan,
    Format,
)
from tdx.stacks.checkpoints.minari import (
    DATA_FILE,
    INFOS,
    METADATA,
    MinariReader,
    check_dataset,
    flatten_arrays,
    ignore_warnings,
    open_storage,
    read_episode,
)

if TYPE_CHECKING:
    from minari.dataset.minari_storage import MinariStorage

format = Format(
    name="minari",
    title="a Minari dataset: episodes with T+1 observations, in HDF5",
    suffixes=("-v0",),
    mark="data/metadata.json",
    packages=("minari", "h5py"),
    extra="minari",
)

_ROOT_FOLDER = "MINARI_DATASETS_PATH"
ROOT, NEXT = "[:-1]", "[1:]"
"""Slices of the T+1 observations: before and after each step."""
REWARD, TERMINATED, TRUNCATED, DONE = (
    ("next", name) for name in ("reward", "terminated", "truncated", "done")
)
ONE_HOT = "one_hot"
"""Key in the note for actions that are exported as indices."""
_EXPANSION = 16
"""Largest ratio of the entries' size to the stored size."""


def plan(source: ExportSource, options: ExportOptions) -> ExportPlan:
    """Return the place of each entry."""
    layout = MinariLayout.of(source)
    entries = source.entries(layout.columns)
    return ExportPlan(entries, len(source.episodes), source.manifest.size, tuple(layout.notes))


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write a dataset; Minari finds it by the name of its folder."""
    import h5py
    import minari

    layout = MinariLayout.of(source)
    name = format_dataset_id(options.name)
    data = target / "data"
    data.mkdir()
    (data / METADATA).write_bytes(_describe_dataset(source, layout, name))
    (data / DATA_FILE).touch()
    steps = 0
    with (
        open_for_library(data / DATA_FILE) as stream,
        h5py.File(stream, "w", track_order=True) as file,
    ):
        for number, episode in enumerate(_iter_episodes(source, layout)):
            group = file.create_group(f"episode_{number}")
            count = len(episode["rewards"])
            group.attrs.update({"id": number, "total_steps": count})
            for place, array in episode.items():
                growing = (None, *array.shape[1:])
                group.create_dataset(place, data=array, chunks=True, maxshape=growing)
            steps += count
            file.flush()
            stream.check()
    with ignore_warnings():
        # Minari joins a relative path twice.
        storage = minari.MinariDataset(data.resolve()).storage
        added = {
            "total_episodes": len(source.episodes),
            "total_steps": steps,
            "dataset_size": storage.get_size(),
            NOTE: {**source.note(layout.columns), ONE_HOT: layout.one_hot},
        }
        env = read_pipeline(source.manifest.pipeline, "").env
        # Gymnasium may not know the env.
        with suppress(Exception):
            spec = gymnasium.spec(env.id)
            spec.kwargs.update(env.kwargs)
            added["env_spec"] = spec.to_json()
        storage.update_metadata(added)
    if name != options.name:
        return (f"its id is {name}; minari.load_dataset needs a folder of that name",)
    return (f'set MINARI_DATASETS_PATH to its parent folder for minari.load_dataset("{name}")',)


def check(folder: Path) -> None:
    """Read back what was written last.

    Raises:
        OSError: The end is missing.
        KeyError: An episode is.
    """
    import h5py

    with h5py.File(folder / "data" / DATA_FILE, "r") as file:
        for place in file:
            file[place]["truncations"][-1:]


def _describe_dataset(source: ExportSource, layout: MinariLayout, name: str) -> bytes:
    """Return the metadata that Minari gives a dataset without episodes.

    Minari itself opens the file of numbers by its name, and HDF5 crashes if such a file fails.
    """
    import minari

    with (
        tempfile.TemporaryDirectory(prefix="tdx-") as folder,
        ignore_warnings(),
        environment_variable(_ROOT_FOLDER, os.path.realpath(folder)),
    ):
        minari.create_dataset_from_buffers(
            name,
            [],
            observation_space=nest_space(layout.observations),
            action_space=nest_space(layout.actions),
            algorithm_name=source.manifest.policy,
            jpeg_encoding=False,
        )
        return (Path(folder) / name / "data" / METADATA).read_bytes()


def format_dataset_id(name: str) -> str:
    """Return the id of a dataset in a folder of that name.

    Example:
        >>> format_dataset_id("cart v1"), format_dataset_id("cart-v2")
        ('cart-v1-v0', 'cart-v2')
    """
    plain = re.sub(r"[^\w-]+", "-", name).strip("-") or "dump"
    return plain if re.fullmatch(r".+-v\d+", plain) and plain == name else f"{plain}-v0"


def _iter_episodes(source: ExportSource, layout: MinariLayout) -> Iterator[dict[str, Array]]:
    places = {column.path: column.name for column in layout.columns}
    by_place = {name: path for path, name in places.items()}
    for episode in source.episodes:
        reader = _EpisodeReader(source, episode)
        observations = nest({path: reader.observations(path) for path in layout.observations})
        actions = nest({path: reader.action(path, layout) for path in layout.actions})
        ends = reader.flags(("next", "terminated"), ("next", "done"))
        cuts = reader.flags(("next", "truncated"))
        rewards = by_place.get("rewards")
        yield {
            **flatten_arrays(observations, "observations"),
            **flatten_arrays(actions, "actions"),
            "rewards": reader.total(REWARD) if rewards is None else reader.flat(rewards),
            "terminations": ends,
            "truncations": np.zeros(episode.length, bool) if cuts is None else cuts,
            **{name: reader.array(path) for path, name in places.items() if name.startswith(INFOS)},
        }


class _EpisodeReader:
    def __init__(self, source: ExportSource, episode: Episode) -> None:
        self._source, self._row = source, episode.row
        self._start, self._stop = episode.start, episode.start + episode.length

    def tensor(self, path: tuple[str, ...]) -> Tensor:
        return self._source.span(path, self._row, self._start, self._stop)

    def array(self, path: tuple[str, ...]) -> Any:
        return to_array(self.tensor(path), splits_complex=True)

    def flat(self, path: tuple[str, ...]) -> Any:
        return self.array(path).reshape(-1)

    def observations(self, path: tuple[str, ...]) -> Any:
        """Return the T+1 observations."""
        last = self._source.span(("next", *path), self._row, self._stop - 1, self._stop)
        return to_array(torch.cat([self.tensor(path), last]), splits_complex=True)

    def action(self, path: tuple[str, ...], layout: MinariLayout) -> Any:
        from gymnasium.spaces import Discrete

        if isinstance(layout.actions[path], Discrete):
            return self.tensor(path).to(torch.uint8).argmax(-1).numpy()
        return self.array(path)

    def flags(self, *paths: tuple[str, ...]) -> Any:
        """Return the first existing entry as one flag per step."""
        for path in paths:
            if path in self._source.data.leaves:
                return self.array(path).reshape(self._stop - self._start, -1).any(-1)
        return None

    def total(self, path: tuple[str, ...]) -> Any:
        values = self.tensor(path).to(torch.float64)
        return values.reshape(self._stop - self._start, -1).sum(-1).numpy()


@dataclass(slots=True)
class MinariLayout:
    """Places of a dump's entries in a Minari dataset; other entries become infos."""

    observations: dict[Parts, spaces.Space[Any]] = field(default_factory=dict)
    actions: dict[Parts, spaces.Space[Any]] = field(default_factory=dict)
    columns: list[ExportColumn] = field(default_factory=list)
    # Number of categories of one-hot actions, by place.
    one_hot: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, source: ExportSource) -> MinariLayout:
        """Return the layout for a dump."""
        layout, leaves = cls(), source.data.leaves
        specs = _specs(source)
        places: dict[Parts, str] = {}
        for path in leaves:
            spec = specs.get(path)
            if spec is None:
                continue
            if spec["part"] == "action":
                is_choice = spec["kind"] == "OneHot" and (
                    len(spec["shape"]) == len(source.batch_size) + 1 and _is_one_hot(source, path)
                )
                layout.actions[path] = (
                    spaces.Discrete(spec["shape"][-1]) if is_choice else _space(source, spec)
                )
            elif spec["part"] == "observation" and ("next", *path) in leaves:
                if _is_continuous(source, path):
                    layout.observations[path] = _space(source, spec)
                else:
                    key = format_key(normalize_key(path))
                    layout.notes.append(
                        f"{key!r} is in the infos: its next value differs from the following step"
                    )
        missing = [] if layout.observations else ["an observation with its next"]
        missing += [] if layout.actions else ["action"]
        missing += [] if REWARD in leaves else ["next.reward"]
        missing += [] if TERMINATED in leaves or DONE in leaves else ["next.terminated"]
        if missing:
            raise ArgumentError(
                f"a Minari dataset needs {' and '.join(missing)}, which the dump does not have",
                hint="roll out with --keys observation,action,reward,done,terminated,truncated",
            )
        for path in layout.observations:
            place = _place("observations", path, layout.observations)
            places[path], places["next", *path] = place + ROOT, place + NEXT
        for path in layout.actions:
            places[path] = _place("actions", path, layout.actions)
        # Rewards and flags that have one number per step.
        names = {REWARD: "rewards", TERMINATED: "terminations", TRUNCATED: "truncations"}
        for path in names.keys() & leaves.keys():
            if math.prod(leaves[path][1][len(source.batch_size) :]) == 1:
                places[path] = names[path]
        layout.one_hot = {
            places[path]: int(space.n)
            for path, space in layout.actions.items()
            if isinstance(space, spaces.Discrete)
        }
        for column in name_columns(source.manifest):
            name = places.get(column.path) or INFOS + column.name
            layout.columns.append(ExportColumn(DATA, column.path, name))
        if TRUNCATED not in leaves:
            layout.notes.append("no next.truncated: every end counts as a termination")
        return layout


def _specs(source: ExportSource) -> dict[Parts, SpecEntry]:
    """Return the specs of actions and observations.

    Entries that a step reads back, such as counts and sums, are not observations, unless there
    are no others.
    """
    listed = source.manifest.specs
    state = {tuple(spec["key"]) for spec in listed if spec["part"] == "state"}
    found = {
        tuple(spec["key"]): spec for spec in listed if spec["part"] in ("action", "observation")
    }
    plain = {path: spec for path, spec in found.items() if path not in state}
    has_observation = any(spec["part"] == "observation" for spec in plain.values())
    return plain if has_observation else found


def nest(values: Mapping[Parts, Any]) -> Any:
    """Nest values by their keys in dicts; a single value is returned unchanged."""
    if len(values) == 1:
        return next(iter(values.values()))
    found: dict[str, Any] = {}
    for path, value in values.items():
        place = found
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return found


def nest_space(values: Mapping[Parts, spaces.Space[Any]]) -> spaces.Space[Any]:
    """Nest spaces by their keys in one space."""

    def convert(value: Any) -> spaces.Space[Any]:
        if isinstance(value, dict):
            return spaces.Dict({name: convert(inner) for name, inner in value.items()})
        space: spaces.Space[Any] = value
        return space

    return convert(nest(values))


def _place(name: str, path: Parts, all_paths: Mapping[Parts, Any]) -> str:
    return name if len(all_paths) == 1 else "/".join((name, *path))


def _is_one_hot(source: ExportSource, path: Parts) -> bool:
    return all(
        bool(
            ((leaves[path] == 0) | (leaves[path] == 1)).all() and (leaves[path].sum(-1) == 1).all()
        )
        for _, leaves in source.blocks(DATA, [path])
    )


def _is_continuous(source: ExportSource, path: Parts) -> bool:
    """Return True if the next value of each step is the value of the following step."""
    source.check([path, ("next", *path)])
    for episode in source.episodes:
        stop = episode.start + episode.length
        before = source.span(path, episode.row, episode.start + 1, stop)
        after = source.span(("next", *path), episode.row, episode.start, stop - 1)
        if not torch.equal(_bits(before), _bits(after)):
            return False
    return True


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().reshape(-1).view(torch.uint8)


def _space(source: ExportSource, spec: SpecEntry) -> spaces.Space[Any]:
    dims = len(source.batch_size)
    step = array_column(DTYPES[spec["dtype"]], spec["shape"][dims:], splits_complex=True)
    dtype, shape = step.dtype, step.shape
    if dtype == np.bool_:
        return spaces.MultiBinary(shape)
    low, high = _range(dtype)
    if len(shape) == len(spec["shape"][dims:]) and not spec["dtype"].startswith("float8"):
        low, high = _bound(spec["low"], low, dims, dtype), _bound(spec["high"], high, dims, dtype)
    bounds = [np.broadcast_to(np.asarray(bound, dtype), shape).copy() for bound in (low, high)]
    return spaces.Box(bounds[0], bounds[1], shape, dtype.type)


def _range(dtype: Any) -> tuple[Any, Any]:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min, info.max
    return -np.inf, np.inf


def _bound(value: Any, default: Any, dims: int, dtype: Any) -> Any:
    """Return one bound of a spec; if it differs by env, that of the first env."""
    if value is None:
        return default
    for _ in range(dims if isinstance(value, list) else 0):
        value = value[0]
    return _numbers(value, dtype)


def _numbers(value: Any, dtype: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item, dtype) for item in value]
    return float(value) if dtype.kind == "f" else int(value)


# Reading


@contextmanager
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a dataset; episodes are read on demand."""
    metadata, size = check_dataset(path)
    note = metadata.get(NOTE)
    storage = open_storage(path)
    if note is None:
        yield _ForeignReader(storage)
    else:
        yield OwnReader(storage, note, path, size)


class OwnReader(ColumnReader):
    """Reads a dataset that tdx exported, whose arrays have ``size`` bytes."""

    def __init__(self, storage: MinariStorage, note: Any, path: Path, size: int) -> None:
        self._storage = storage
        self.note = check_note(note, path)
        manifest = Manifest.from_dict(self.note["manifest"])
        self._steps, self._batch = manifest.steps, manifest.batch_size
        self._envs = math.prod(self._batch)
        assert manifest.data is not None
        self._leaves = manifest.data.leaves
        self._paths = {column["name"]: tuple(column["key"]) for column in self.note["columns"]}
        if self._paths.keys() and not self._leaves.keys() >= set(self._paths.values()):
            raise StorageError(f"metadata in {path} names unknown entries", hint="export it again")
        one_hot = self.note.get(ONE_HOT, {})
        for name, count in one_hot.items() if isinstance(one_hot, dict) else [("", 0)]:
            shape = self._leaves.get(self._paths.get(name, ()), (None, ()))[1]
            if not shape or shape[-1] != count:
                raise StorageError(
                    f"metadata in {path} has wrong categories for {name!r}",
                    hint="export it again",
                )
        self._one_hot: dict[str, int] = one_hot
        claimed = 0
        for name, column in self.columns().items():
            claimed += array_bytes(column.shape, column.dtype, f"{name!r} in {path}") // (
                one_hot.get(name, 1)
            )
        # An observation is stored once for two steps, and a flag as a single byte.
        check_expansion(claimed, size, _EXPANSION, str(path))
        self._episodes: list[list[tuple[int, Episode]]] = [[] for _ in range(self._envs)]
        for number, episode in enumerate(manifest.episodes):
            if not 0 <= episode.row < self._envs:
                raise StorageError(
                    f"metadata in {path} has row {episode.row}", hint="export it again"
                )
            self._episodes[episode.row].append((number, episode))
        self._current: dict[int, tuple[int, dict[str, Any]]] = {}

    def columns(self) -> Mapping[str, FileColumn]:
        found = {}
        for name, path in self._paths.items():
            dtype, shape = self._leaves[path]
            found[name] = array_column(dtype, (self._steps, *shape), splits_complex=True)
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
            for number, episode in episodes:
                begin, end = max(start, episode.start), min(stop, episode.start + episode.length)
                if begin >= end:
                    continue
                arrays = self._episode(row, number)
                for name, array in found.items():
                    part = self._part(arrays, name)[begin - episode.start : end - episode.start]
                    _put(array[begin - start : end - start, row], part, name, number)
        return found

    def _episode(self, row: int, number: int) -> dict[str, Any]:
        current = self._current.get(row)
        if current is None or current[0] != number:
            current = self._current[row] = (number, read_episode(self._storage, number))
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
        if name not in self._one_hot:
            return array
        count = self._one_hot[name]
        if array.dtype.kind not in "iu" or ((array < 0) | (array >= count)).any():
            raise StorageError(f"{name!r} is not within 0 to {count - 1}", hint="export it again")
        return np.eye(count, dtype=self.columns()[name].dtype)[array]


def _put(place: Array, part: Array, name: str, episode: int) -> None:
    try:
        place[...] = part.reshape(place.shape)
    except ValueError as error:
        raise StorageError(
            f"{name!r} of episode {episode} has another shape", hint="export it again"
        ) from error


class _ForeignReader(MinariReader, ColumnReader):
    """Reads a dataset that tdx did not export."""
