"""LeRobot datasets as folders, versions 2.1 and 3.0."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.stacks.checkpoints.folders import ACTION, IMAGE, JOINTS, STATE, Arrays, statistics

NAMES = ["pan", "lift", "elbow", "flex", "roll", "gripper"]


def draw(steps: int, seed: int = 0) -> Arrays:
    """Return states and actions of a few episodes, in float32."""
    rng = np.random.default_rng(seed)
    scales = np.asarray([1, 2, 3, 4, 5, 6])
    states = rng.normal(scales, scales, (steps, JOINTS))
    actions = states * 2 + rng.normal(0, 0.1, states.shape)
    return {STATE: states.astype(np.float32), ACTION: actions.astype(np.float32)}


def write_dataset(path: Path, episodes: list[Arrays], version: str = "v3.0") -> Path:
    """Write a dataset, and return its folder."""
    (path / "meta").mkdir(parents=True)
    numeric = {"dtype": "float32", "shape": [JOINTS], "names": NAMES}
    total = sum(len(episode[STATE]) for episode in episodes)
    info = {
        "codebase_version": version,
        "fps": 30,
        "total_frames": total,
        "total_episodes": len(episodes),
        "features": {
            STATE: numeric,
            ACTION: numeric,
            IMAGE: {"dtype": "video", "shape": [96, 96, 3], "names": ["height", "width", "c"]},
            "index": {"dtype": "int64", "shape": [1], "names": None},
        },
    }
    (path / "meta" / "info.json").write_text(json.dumps(info))
    image = {
        name: [[[value]]] * 3
        for name, value in (("mean", 0.5), ("std", 0.2), ("min", 0.0), ("max", 1.0))
    }
    if version == "v3.0":
        whole = {key: np.concatenate([episode[key] for episode in episodes]) for key in episodes[0]}
        write_statistics(path, {**{key: statistics(v) for key, v in whole.items()}, IMAGE: image})
        write_table(path / "data" / "chunk-000" / "file-000.parquet", whole)
        return path
    lines = []
    for index, episode in enumerate(episodes):
        stats: dict[str, Any] = {
            key: {name: value.tolist() for name, value in statistics(rows).items()}
            | {"count": [len(rows)]}
            for key, rows in episode.items()
        }
        lines.append(json.dumps({"episode_index": index, "stats": stats}))
        write_table(path / "data" / "chunk-000" / f"episode_{index:06}.parquet", episode)
    (path / "meta" / "episodes_stats.jsonl").write_text("\n".join(lines) + "\n")
    return path


def write_statistics(path: Path, stats: dict[str, Any]) -> None:
    """Write ``meta/stats.json``."""
    plain = {
        key: {name: np.asarray(value).tolist() for name, value in named.items()}
        for key, named in stats.items()
    }
    (path / "meta" / "stats.json").write_text(json.dumps(plain))


def write_table(path: Path, columns: Arrays) -> None:
    """Write the steps of episodes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        key: pa.FixedSizeListArray.from_arrays(pa.array(value.ravel()), value.shape[1])
        for key, value in columns.items()
    }
    pq.write_table(pa.table(arrays), path)


def draw_frames(count: int, brightness: float = 0.5, size: int = 32) -> list[np.ndarray[Any, Any]]:
    """Return frames with a gradient, whose values have a mean near the brightness."""
    ramp = np.linspace(brightness - 0.3, brightness + 0.3, size)
    frame = np.broadcast_to(ramp[:, None, None], (size, size, 3))
    return [(np.clip(frame, 0, 1) * 255).astype(np.uint8)] * count


def image_statistics(frames: list[np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Return statistics as LeRobot stores them, ``[3, 1, 1]``."""
    values = np.stack(frames) / 255
    named = {name: getattr(values, name)((0, 1, 2)) for name in ("mean", "std", "min", "max")}
    return {name: value[:, None, None] for name, value in named.items()}


def write_video(path: Path, frames: list[np.ndarray[Any, Any]]) -> None:
    """Write frames as H.264, as far as LeRobot's datasets have it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(path, "w", format="mp4") as file:
        height, width = frames[0].shape[:2]
        stream = file.add_stream("libx264", rate=30, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode())


def encode_image(frame: np.ndarray[Any, Any], form: str = "PNG") -> bytes:
    """Return a frame as a PNG or JPEG file."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, form)
    return buffer.getvalue()


def add_image_column(path: Path, images: list[bytes]) -> None:
    """Store the images of a dataset in its tables instead of videos; the last one is repeated."""
    info = path / "meta" / "info.json"
    document = json.loads(info.read_text())
    document["features"][IMAGE]["dtype"] = "image"
    info.write_text(json.dumps(document))
    for file in (path / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        padded = (images + images[-1:] * table.num_rows)[: table.num_rows]
        column = pa.array([{"bytes": data, "path": None} for data in padded])
        pq.write_table(table.append_column(IMAGE, column), file)
