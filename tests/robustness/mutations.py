"""Seeded damage to arguments, texts, JSON documents and binary files."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

HOSTILE_TEXTS = (
    "",
    " ",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202egnp.exe",
    "../../etc/passwd",
    "/etc/passwd",
    "a" * 5_000,
    "日本語",
    "é\u0301",
    "%s%n{0}",
    "null",
    "-1",
    "nan",
    "1e400",
    "os:system",
    "[bold red]x[/]",
    "--help",
    "\\",
    "'\"`$(id)",
)
HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    10**10,
    10**30,
    -(2**63),
    1.5,
    1e308,
    float("inf"),
    [],
    {},
    [[]],
    {"": None},
    [None] * 50,
    [10**10],
    [10**10, 10**10],
    *HOSTILE_TEXTS,
)


def deep(levels: int, opening: str = "[", closing: str = "]") -> str:
    """Return brackets nested ``levels`` deep."""
    return opening * levels + closing * levels


def mutate_text(text: str, random: Random) -> str:
    """Damage a text: flip, drop, repeat, insert, truncate or nest."""
    at = random.randrange(len(text) + 1)
    end = min(len(text), at + random.choice((1, 1, 3, 10, 100)))
    match random.randrange(7):
        case 0:
            return text[:at] + text[end:]
        case 1:
            return text[:end] + text[at:end] * random.choice((1, 2, 50)) + text[end:]
        case 2:
            return text[:at] + random.choice(HOSTILE_TEXTS) + text[end:]
        case 3:
            return text[:at]
        case 4:
            return text[:at] + random.choice("{}[]:,-&*!|>'\"#%@`\t\n") + text[end:]
        case 5:
            return text[:at] + deep(random.choice((3, 200, 20_000))) + text[end:]
        case _:
            words = text.split(" ")
            random.shuffle(words)
            return " ".join(words)


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Damage a binary file: flip bits, overwrite, truncate, extend or zero a range."""
    if not data:
        return b"\x00"
    # Headers are at the start, footers (Parquet, zip) at the end.
    window = random.choice(((0, len(data)), (0, 200), (len(data) - 200, len(data))))
    at = random.randrange(max(window[0], 0), max(min(window[1], len(data)), 1))
    match random.randrange(6):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at] + random.randbytes(8) + data[at + 8 :]
        case 2:
            return data[:at]
        case 3:
            return data + random.randbytes(random.choice((1, 100)))
        case 4:
            return data[:at] + bytes(64) + data[at + 64 :]
        case _:
            return data[:at] + b"\xff" * 8 + data[at + 8 :]


def mutate_document(document: Any, random: Random) -> Any:
    """Replace, remove or rename a random item of a JSON document."""
    changed = copy.deepcopy(document)
    holder, key = random.choice(_places(changed) or [(None, None)])
    if holder is None:
        return random.choice(HOSTILE_VALUES)
    match random.randrange(5):
        case 0 | 1 | 2:
            holder[key] = random.choice(HOSTILE_VALUES)
        case 3:
            del holder[key]
        case _:
            if isinstance(holder, dict):
                holder[random.choice(HOSTILE_TEXTS)] = holder.pop(key)
            else:
                holder.append(holder[key])
    return changed


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    entries = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in entries:
        found.append((document, key))
        found += _places(value)
    return found


def mutate_json(text: str, random: Random) -> str:
    """Damage the structure (three of four times) or the characters of a JSON text."""
    if random.random() < 0.25:
        return mutate_text(text, random)
    return json.dumps(mutate_document(json.loads(text), random))
