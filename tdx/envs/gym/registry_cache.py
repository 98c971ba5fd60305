"""The list of env ids, kept in a file so that nothing need be imported to show it again.

The file is never needed: where it cannot be read or written the list is made anew each time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tdx.errors import ArgumentError
from tdx.files import write_atomically

Entry = Mapping[str, Any]
_FIELDS: dict[str, Any] = {
    "id": str,
    "package": str,
    "installed": bool,
    "hint": (str, type(None)),
}


def read_entries() -> list[Entry] | None:
    """The entries kept, none where they are of other packages than those installed now."""
    try:
        stored = json.loads(_file().read_text(encoding="utf-8"))
        if stored["of"] != _fingerprint():
            return None
        entries = list(stored["envs"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return entries if all(map(_is_entry, entries)) else None


def write_entries(entries: Sequence[Entry]) -> None:
    """Write the entries to the cache; without effect where it is not writable."""
    path = _file()
    text = json.dumps({"of": _fingerprint(), "envs": entries})
    with suppress(OSError, ArgumentError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, sync=False)


def _file() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("tdx") / "envs.json"


def _fingerprint() -> dict[str, Any]:
    """What the list follows from: the interpreter, what is installed, and this code."""
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    sources = [str(Path(__file__).with_name(name)) for name in ("registry.py", "providers.py")]
    return {
        "python": sys.version,
        "changed": {path: _changed(path) for path in [*folders, *sources]},
    }


def _changed(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == _FIELDS.keys()
        and all(isinstance(entry[name], kind) for name, kind in _FIELDS.items())
    )
