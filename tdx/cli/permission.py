"""Permission to run the code of a Python file, asked for once and remembered for its folder."""

from __future__ import annotations

import hashlib
import shutil
import textwrap
from contextlib import suppress
from pathlib import Path

import typer

from tdx.foundation.errors import StorageError
from tdx.foundation.settings import state_path
from tdx.foundation.text import escape_control_characters
from tdx.pipeline.editing.documents import read_json, write_json

_SUFFIX = ".py"
_MAX_FILES, _MAX_BYTES = 1_000, 16 * 1024 * 1024
_MAX_FOLDERS = 200


def ask_to_run(env_id: str) -> bool:
    """Return True if the user allows the code of an env ``file.py:function``, now or before.

    The answer is remembered for the Python files of its folder as they are: a changed, added or
    removed one asks again. A refusal is not remembered.

    Nothing is asked for an env that names no Python file.
    """
    name, suffix, _ = env_id.partition(f"{_SUFFIX}:")
    path = Path(name + _SUFFIX)
    if not suffix or not path.is_file():
        return False
    # Python imports a linked file from where the link is.
    folder = str(path.parent.resolve())
    stored_at, allowed = state_path() / "allowed_code.json", {}
    with suppress(StorageError):
        stored = read_json(stored_at)
        if isinstance(stored, dict):
            allowed = {key: value for key, value in stored.items() if isinstance(value, str)}
    content = _hash_folder(path.parent)
    if content is not None and allowed.get(folder) == content:
        return True
    warning = (
        f"{escape_control_characters(str(path))} is Python code. It runs with your rights, and so "
        "does the code of any pipeline that you open in this app."
    )
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(warning, width, break_long_words=False, break_on_hyphens=False)
    typer.echo("\n".join(lines), err=True)
    if not typer.confirm("Run it?", err=True):
        return False
    if content is not None:
        allowed.pop(folder, None)
        recent = [*allowed.items(), (folder, content)][-_MAX_FOLDERS:]
        with suppress(StorageError):  # it asks again
            write_json(stored_at, dict(recent))
    return True


def _hash_folder(folder: Path) -> str | None:
    """Return a hash of the Python files of a folder; ``None``: too many, or one is unreadable."""
    digest, size = hashlib.sha256(), 0
    try:
        paths = sorted(folder.glob(f"*{_SUFFIX}"))
        if len(paths) > _MAX_FILES:
            return None
        for path in paths:
            size += path.stat().st_size
            if size > _MAX_BYTES:
                return None
            data = path.read_bytes()
            digest.update(f"{len(path.name)} {len(data)} {path.name}".encode() + data)
    except (OSError, UnicodeError):
        return None
    return digest.hexdigest()
