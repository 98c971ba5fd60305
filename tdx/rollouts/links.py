"""Refuses dumps with symbolic links, device nodes and the like."""

from __future__ import annotations

import os
from pathlib import Path

from tdx.confined_files import open_subfolder
from tdx.errors import StorageError
from tdx.untrusted import MAX_NESTING

_SEARCHED = ("data", "raw", "state")
_MAX_FILES = 100_000
_HINT = "tdx did not write it; do not use dumps from a source that you do not trust"


def check_links(root: int, folder: Path) -> None:
    """Refuse a dump in which anything is neither a regular file nor a folder.

    Args:
        root: Descriptor of the dump's folder.
        folder: What an error message calls it.

    Raises:
        StorageError: Something is.
    """
    count = 0
    waiting = [("", 0)]
    while waiting:
        name, depth = waiting.pop()
        with open_subfolder(root, name) as inner, os.scandir(inner) as entries:
            for entry in entries:
                count += 1
                path = f"{name}/{entry.name}" if name else entry.name
                if count > _MAX_FILES or depth > MAX_NESTING:
                    raise StorageError(f"{folder} has too many files for a dump", hint=_HINT)
                if entry.is_dir(follow_symlinks=False):
                    if name or path in _SEARCHED:
                        waiting.append((path, depth + 1))
                elif not entry.is_file(follow_symlinks=False):
                    kind = "a symbolic link" if entry.is_symlink() else "not a regular file"
                    raise StorageError(f"{folder / path} is {kind}", hint=_HINT)
