"""Shell completion for dumps: the entries that the index of a dump names; loads no torch."""

from __future__ import annotations

import os
from typing import Any

import typer

from tdx.confined_files import open_below, open_folder
from tdx.errors import TdxError
from tdx.untrusted import parse_json

_MAX_LINE = 2**22


def complete_dump_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the entries of the dump on the line, after the last comma of a list of them."""
    done, comma, word = incomplete.rpartition(",")
    names = _names(ctx.params.get("dump"))
    return [f"{done}{comma}{name}" for name in names if name.startswith(word)]


def _names(folder: Any) -> list[str]:
    try:
        with open_folder(folder) as root, os.fdopen(open_below(root, "chunks.jsonl"), "rb") as file:
            first = parse_json(file.readline(_MAX_LINE), "chunks.jsonl")
        keys = [list(map(str, leaf["key"])) for leaf in first["tracks"]["data"]["leaves"]]
    except (OSError, TdxError, ValueError, KeyError, TypeError):
        return []
    inner = [key[1:] if key[0] == "next" else key for key in keys if key]
    return list(dict.fromkeys(".".join(key) for key in (*inner, *keys)))
