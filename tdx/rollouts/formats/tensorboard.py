"""TensorBoard: returns of episodes, values per step, histograms and images of a dump."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import IO, Any

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.keys import format_key, normalize_key
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats.export_source import ExportSource, name_columns
from tdx.rollouts.formats.files import to_array
from tdx.rollouts.formats.interface import ExportColumn, ExportOptions, Format
from tdx.rollouts.formats.video import PixelFormat

format = Format(
    name="tensorboard",
    title="event files for TensorBoard: episodes, curves, histograms and images",
    suffixes=("-tensorboard",),
    mark="tdx.json",
    packages=("tensorboard", "PIL"),
    extra="tensorboard",
    can_import=False,
)

MARK = "tdx.json"
"""File with the note, which marks the folder as an export."""
MAX_POINTS = 10_000
"""Largest number of points of a curve; those of a longer rollout are evenly spaced."""
MAX_NUMBERS = 16
"""Largest entry with a curve for each of its numbers."""
MAX_IMAGES = 50
MAX_HISTOGRAMS = 50


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write event files; what a long rollout leaves out is in the remarks."""
    (target / MARK).write_text(json.dumps(source.note(name_columns(source.manifest))))
    with (target / f"events.out.tfevents.{int(time.time())}.tdx").open("wb") as file:
        writer = _EventWriter(file)
        for episode in source.episodes:
            if episode.finished:
                step = episode.start + episode.length - 1
                row = f"/env_{episode.row}" if source.batch_size else ""
                writer.add_scalar(f"episode/return{row}", episode.total_reward, step)
                writer.add_scalar(f"episode/length{row}", episode.length, step)
        for column in name_columns(source.manifest):
            _write_column(source, column, writer)
    every = _spacing(source.steps, MAX_POINTS)
    return () if every == 1 else (f"curves have every {every}th step",)


class _EventWriter:
    """Writes events in the calling thread.

    That of a ``SummaryWriter`` writes in a thread of its own, which prints a traceback when the
    disk is full, and its file is named after the host.
    """

    def __init__(self, file: IO[bytes]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._records = RecordWriter(file)
        # As wide as numbers are, and finer around 0.
        edges = np.geomspace(1e-12, 1e20, 775)
        self._bins = [*(-edges[::-1]).tolist(), 0.0, *edges.tolist()]
        self._add(file_version="brain.Event:2")

    def _add(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Add a point of a curve."""
        from torch.utils.tensorboard.summary import scalar

        self._add(step=step, summary=scalar(name, value))

    def add_image(self, name: str, image: Array, step: int) -> None:
        """Add an image, ``[H, W, 3]``."""
        from torch.utils.tensorboard.summary import image as summarize

        self._add(step=step, summary=summarize(name, image, dataformats="HWC"))

    def add_histogram(self, name: str, values: Array, step: int) -> None:
        """Add a histogram."""
        from torch.utils.tensorboard.summary import histogram

        self._add(step=step, summary=histogram(name, values, self._bins))


def _spacing(steps: int, most: int) -> int:
    return max(1, math.ceil(steps / most))


def _write_column(source: ExportSource, column: ExportColumn, writer: _EventWriter) -> None:
    name = format_key(normalize_key(column.path)).replace(".", "/")
    dims, start = 1 + len(source.batch_size), 0
    histograms = _spacing(source.steps, MAX_HISTOGRAMS)
    for block in source.column_blocks(column):
        rows = block.reshape(len(block), source.rows, *block.shape[dims:])
        pixels = PixelFormat.of(rows.shape[2:], rows.dtype) if column.track == DATA else None
        if pixels is not None:
            every = _spacing(source.steps, MAX_IMAGES)
            for step in range(-start % every, len(rows), every):
                image = pixels.convert(rows[step, 0], start + step, column.path)
                writer.add_image(name, image, start + step)
        else:
            array = to_array(rows, splits_complex=True).reshape(len(rows), source.rows, -1)
            _write_curves(name, array, start, source, writer)
            for step in range(-start % histograms, len(rows), histograms):
                values = array[step : step + histograms].astype(np.float64)
                finite = values[np.isfinite(values)]
                if finite.size:
                    writer.add_histogram(name, finite, start + step)
        start += len(block)


def _write_curves(
    name: str, array: Array, start: int, source: ExportSource, writer: _EventWriter
) -> None:
    """Write a curve for each number of an entry, ``[n, rows, numbers]``."""
    if array.shape[2] > MAX_NUMBERS:
        return
    every = _spacing(source.steps, MAX_POINTS)
    for row in range(array.shape[1]):
        for index in range(array.shape[2]):
            tag = name if array.shape[2] == 1 else f"{name}/{index}"
            tag = f"{tag}/env_{row}" if source.batch_size else tag
            for step in range(-start % every, len(array), every):
                writer.add_scalar(tag, float(array[step, row, index]), start + step)
