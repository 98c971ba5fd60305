"""Limits on the length, nesting and size of data from untrusted sources.

The sizes that a header declares are compared with the file before anything is allocated.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tdx.foundation.errors import StorageError

MAX_NESTING = 100
"""Levels of nesting in YAML and JSON."""
MAX_PIPELINE_BYTES = 2**18
"""Size of a pipeline file."""
MAX_HEADER_BYTES = 64 * 2**20
"""Size of a JSON header, manifest or metadata file."""
MAX_POLICY_BYTES = 2**30
"""Size of a file with weights or actions."""
MAX_STAGES = 500
"""Stages in a chain."""
MAX_VALUES = 10_000
"""Values in a pipeline file."""
MAX_INTEGER_BITS = 1_000
"""Size of an integer in a pipeline; floats have about the same range."""
MAX_ENVS = 65_536
"""Copies of an env in one batch."""
MAX_WORKERS = 1_024
"""Processes of a batch of envs."""
MAX_REPEATS = 10_000
"""Steps of the env in one step or reset of a stage, such as a frame skip."""
MAX_ALL_REPEATS = 100_000
"""Steps of the env in one step or reset of a chain: the product of the repeats of its stages."""
MAX_SIZE = 65_536
"""Frames in a stack, intervals of an action, height or width of an image."""
MAX_SECONDS = 10_000_000
"""Length of a timeout."""
MAX_DIMS = 32
"""Dimensions of an array."""

ALLOW_DOWNLOAD = "TDX_ALLOW_DOWNLOAD"
"""Environment variable that lets a pipeline file download; ``--allow-download`` sets it."""

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


def json_depth(text: str) -> int:
    """Return how deeply the brackets of a JSON text are nested, without parsing it.

    Example:
        >>> json_depth('{"a": [1, "[[["]}')
        2
    """
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in "]}":
            depth -= 1
    return deepest


def parse_json(text: str | bytes, source: str | Path) -> Any:
    """Parse JSON from an untrusted source.

    Args:
        text: JSON document.
        source: Name of the document in error messages, usually the file.

    Raises:
        StorageError: The text is not valid JSON, or nested deeper than :data:`MAX_NESTING` levels.

    Example:
        >>> parse_json('{"steps": 3}', "manifest.json")
        {'steps': 3}
    """
    import json

    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        brackets = decoded.count("[") + decoded.count("{")
        if brackets > MAX_NESTING and json_depth(decoded) > MAX_NESTING:
            raise StorageError(
                f"{source} is nested more than {MAX_NESTING} levels deep",
                hint="the file is damaged or was not written by tdx",
            )
        return json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{source} is not valid JSON: {error}",
            hint="the file is damaged; restore it from a copy",
        ) from error


def read_limited(path: Path, limit: int = MAX_HEADER_BYTES) -> bytes:
    """Read a small file.

    Args:
        path: File to read; may be an endless stream.
        limit: Maximum number of bytes.

    Raises:
        OSError: The file cannot be read.
        StorageError: The file has more than ``limit`` bytes.
    """
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise StorageError(
            f"{path} has more than {limit:,} bytes", hint="use a file written by tdx"
        )
    return data


def validate_shape(sizes: Iterable[object], what: str) -> tuple[int, ...]:
    """Validate a shape that a header declares.

    Args:
        sizes: Sizes of the dimensions, as found in the header.
        what: Name of the shape in error messages.

    Raises:
        StorageError: A size is not a non-negative integer, there are more than
            :data:`MAX_DIMS` of them, or their product exceeds 2**62.

    Example:
        >>> validate_shape([2, 3], "batch_size")
        (2, 3)
    """
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Iterable):
        raise StorageError(f"{what} is not a list of sizes: {sizes!r}", hint=_DAMAGED)
    shape = []
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise StorageError(f"{what} has the invalid size {size!r}", hint=_DAMAGED)
        shape.append(size)
    if len(shape) > MAX_DIMS:
        raise StorageError(f"{what} has {len(shape)} dimensions", hint=_DAMAGED)
    if math.prod(size or 1 for size in shape) > 2**62:
        raise StorageError(f"{what} is impossibly large: {shape}", hint=_DAMAGED)
    return tuple(shape)


def check_claimed_bytes(claimed: int, file: str | Path | int, what: str, ratio: int = 1) -> None:
    """Check that a file is large enough for the size that its header declares.

    Args:
        claimed: Number of bytes that the header declares.
        file: Path or open descriptor of the file.
        what: Name of the data in error messages.
        ratio: Highest plausible compression ratio.

    Raises:
        StorageError: The file is too small.
    """
    found = (os.fstat(file) if isinstance(file, int) else os.stat(file)).st_size
    if claimed > found * ratio:
        raise StorageError(
            f"{what} declares {claimed:,} bytes, but the file has only {found:,}",
            hint=_DAMAGED,
        )


_DAMAGED = "the file is damaged or declares false sizes; do not use it"
