"""Rerun: numbers and images of a dump on a timeline, in one ``.rrd`` file."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from tdx.foundation.array_files import Array
from tdx.foundation.errors import OutputError
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats.export_source import EpisodeLookup, ExportSource, name_columns
from tdx.rollouts.formats.files import to_array
from tdx.rollouts.formats.interface import ExportColumn, ExportOptions, Format
from tdx.rollouts.formats.video import PixelFormat

if TYPE_CHECKING:
    import rerun

format = Format(
    name="rerun",
    title="a recording for the Rerun viewer: numbers and images on a timeline",
    suffixes=(".rrd",),
    packages=("rerun",),
    extra="rerun",
    can_import=False,
    holds_raw=True,
)

_MAX_NUMBERS = 64
"""Largest entry that is shown as curves; a larger one is a tensor."""


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write each entry as an entity, on the timelines ``step``, ``episode`` and ``episode_step``.

    Raw steps of the env are below ``raw``; they have only the timeline ``step``. In a batch, the
    entities of a row are below ``env_ROW``.
    """
    import rerun

    with _file_in_memory(target) as path:
        recording = rerun.RecordingStream("tdx", recording_id=source.name)
        recording.save(path)
        episodes = len(source.episodes)
        text = f"{source.name}: {source.steps} steps, {episodes} episodes, made with tdx"
        try:
            recording.log("pipeline", rerun.TextDocument(text), static=True)
            lookup = EpisodeLookup(source.episodes, source.rows)
            for track in {column.track: None for column in name_columns(source.manifest)}:
                columns = [
                    column for column in name_columns(source.manifest) if column.track == track
                ]
                for start, leaves in source.blocks(track):
                    for column in columns:
                        clock = lookup if track == DATA else None
                        _send(recording, source, column, start, leaves[column.path], clock)
            recording.flush()
        finally:
            recording.disconnect()
    dims = len(source.batch_size)
    formats = (PixelFormat.of(shape[dims:], dtype) for dtype, shape in source.data.leaves.values())
    return tuple(sorted({note for pixels in formats if pixels for note in pixels.notes}))


@contextmanager
def _file_in_memory(target: Path) -> Iterator[str]:
    """Yield the path of a file in memory, and write its content to a file after the block.

    A thread of the SDK writes, which hangs or ends without a word if a write fails: on a full disk,
    for example. The viewer holds a whole recording in memory as well.
    """
    if sys.platform != "linux":
        yield str(target)
        return
    with os.fdopen(os.memfd_create("rerun"), "rb") as memory:
        yield f"/proc/self/fd/{memory.fileno()}"
        with target.open("wb") as file:
            shutil.copyfileobj(memory, file, 2**20)


def check(path: Path) -> None:
    """Check that a recording is complete, since the SDK only logs errors of writing.

    Raises:
        OutputError: It is not.
    """
    from rerun.chunk import RrdReader

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            is_complete = bool(RrdReader(path).recordings())
        except Exception:
            is_complete = False
    if not is_complete:
        raise OutputError(f"cannot write {path.name}: it is incomplete", hint="make room")


def _send(
    recording: rerun.RecordingStream,
    source: ExportSource,
    column: ExportColumn,
    start: int,
    values: Tensor,
    episodes: EpisodeLookup | None,
) -> None:
    """Write a block of one entry, ``[n, *B, ...]``."""
    import rerun

    steps, dims = len(values), 1 + len(source.batch_size)
    rows = values.reshape(steps, source.rows, *values.shape[dims:])
    times = np.arange(start, start + steps)
    numbers, counts = (None, None) if episodes is None else episodes.read(start, steps)
    for row in range(source.rows):
        indexes = [rerun.TimeColumn("step", sequence=times)]
        if numbers is not None and counts is not None:
            indexes.append(rerun.TimeColumn("episode", sequence=numbers[:, row]))
            indexes.append(rerun.TimeColumn("episode_step", sequence=counts[:, row]))
        parts = [f"env_{row}"] if source.batch_size else []
        parts += [*([] if column.track == DATA else [column.track]), *column.path]
        entity = "/".join(parts)
        pixels = PixelFormat.of(rows.shape[2:], rows.dtype)
        part = rows[:, row]
        if pixels is not None:
            images = (pixels.convert(image, start + n, column.path) for n, image in enumerate(part))
            recording.send_columns(entity, indexes, _image_columns(images))
            continue
        array = to_array(part, splits_complex=True).reshape(steps, -1)
        if array.shape[1] > _MAX_NUMBERS:
            tensors = [rerun.components.TensorData(array=row) for row in array]
            recording.send_columns(entity, indexes, rerun.Tensor.columns(data=tensors))
        else:
            curves = rerun.Scalars.columns(scalars=array.astype(np.float64))
            recording.send_columns(entity, indexes, curves)


def _image_columns(images: Iterator[Array]) -> Any:
    import rerun

    frames = list(images)
    height, width = frames[0].shape[:2]
    shape = rerun.components.ImageFormat(
        width=width,
        height=height,
        color_model=rerun.ColorModel.RGB,
        channel_datatype=rerun.ChannelDatatype.U8,
    )
    buffers = [frame.tobytes() for frame in frames]
    return rerun.Image.columns(buffer=buffers, format=[shape] * len(frames))
