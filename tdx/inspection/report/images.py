"""Tensors that hold images, as PNG files."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST = 16
_MOST_FRAMES = 8
_GAP = 2


def is_image(value: Any, batch_dims: int) -> bool:
    """Whether it looks like images ``[*B, C, H, W]`` or ``[*B, H, W, C]``."""
    import torch

    if not isinstance(value, torch.Tensor) or value.ndim - batch_dims != 3:
        return False
    rows, columns = _sides(value)
    return min(rows, columns) >= _SMALLEST and value.dtype is not torch.bool


def png_of(value: Tensor, batch_dims: int) -> bytes:
    """The image of the first env as a PNG; frames stacked along the channels stand side by side.

    Args:
        value: ``[*B, C, H, W]`` or ``[*B, H, W, C]``; bytes, or floats, which are taken as 0 … 1
            where they lie in there and are else stretched from their least to their most.
        batch_dims: the number of dims in ``B``.
    """
    import torch

    image = value.detach().cpu()[(0,) * batch_dims]
    if not _channels_first(image):
        image = image.permute(2, 0, 1)
    width = 3 if image.shape[0] % 3 == 0 else 1
    frames = list(image.split(width))[:_MOST_FRAMES]
    spaced: list[Tensor] = []
    for frame in frames:
        if spaced:
            spaced.append(torch.full((width, frame.shape[1], _GAP), _white(image)).to(frame))
        spaced.append(frame)
    pixels = _as_bytes(torch.cat(spaced, -1), image).permute(1, 2, 0).contiguous()
    return encode_png(pixels.numpy().tobytes(), pixels.shape[1], pixels.shape[0], width)


def encode_png(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """Bytes ``[height, width, channels]`` as a PNG file.

    Args:
        pixels: the bytes, row after row.
        width: pixels in a row.
        height: rows.
        channels: 1 for grey, 3 for colours.
    """
    colour_type = {1: 0, 3: 2}[channels]
    stride = width * channels
    rows = b"".join(
        b"\0" + pixels[start : start + stride] for start in range(0, height * stride, stride)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _channels_first(image: Tensor) -> bool:
    return not (image.shape[-1] in (1, 3) and image.shape[-3] not in (1, 3))


def _sides(value: Tensor) -> tuple[int, int]:
    first = _channels_first(value)
    return (value.shape[-2], value.shape[-1]) if first else (value.shape[-3], value.shape[-2])


def _white(image: Tensor) -> float:
    return 255.0 if not image.is_floating_point() else float(image.max())


def _as_bytes(pixels: Tensor, image: Tensor) -> Tensor:
    import torch

    if pixels.dtype is torch.uint8:
        return pixels
    low, high = float(image.min()), float(image.max())
    if not (image.is_floating_point() and low >= 0 and high <= 1):
        span = high - low or 1.0
        pixels = (pixels.double() - low) / span
    return (pixels.double().nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
