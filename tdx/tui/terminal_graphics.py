"""Graphics protocols of terminals: detection, and encoding of images.

Terminals are asked before Textual reads the keyboard: for kitty graphics with a query of the
protocol, for sixel with the primary device attributes (attribute 4), and for the size of a cell.
Every terminal answers the attributes, which end the wait.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import select
import struct
import termios
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from tdx.foundation.errors import TdxError
from tdx.foundation.settings import load_settings

Protocol = Literal["kitty", "sixel"]
QUERY = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[16t\x1b[c"
_INPUT, _OUTPUT = 0, 2
"""File descriptors that Textual reads and draws to."""
_KITTY_OK = re.compile(rb"\x1b_Gi=31;OK\x1b\\")
_CELL = re.compile(rb"\x1b\[6;(\d+);(\d+)t")
_ATTRIBUTES = re.compile(rb"\x1b\[\?([\d;]*)c")
_TIMEOUT = 0.25
_REMOTE_TIMEOUT = 1.0
"""Seconds to wait for a terminal, also over SSH."""
_DEFAULT_CELL = (8, 16)
_KITTY_CHUNK = 4096
_MAX_COLORS = 256


@dataclass(frozen=True, slots=True)
class Graphics:
    """How a terminal draws images.

    Args:
        protocol: Its protocol.
        cell: Width and height of a cell in pixels, unless the terminal reports another size later.
    """

    protocol: Protocol
    cell: tuple[int, int] = _DEFAULT_CELL

    def cell_size(self) -> tuple[int, int]:
        """Return width and height of a cell in pixels; the font may have changed."""
        return _window_cell() or self.cell


def parse_answers(answers: bytes) -> tuple[Protocol | None, tuple[int, int] | None]:
    r"""Return the protocol and the size of a cell from a terminal's answers.

    Args:
        answers: What the terminal sent after :data:`QUERY`.

    Example:
        >>> parse_answers(b"\x1b[6;20;10t\x1b[?62;4c")
        ('sixel', (10, 20))
        >>> parse_answers(b"\x1b[?6c")
        (None, None)
    """
    cell = _CELL.search(answers)
    size = (int(cell[2]), int(cell[1])) if cell else None
    attributes = _ATTRIBUTES.search(answers)
    protocol: Protocol | None = None
    if _KITTY_OK.search(answers):
        protocol = "kitty"
    elif attributes and b"4" in attributes[1].split(b";")[1:]:
        protocol = "sixel"
    return protocol, size if size and all(size) else None


def find_mode(environment: Mapping[str, str]) -> str:
    """Return the setting ``graphics``; ``half-cells`` where a terminal should not be asked.

    Args:
        environment: Environment variables.
    """
    try:
        mode = str(load_settings()["graphics"])
    except TdxError:
        mode = "auto"
    if mode != "auto":
        return mode
    is_text = environment.get("TERM", "") in ("", "dumb", "linux")
    is_nested = "TMUX" in environment or "STY" in environment
    return "half-cells" if is_text or is_nested or "NO_COLOR" in environment else "auto"


class GraphicsQuery:
    """A question to the terminal; imports can run before it is answered."""

    def __init__(self) -> None:
        self._mode = find_mode(os.environ)
        self._saved: list[Any] | None = None
        self._start = time.monotonic()
        if self._mode == "half-cells" or not (os.isatty(_INPUT) and os.isatty(_OUTPUT)):
            return
        with suppress(OSError, termios.error):
            self._saved = termios.tcgetattr(_INPUT)
            mode = termios.tcgetattr(_INPUT)
            mode[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(_INPUT, termios.TCSADRAIN, mode)
            os.write(_OUTPUT, QUERY)

    def result(self) -> Graphics | None:
        """Read the answers; return how to draw images. ``None``: in half-cells."""
        if self._saved is None:
            return None
        try:
            protocol, cell = parse_answers(self._read())
        finally:
            with suppress(OSError, termios.error):
                termios.tcsetattr(_INPUT, termios.TCSADRAIN, self._saved)
        if self._mode in ("kitty", "sixel"):
            protocol = "kitty" if self._mode == "kitty" else "sixel"
        return Graphics(protocol, cell or _DEFAULT_CELL) if protocol else None

    def _read(self) -> bytes:
        timeout = _REMOTE_TIMEOUT if "SSH_CONNECTION" in os.environ else _TIMEOUT
        answers = b""
        while not _ATTRIBUTES.search(answers):
            left = max(0.0, self._start + timeout - time.monotonic())
            if not select.select([_INPUT], [], [], left)[0]:
                break
            new = os.read(_INPUT, 4096)
            if not new:
                break
            answers += new
        return answers


def _window_cell() -> tuple[int, int] | None:
    with suppress(OSError):
        size = fcntl.ioctl(_OUTPUT, termios.TIOCGWINSZ, b"\0" * 8)
        rows, columns, width, height = struct.unpack("HHHH", size)
        if rows and columns and width >= columns and height >= rows:
            return width // columns, height // rows
    return None


def encode_kitty(rgb: bytes, size: tuple[int, int], cells: tuple[int, int], number: int) -> str:
    """Return the commands that show an image at the cursor, in place of the earlier one.

    Args:
        rgb: Three bytes per pixel, row by row.
        size: Width and height in pixels.
        cells: Width and height in cells.
        number: Id of the image.
    """
    data = base64.standard_b64encode(zlib.compress(rgb, 1)).decode()
    place = f"i={number},p=1,c={cells[0]},r={cells[1]},C=1,q=2"
    head = f"a=T,f=24,o=z,s={size[0]},v={size[1]},{place},"
    parts = [data[at : at + _KITTY_CHUNK] for at in range(0, len(data), _KITTY_CHUNK)]
    commands = []
    for at, part in enumerate(parts):
        more = int(at + 1 < len(parts))
        commands.append(f"\x1b_G{'q=2,' if at else head}m={more};{part}\x1b\\")
    return "".join(commands)


def delete_kitty(number: int) -> str:
    """Return the command that removes an image.

    Args:
        number: Id of the image.
    """
    return f"\x1b_Ga=d,d=I,i={number},q=2\x1b\\"


def encode_sixel(rgb: bytes, size: tuple[int, int], target: tuple[int, int]) -> str:
    """Return an image as sixel, scaled without interpolation.

    Args:
        rgb: Three bytes per pixel, row by row.
        size: Width and height in pixels.
        target: Width and height on the screen in pixels; the height is a multiple of 6.
    """
    import numpy as np

    width, height = target
    pixels = np.frombuffer(rgb, np.uint8).reshape(size[1], size[0], 3).astype(np.uint32)
    packed = pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]
    colors, indices = np.unique(packed, return_inverse=True)
    for kept in (0xFCFCFC, 0xF8F8F8, 0xF0F0F0, 0xE0E0C0):
        if len(colors) <= _MAX_COLORS:
            break
        colors, indices = np.unique(packed & kept, return_inverse=True)
    indices = indices.reshape(size[1], size[0])
    rows = np.arange(height) * size[1] // height
    columns = np.arange(width) * size[0] // width
    parts = [f'\x1bP0;1q"1;1;{width};{height}']
    for number, color in enumerate(colors.tolist()):
        red, green, blue = (round((color >> by & 255) / 2.55) for by in (16, 8, 0))
        parts.append(f"#{number};2;{red};{green};{blue}")
    weights = (1 << np.arange(6, dtype=np.uint8))[:, None]
    for top in range(0, height, 6):
        band = indices[rows[top : top + 6]][:, columns]
        lines = []
        for number in np.unique(band).tolist():
            sixels = ((band == number) * weights[: len(band)]).sum(axis=0, dtype=np.uint8) + 63
            lines.append(f"#{number}{_run_lengths(sixels.tobytes())}")
        parts.append("$".join(lines))
        parts.append("-" if top + 6 < height else "")
    return "".join((*parts, "\x1b\\"))


_RUN = re.compile(rb"(.)\1{3,}", re.DOTALL)


def _run_lengths(sixels: bytes) -> str:
    """Return sixels with repetitions as counts."""
    short = _RUN.sub(lambda run: b"!%d%b" % (len(run[0]), run[1]), sixels.rstrip(b"?"))
    return short.decode()
