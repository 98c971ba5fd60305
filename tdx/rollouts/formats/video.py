"""Pixels of a dump as images, and the frames of its episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import format_key, normalize_key
from tdx.rollouts.dump.entries import Parts
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.folder import DATA
from tdx.rollouts.formats.export_source import ExportSource
from tdx.rollouts.formats.interface import ExportColumn, ExportOptions, ExportPlan

_MIN_SIZE = 8
_FROM_PIXELS = "tdx rollout --from-pixels stores what the env renders"
_ROUNDING = 1e-4
"""A resized image of floats exceeds 0 to 1 by rounding."""


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """How an entry is converted to an image."""

    channels_first: bool  # [C, H, W]
    channels: int | None  # None: the shape is [H, W]

    @classmethod
    def of(cls, shape: Sequence[int], dtype: torch.dtype) -> PixelFormat | None:
        """Return the format of an entry; ``None`` if it is not an image."""
        if dtype is not torch.uint8 and not dtype.is_floating_point:
            return None
        if len(shape) == 2 and min(shape) >= _MIN_SIZE:
            return cls(False, None)
        if len(shape) != 3:
            return None
        first = shape[0] < shape[2]
        height, width = shape[1:] if first else shape[:2]
        if min(height, width) < _MIN_SIZE:
            return None
        return cls(first, shape[0] if first else shape[2])

    @property
    def shown(self) -> int:
        """Number of channels in the video."""
        channels = self.channels or 1
        if self._has_alpha:
            return 3
        return 3 if channels % 3 == 0 else 1

    @property
    def _has_alpha(self) -> bool:
        return self.channels == 4 and not self.channels_first

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about channels that are not in the video."""
        channels = self.channels or 1
        if channels == self.shown:
            return ()
        if self._has_alpha:
            return ("the alpha channel is left out",)
        return (f"of {channels // self.shown} stacked frames the newest is shown",)

    def convert(self, values: Tensor, step: int, path: Parts) -> Array:
        """Convert an entry to an image of bytes, ``[H, W, 3]``."""
        if self.channels is None:
            values = values[..., None]
        elif self.channels_first:
            values = values.movedim(0, -1)
        if self._has_alpha:
            values = values[..., :3]
        values = values[..., -self.shown :]
        if values.dtype is not torch.uint8:
            values = values.to(torch.float64)
            if not bool(((values >= -_ROUNDING) & (values <= 1 + _ROUNDING)).all()):
                raise ArgumentError(
                    f"{format_key(normalize_key(path))!r} is not within 0 … 1 at step {step}",
                    hint="roll out without the stage that scales the pixels",
                )
            values = (values.clamp(0, 1) * 255).round().to(torch.uint8)
        image: Array = np.ascontiguousarray(values.expand(*values.shape[:2], 3).numpy())
        return image


@dataclass(frozen=True, slots=True)
class Video:
    """Frames of a dump."""

    source: ExportSource
    path: Parts  # key of the pixels, without "next"
    entries: tuple[Parts, ...]  # keys in the dump: at the root, below "next", or both
    episodes: dict[int, Episode]  # by index
    pixels: PixelFormat

    @classmethod
    def of(cls, source: ExportSource, options: ExportOptions) -> Video:
        """Return the video of a dump."""
        path, pixels = _find_pixels(source)
        entries = tuple(entry for entry in (path, ("next", *path)) if entry in source.data.leaves)
        episodes = source.episodes
        chosen = range(len(episodes)) if options.episodes is None else options.episodes
        for number in chosen:
            if not 0 <= number < len(episodes):
                raise ArgumentError(
                    f"unknown episode {number}", hint=f"the dump has 0 to {len(episodes) - 1}"
                )
        return cls(source, path, entries, {number: episodes[number] for number in chosen}, pixels)

    def plan(self) -> ExportPlan:
        """Return the entries and episodes."""
        columns = [ExportColumn(DATA, path, "frames") for path in self.entries]
        return ExportPlan(self.source.entries(columns), len(self.episodes), None, self.pixels.notes)

    def frames(self, episode: Episode) -> Iterator[Array]:
        """Yield the frames of an episode and its final frame, ``[H, W, 3]`` bytes each."""
        start, stop = episode.start, episode.start + episode.length
        for step in range(start, stop):
            yield self._frame(self.entries[0], episode.row, step)
        if len(self.entries) > 1:
            yield self._frame(self.entries[1], episode.row, stop - 1)

    def _frame(self, path: Parts, row: int, step: int) -> Array:
        values = self.source.span(path, row, step, step + 1)[0]
        return self.pixels.convert(values, step, self.path)

    def files(
        self, target: Path, suffix: str, split: bool
    ) -> Iterator[tuple[Path, Iterator[Array]]]:
        """Yield each file to write, and its frames."""
        self.source.check(self.entries)
        if not split:
            yield target, chain.from_iterable(map(self.frames, self.episodes.values()))
            return
        for number, episode in self.episodes.items():
            yield target / f"episode_{number:04}{suffix}", self.frames(episode)


def _find_pixels(source: ExportSource) -> tuple[Parts, PixelFormat]:
    found: dict[Parts, PixelFormat] = {}
    shapes: dict[Parts, list[int]] = {}
    dims = len(source.batch_size)
    for path, (dtype, shape) in source.data.leaves.items():
        key = path[1:] if path[0] == "next" and path[1:] else path
        shapes.setdefault(key, list(shape[dims:]))
        pixels = PixelFormat.of(shape[dims:], dtype)
        if pixels is not None:
            found[key] = pixels
    if not found:
        listed = ", ".join(
            f"{format_key(normalize_key(key))} {size}" for key, size in shapes.items()
        )
        raise ArgumentError(f"{source.folder} has no pixels, only {listed}", hint=_FROM_PIXELS)
    if len(found) > 1:
        names = [format_key(normalize_key(key)) for key in found]
        raise ArgumentError(
            f"{source.folder} has several entries of pixels: {', '.join(names)}",
            hint=f"--keys {names[0]} selects one of them",
        )
    return next(iter(found.items()))
