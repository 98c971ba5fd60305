"""What the shell offers for a dump: the entries that its manifest names; loads no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer


def complete_dump_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """The entries of the dump on the line, behind the last comma of a list of them."""
    done, comma, word = incomplete.rpartition(",")
    names = _names(ctx.params.get("dump"))
    return [f"{done}{comma}{name}" for name in names if name.startswith(word)]


def _names(folder: Any) -> list[str]:
    try:
        manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
        keys = [leaf["key"] for leaf in manifest["tracks"]["data"]["leaves"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    inner = [key[1:] if key[0] == "next" else key for key in keys]
    return list(dict.fromkeys(".".join(key) for key in (*inner, *keys)))
