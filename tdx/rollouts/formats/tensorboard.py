"""TensorBoard: returns of episodes, values per step, histograms and images of a dump."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tdx.keys import format_key, normalize_key
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats.export_source import ExportSource, name_columns
from tdx.rollouts.formats.files import Array, to_array
from tdx.rollouts.formats.interface import ExportColumn, ExportOptions
from tdx.rollouts.formats.video import PixelFormat

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

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
    from torch.utils.tensorboard import SummaryWriter

    (target / MARK).write_text(json.dumps(source.note(name_columns(source.manifest))))
    writer = SummaryWriter(str(target))
    try:
        _write_episodes(source, writer)
        for column in name_columns(source.manifest):
            _write_column(source, column, writer)
    finally:
        writer.close()
    every = _spacing(source.steps, MAX_POINTS)
    return () if every == 1 else (f"curves have every {every}th step",)


def _spacing(steps: int, most: int) -> int:
    return max(1, math.ceil(steps / most))


def _write_episodes(source: ExportSource, writer: SummaryWriter) -> None:
    """Write return and length of each finished episode at its last step."""
    for episode in source.episodes:
        if episode.finished:
            step = episode.start + episode.length - 1
            row = f"/env_{episode.row}" if source.batch_size else ""
            writer.add_scalar(f"episode/return{row}", episode.total_reward, step)
            writer.add_scalar(f"episode/length{row}", episode.length, step)


def _write_column(source: ExportSource, column: ExportColumn, writer: SummaryWriter) -> None:
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
                writer.add_image(name, image, start + step, dataformats="HWC")
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
    name: str, array: Array, start: int, source: ExportSource, writer: SummaryWriter
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
