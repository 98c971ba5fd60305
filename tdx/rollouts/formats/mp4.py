"""``.mp4``: H.264 in RGB without loss, or small and for every player."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tdx.rollouts.formats.frames import Film, plan
from tdx.rollouts.formats.options import Options
from tdx.rollouts.formats.stored import Stored
from tdx.rollouts.formats.wire import Array

__all__ = ["plan", "write"]

_EXACT, _SMALL = "libx264rgb", "libx264"


def write(stored: Stored, target: Path, options: Options) -> tuple[str, ...]:
    """Write one film, or one for each episode."""
    import av

    film = Film.of(stored, options)
    exact = not options.lossy and _EXACT in av.codecs_available
    for path, frames in film.files(target, ".mp4", options.split):
        _write(path, frames, options.fps, exact)
    if exact:
        return ("lossless: mpv, VLC and ffmpeg play it; for a browser add --lossy",)
    if not options.lossy:
        return (f"not lossless: this build of FFmpeg has no {_EXACT}",)
    return ("lossy: colours are rounded",)


def _write(path: Path, frames: Iterator[Array], fps: int, exact: bool) -> None:
    import av

    with av.open(str(path), "w", format="mp4") as container:
        codec, options = (_EXACT, {"crf": "0"}) if exact else (_SMALL, {"crf": "18"})
        stream: Any = container.add_stream(codec, rate=fps, options=options)
        stream.pix_fmt = "rgb24" if exact else "yuv420p"
        for number, frame in enumerate(frames):
            shown = frame if exact else _even(frame)
            if not number:
                stream.height, stream.width = shown.shape[:2]
            for packet in stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _even(frame: Array) -> Array:
    """The frame with an even number of rows and columns, which the usual colours need."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
