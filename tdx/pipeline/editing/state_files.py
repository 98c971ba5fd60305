"""Small JSON files kept between runs: written atomically, validated when read."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from tdx.errors import ArgumentError, StorageError
from tdx.files import atomic_write
from tdx.untrusted import parse_json, read_limited


def write_json(path: Path, document: Any) -> None:
    """Write plain data atomically, readable by this user only.

    Raises:
        StorageError: It cannot be written there, or ``path`` is a link.
    """
    text = json.dumps(document, separators=(",", ":"))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(path, mode=0o600) as file:
            file.write(text.encode())
    except ArgumentError as error:
        raise StorageError(error.message, hint=error.hint) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
            f"cannot write {path}: {reason}", hint="TDX_STATE_DIR names another place"
        ) from error


def read_json(path: Path) -> Any:
    """Read plain data; ``None`` if the file does not exist.

    Raises:
        StorageError: It cannot be read, or is not valid JSON.
    """
    try:
        return parse_json(read_limited(path), path)
    except FileNotFoundError:
        return None
    except StorageError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
            f"cannot read {path}: {reason}", hint="check its permissions, or remove it"
        ) from error


def set_aside(path: Path) -> None:
    """Rename a damaged file, so that it is not read again."""
    with suppress(OSError):
        path.replace(path.with_name(f"{path.name}.broken"))
