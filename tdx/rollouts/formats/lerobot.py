"""LeRobot datasets, version 3.0: tables of steps and episodes in Parquet, images as mp4.

Reference: https://huggingface.co/docs/lerobot/lerobot-dataset-v3
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats import mp4, parquet
from tdx.rollouts.formats.export_source import ExportSource
from tdx.rollouts.formats.files import to_array
from tdx.rollouts.formats.interface import ExportColumn, ExportOptions, ExportPlan, Format
from tdx.rollouts.formats.video import PixelFormat

if TYPE_CHECKING:
    import pyarrow as pa

format = Format(
    name="lerobot",
    title="a LeRobot dataset, version 3.0: Parquet and mp4",
    suffixes=("-lerobot",),
    mark="meta/info.json",
    packages=("pyarrow", "av"),
    extra="lerobot",
    can_import=False,
)

VERSION = "v3.0"
_CHUNK_FILES = 1000
"""Number of files in a folder."""
_MAX_STEPS = 100_000
"""Number of steps from which the next episode starts new files."""
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_INDEX = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_DONE = ("done", "terminated", "truncated")


@dataclass(slots=True)
class _Statistics:
    """Minimum, maximum, mean and standard deviation of an entry, from its blocks."""

    count: int = 0
    total: Any = 0.0
    squares: Any = 0.0
    low: Any = np.inf
    high: Any = -np.inf

    def add(self, values: Array) -> None:
        """Add values ``[n, numbers]``."""
        wide = values.astype(np.float64)
        self.count += len(wide)
        self.total = self.total + wide.sum(0)
        self.squares = self.squares + np.square(wide).sum(0)
        self.low = np.minimum(self.low, wide.min(0))
        self.high = np.maximum(self.high, wide.max(0))

    def to_dict(self, steps: int, shape: Sequence[int]) -> dict[str, Any]:
        """Convert to plain data; ``count`` is the number of steps."""
        mean = self.total / self.count
        std = np.sqrt(np.maximum(self.squares / self.count - np.square(mean), 0))
        named = {"min": self.low, "max": self.high, "mean": mean, "std": std}
        found = {name: np.reshape(value, shape).tolist() for name, value in named.items()}
        return {**found, "count": [steps]}


@dataclass(slots=True)
class _Feature:
    """An entry of the dump and its place in the dataset."""

    name: str
    path: Parts
    pixels: PixelFormat | None  # None: a column of numbers
    statistics: _Statistics = field(default_factory=_Statistics)
    size: tuple[int, int] = (0, 0)  # height and width of the video


def plan(source: ExportSource, options: ExportOptions) -> ExportPlan:
    """Return the features."""
    columns = [ExportColumn(DATA, feature.path, feature.name) for feature in _features(source)]
    notes = ["the observation after the last step of an episode is left out"]
    notes += ["videos are lossy"] if any(feature.pixels for feature in _features(source)) else []
    size = source.manifest.size
    return ExportPlan(source.entries(columns), len(source.episodes), size, tuple(notes))


def _features(source: ExportSource) -> list[_Feature]:
    """Return the features: observations and actions before a step, and what follows from it."""
    dims, found = len(source.batch_size), []
    for path, (dtype, shape) in source.data.leaves.items():
        is_next = path[0] == "next"
        has_both = is_next and path[1:] in source.data.leaves
        is_done = path[-1] in _DONE
        if (is_done and not is_next) or (has_both and not is_done):
            continue
        pixels = PixelFormat.of(shape[dims:], dtype)
        found.append(_Feature(_name(path, source, pixels), path, pixels))
    return found


def _name(path: Parts, source: ExportSource, pixels: PixelFormat | None) -> str:
    name = ".".join(path).replace("/", "_")
    if path[0] == "next" or ("next", *path) not in source.data.leaves:
        return name
    if pixels is not None:
        return f"observation.images.{name}"
    if path == ("observation",):
        return "observation.state"
    return name if name.startswith("observation.") else f"observation.{name}"


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write a dataset that LeRobot and ``datasets`` read."""
    if not source.episodes:
        raise ArgumentError(f"{source.folder} has no steps", hint="record some first")
    features = _features(source)
    source.check([feature.path for feature in features])
    task = source.dump.manifest.env
    episodes = []
    for number, group in enumerate(_groups(source.episodes)):
        place = {"chunk_index": number // _CHUNK_FILES, "file_index": number % _CHUNK_FILES}
        episodes += _write_files(source, target, features, group, place, options.fps, task)
    columns = {name: [row[name] for row in episodes] for name in episodes[0]}
    _write_table(target / _EPISODES.format(chunk_index=0, file_index=0), columns)
    _write_tasks(target / "meta/tasks.parquet", task)
    steps = episodes[-1]["dataset_to_index"]
    statistics = {
        feature.name: feature.statistics.to_dict(steps, (3, 1, 1) if feature.pixels else (-1,))
        for feature in features
    }
    _write_json(target / "meta/stats.json", statistics)
    _write_json(target / "meta/info.json", _describe(source, features, episodes, options.fps))
    return ()


def check(folder: Path) -> None:
    """Read back the ends of all tables and videos.

    Raises:
        OSError: One is missing.
        ValueError: One is damaged.
    """
    for table in folder.rglob("*.parquet"):
        parquet.check(table)
    if any(folder.rglob("*.mp4")):
        mp4.check(folder)


def _groups(episodes: Sequence[Episode]) -> Iterator[list[tuple[int, Episode]]]:
    """Yield the episodes of each file, with their numbers."""
    group: list[tuple[int, Episode]] = []
    steps = 0
    for number, episode in enumerate(episodes):
        if group and steps + episode.length > _MAX_STEPS:
            yield group
            group, steps = [], 0
        group.append((number, episode))
        steps += episode.length
    yield group


def _write_files(
    source: ExportSource,
    target: Path,
    features: Sequence[_Feature],
    group: Sequence[tuple[int, Episode]],
    place: dict[str, int],
    fps: int,
    task: str,
) -> list[dict[str, Any]]:
    """Write the table and the videos of some episodes; return their rows of metadata."""
    import pyarrow.parquet as pq

    first = sum(episode.length for episode in source.episodes[: group[0][0]])
    path = target / _DATA.format(**place)
    path.parent.mkdir(parents=True, exist_ok=True)
    schema, start = _schema(source, features), first
    rows: list[dict[str, Any]] = []
    with pq.ParquetWriter(path, schema) as writer:
        for number, episode in group:
            writer.write_table(
                _episode_table(source, features, schema, number, episode, start, fps)
            )
            rows.append(
                {
                    "episode_index": number,
                    "tasks": [task],
                    "length": episode.length,
                    **{f"data/{name}": value for name, value in place.items()},
                    "dataset_from_index": start,
                    "dataset_to_index": start + episode.length,
                    "meta/episodes/chunk_index": 0,
                    "meta/episodes/file_index": 0,
                }
            )
            start += episode.length
    for feature in features:
        if feature.pixels is not None:
            video = target / _VIDEO.format(video_key=feature.name, **place)
            video.parent.mkdir(parents=True, exist_ok=True)
            frames = (frame for _, episode in group for frame in _frames(source, feature, episode))
            mp4.encode_mp4(video, frames, fps, lossless=False)
            for row in rows:
                begin = row["dataset_from_index"] - first
                row |= {f"videos/{feature.name}/{name}": value for name, value in place.items()}
                row[f"videos/{feature.name}/from_timestamp"] = begin / fps
                row[f"videos/{feature.name}/to_timestamp"] = (begin + row["length"]) / fps
    return rows


def _frames(source: ExportSource, feature: _Feature, episode: Episode) -> Iterator[Array]:
    assert feature.pixels is not None
    for step in range(episode.start, episode.start + episode.length):
        values = source.span(feature.path, episode.row, step, step + 1)[0]
        image = feature.pixels.convert(values, step, feature.path)
        feature.size = (image.shape[0] + image.shape[0] % 2, image.shape[1] + image.shape[1] % 2)
        feature.statistics.add(image.reshape(-1, 3) / 255)
        yield image


def _schema(source: ExportSource, features: Sequence[_Feature]) -> pa.Schema:
    import pyarrow as pa

    fields = []
    for feature in features:
        if feature.pixels is None:
            step = source.step_array(feature.path)
            single, size = pa.from_numpy_dtype(step.dtype), math.prod(step.shape)
            fields.append(pa.field(feature.name, single if size == 1 else pa.list_(single, size)))
    fields += [
        pa.field("timestamp", pa.float32()),
        *(pa.field(name, pa.int64()) for name in _INDEX[1:]),
    ]
    return pa.schema(fields)


def _episode_table(
    source: ExportSource,
    features: Sequence[_Feature],
    schema: pa.Schema,
    number: int,
    episode: Episode,
    start: int,
    fps: int,
) -> pa.Table:
    import pyarrow as pa

    arrays = []
    for feature in features:
        if feature.pixels is None:
            values = source.span(
                feature.path, episode.row, episode.start, episode.start + episode.length
            )
            flat = to_array(values, splits_complex=True).reshape(episode.length, -1)
            feature.statistics.add(flat)
            single = pa.array(flat.reshape(-1))
            kind = schema.field(feature.name).type
            is_list = pa.types.is_fixed_size_list(kind)
            arrays.append(
                pa.FixedSizeListArray.from_arrays(single, type=kind) if is_list else single
            )
    frames = np.arange(episode.length)
    index = {
        "timestamp": (frames / fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full(episode.length, number),
        "index": frames + start,
        "task_index": np.zeros(episode.length, np.int64),
    }
    arrays += [pa.array(index[name]) for name in _INDEX]
    return pa.Table.from_arrays(arrays, schema=schema)


def _write_table(path: Path, columns: dict[str, list[Any]], metadata: Any = None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)


def _write_tasks(path: Path, task: str) -> None:
    """Write the table of tasks, whose index pandas reads from the metadata."""
    column = {
        "field_name": None,
        "pandas_type": "unicode",
        "numpy_type": "object",
        "metadata": None,
    }
    names = [{"name": "task_index", **column, "pandas_type": "int64", "numpy_type": "int64"}]
    names[0]["field_name"] = "task_index"
    names.append({"name": "task", **column, "field_name": "task"})
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": names,
        "pandas_version": "2.2.0",
    }
    _write_table(path, {"task_index": [0], "task": [task]}, {"pandas": json.dumps(pandas)})


def _write_json(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=4) + "\n", encoding="utf-8")


def _describe(
    source: ExportSource, features: Sequence[_Feature], episodes: Sequence[Any], fps: int
) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for feature in features:
        if feature.pixels is None:
            step = source.step_array(feature.path)
            shape = [math.prod(step.shape)]
            described[feature.name] = {"dtype": str(step.dtype), "shape": shape, "names": None}
            continue
        height, width = feature.size
        described[feature.name] = {
            "dtype": "video",
            "shape": [height, width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": height,
                "video.width": width,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": fps,
                "video.channels": 3,
                "has_audio": False,
            },
        }
    for name in _INDEX:
        dtype = "float32" if name == "timestamp" else "int64"
        described[name] = {"dtype": dtype, "shape": [1], "names": None}
    return {
        "codebase_version": VERSION,
        "robot_type": None,
        "total_episodes": len(episodes),
        "total_frames": episodes[-1]["dataset_to_index"],
        "total_tasks": 1,
        "chunks_size": _CHUNK_FILES,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": _DATA,
        "video_path": _VIDEO if any(feature.pixels for feature in features) else None,
        "features": described,
    }
