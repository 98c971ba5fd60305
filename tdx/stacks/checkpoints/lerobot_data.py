"""Read LeRobot datasets, versions 2.1 and 3.0: their stored statistics, and their data.

References:
    https://huggingface.co/docs/lerobot/lerobot-dataset-v3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.container import Container
from tdx.foundation.errors import MissingPackageError, StorageError, explain_os_error, install_extra
from tdx.foundation.untrusted import MAX_HEADER_BYTES, parse_json, validate_shape
from tdx.stacks.checkpoints.dataset import BATCH_ROWS, Dataset, DatasetFeature, list_files, merge
from tdx.stacks.checkpoints.files import parse_mapping, parse_statistics
from tdx.stacks.checkpoints.frames import table_images, video_frames
from tdx.stacks.checkpoints.model import Json, parse_fps, parse_list

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

_AGAIN = "download the dataset again"
_mapping = partial(parse_mapping, hint=_AGAIN)
_statistics = partial(parse_statistics, hint=_AGAIN)
INFO, STATS, EPISODES_STATS = "meta/info.json", "meta/stats.json", "meta/episodes_stats.jsonl"


def read_lerobot(path: Path) -> Dataset:
    """Read what a dataset declares, and the statistics that it stores."""
    try:
        with Container.open(path) as container:
            document = parse_json(container.read(INFO, MAX_HEADER_BYTES), INFO)
            info = _mapping(document, INFO)
            stored = _read_statistics(container)
    except StorageError:
        raise
    except OSError as error:
        reason = explain_os_error(error)
        raise StorageError(f"{path} is not a LeRobot dataset: {INFO}: {reason}") from error
    features = {
        key: _feature(_mapping(value, f"feature {key!r} of {INFO}"), key)
        for key, value in _mapping(info.get("features"), f"features of {INFO}").items()
    }
    # Without what LeRobot adds, such as ``index``.
    vectors = [
        key
        for key, feature in features.items()
        if key.startswith(("observation", "action"))
        and not feature.is_image
        and feature.dtype.startswith(("float", "int", "uint", "bool"))
    ]
    steps = info.get("total_frames")
    return Dataset(
        path,
        "a LeRobot dataset",
        parse_fps(info.get("fps")),
        steps if isinstance(steps, int) else 0,
        features,
        stored,
        vectors,
        partial(_read_tables, path, features),
        partial(_read_frames, path, features),
    )


def _feature(value: Mapping[str, Json], key: str) -> DatasetFeature:
    dtype, names = value.get("dtype"), value.get("names")
    if isinstance(names, dict):
        # {"motors": ["shoulder", "elbow"]}, or one position by name.
        first = next(iter(names.values()), None)
        names = first if isinstance(first, list) else list(names)
    shape = validate_shape(parse_list(value.get("shape")), f"the shape of {key!r}")
    listed = tuple(str(name) for name in names) if isinstance(names, list) else ()
    return DatasetFeature(str(dtype), shape, listed)


def _read_statistics(container: Container) -> dict[str, dict[str, Array]]:
    try:
        document = _mapping(parse_json(container.read(STATS, MAX_HEADER_BYTES), STATS), STATS)
        return {key: _statistics(value, STATS) for key, value in document.items()}
    except FileNotFoundError:
        pass
    try:
        lines = container.read(EPISODES_STATS, MAX_HEADER_BYTES).splitlines()
    except FileNotFoundError:
        return {}
    episodes = []
    for line in lines:
        document = _mapping(parse_json(line, EPISODES_STATS), EPISODES_STATS)
        stats = _mapping(document.get("stats"), EPISODES_STATS)
        episodes.append({key: _statistics(value, EPISODES_STATS) for key, value in stats.items()})
    keys = dict.fromkeys(key for episode in episodes for key in episode)
    return {key: merge([episode[key] for episode in episodes if key in episode]) for key in keys}


def _read_tables(
    folder: Path, features: Mapping[str, DatasetFeature], keys: Sequence[str]
) -> Iterator[Mapping[str, Array]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingPackageError(
            "pyarrow is not installed", hint=install_extra("datasets")
        ) from error
    if not keys:
        return
    with Container.open(folder) as container:
        for name in list_files(folder, "data", ".parquet"):
            try:
                with container.open_file(name) as file:
                    table = pq.ParquetFile(file)
                    missing = [key for key in keys if key not in table.schema_arrow.names]
                    if missing:
                        raise StorageError(
                            f"{name} has no column {missing[0]!r}, which {INFO} declares",
                            hint=_AGAIN,
                        )
                    for batch in table.iter_batches(BATCH_ROWS, columns=list(keys)):
                        yield {
                            key: _rows(batch.column(key), features[key], key, name) for key in keys
                        }
            except StorageError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise StorageError(f"{name} of {folder} cannot be read: {error}") from error


def _read_frames(folder: Path, features: Mapping[str, DatasetFeature], key: str) -> Iterator[Array]:
    return (video_frames if features[key].dtype == "video" else table_images)(folder, key)


def _rows(column: ChunkedArray, feature: DatasetFeature, key: str, name: str) -> Array:
    """Return a column as an array ``[n, numbers]``."""
    count, width = len(column), int(np.prod(feature.shape))
    values = column
    while hasattr(values, "flatten") and str(values.type).partition("<")[0].endswith("list"):
        values = values.flatten()
    numbers = values.to_numpy(zero_copy_only=False)
    if len(numbers) != count * width:
        raise StorageError(
            f"{key!r} in {name} has {len(numbers):,} numbers in {count:,} steps, and {INFO} "
            f"declares the shape {list(feature.shape)}",
            hint=_AGAIN,
        )
    rows: Array = numbers.reshape(count, width)
    return rows
