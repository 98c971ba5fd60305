"""Read the files of a checkpoint folder, which may be a snapshot in the cache of the Hub."""

from __future__ import annotations

import re

import numpy as np

from tdx.foundation.array_files import Array
from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError
from tdx.foundation.untrusted import parse_json
from tdx.stacks.checkpoints.model import Json

MAX_JSON_BYTES = 16 * 2**20
_BLOB = re.compile(r"((?:\.\./)+)blobs/([0-9a-f]{40,64})\Z")


def read_part(container: Container, name: str, limit: int) -> bytes:
    """Return the content of a file.

    A snapshot of the Hub's cache consists of links to ``../../blobs/<hash>``. These are followed,
    to exactly that folder; every other link is refused.

    Raises:
        FileNotFoundError: There is no such file.
        StorageError: It is a link, or too large.
    """
    blob = _find_blob(container, name)
    if blob is None:
        return container.read(name, limit)
    with Container.open(container.path.resolve().parent.parent / "blobs") as blobs:
        return blobs.read(blob, limit)


def _find_blob(container: Container, name: str) -> str | None:
    try:
        match = _BLOB.match(container.folder.read_link(name))
    except (OSError, ValueError):
        return None
    if match is None or container.path.resolve().parent.name != "snapshots":
        return None
    # Up from the folder of the file, then from the revision and from ``snapshots``.
    return match[2] if match[1] == "../" * (name.count("/") + 2) else None


def read_json(container: Container, name: str) -> dict[str, Json]:
    """Return a file with a JSON object.

    Raises:
        FileNotFoundError: There is no such file.
        StorageError: It is something else.
    """
    return parse_mapping(parse_json(read_part(container, name, MAX_JSON_BYTES), name), name)


_HINT = "save the checkpoint again"


def parse_mapping(value: object, what: str, hint: str = _HINT) -> dict[str, Json]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise StorageError(f"{what} is not a JSON object", hint=hint)
    return value


def parse_statistics(value: object, what: str, hint: str = _HINT) -> dict[str, Array]:
    """Return statistics by name from lists of numbers; those that are ``null`` are left out."""
    statistics = {}
    for name, numbers in parse_mapping(value, what, hint).items():
        if numbers is None:
            continue
        try:
            statistics[name] = np.atleast_1d(np.asarray(numbers, np.float64))
        except (ValueError, TypeError) as error:
            raise StorageError(
                f"{name!r} in {what} is not an array of numbers", hint=hint
            ) from error
    return statistics
