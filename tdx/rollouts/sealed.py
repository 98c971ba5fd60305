"""JSON text that carries a checksum of itself.

A sealed text is a JSON object whose last member is ``"check"``: the CRC-32 of all bytes before it,
in eight hexadecimal digits. CRC-32 detects every change within four successive bytes. Passing the
checksum of the preceding text as ``seed`` chains texts, so that a removed, repeated or moved one is
detected as well.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

_END = b', "check": "%08x"}\n'
_LENGTH = len(_END % 0)


def seal(data: Mapping[str, Any], seed: int = 0, indent: int | None = None) -> tuple[bytes, int]:
    r"""Return a JSON object as sealed text, and its checksum.

    Args:
        data: Plain data; not empty.
        seed: Checksum of the preceding text.
        indent: Spaces per level; ``None``: all on one line.

    Example:
        >>> seal({"steps": 3})[0]
        b'{"steps": 3, "check": "79556117"}\n'
    """
    body = json.dumps(data, indent=indent, allow_nan=False)[:-1].rstrip().encode()
    check = zlib.crc32(body, seed)
    return body + _END % check, check


def seal_of(text: bytes, seed: int = 0) -> int | None:
    """Return the checksum of a sealed text, or ``None`` if the text was changed.

    Args:
        text: As :func:`seal` returned it, with the newline at its end.
        seed: Checksum of the preceding text.
    """
    check = zlib.crc32(text[:-_LENGTH], seed)
    return check if text[-_LENGTH:] == _END % check else None
