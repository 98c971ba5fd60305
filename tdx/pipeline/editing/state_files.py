"""Small JSON files that are kept between runs: written whole or not at all, read with care."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tdx.errors import StorageError


def write_json(path: Path, document: Any) -> None:
    """Write plain data, whole or not at all, for the eyes of this user only.

    Raises:
        StorageError: it cannot be written there.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(document, stream, ensure_ascii=False, separators=(",", ":"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise _unwritable(path, error) from error


def read_json(path: Path) -> Any:
    """What is in a file; none where there is no file.

    Raises:
        StorageError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(f"cannot read {path}: {reason}") from error
    except ValueError as error:
        raise StorageError(f"{path} is no JSON: {error}", hint="remove it") from error


def put_aside(path: Path) -> None:
    """Give a file that cannot be understood another name, so that nobody stumbles again."""
    with suppress(OSError):
        path.replace(path.with_name(f"{path.name}.broken"))


def _unwritable(path: Path, error: OSError) -> StorageError:
    reason = (error.strerror or str(error)).lower()
    return StorageError(f"cannot write {path}: {reason}", hint="TDX_STATE_DIR names another place")
