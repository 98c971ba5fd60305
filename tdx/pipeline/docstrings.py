"""Take a Google-style docstring apart."""

from __future__ import annotations

import inspect
import re

_ENTRY = re.compile(r"(\*{0,2}\w+)(?: \([^)]*\))?:\s*(.*)")
_SECTION = re.compile(r"[A-Z][A-Za-z ]*:$")


def clean(docstring: str | None) -> str:
    """The docstring without its indentation."""
    return inspect.cleandoc(docstring) if docstring else ""


def summary(docstring: str) -> str:
    r"""The first paragraph on one line.

    Example:
        >>> summary("Clip rewards\ninto a range.\n\nMore.")
        'Clip rewards into a range.'
    """
    return " ".join(docstring.partition("\n\n")[0].split())


def argument_help(docstring: str) -> dict[str, str]:
    r"""What the ``Args:`` section says of each argument, each on one line.

    Example:
        >>> argument_help("Clip.\n\nArgs:\n    low: smallest\n        one.\n    high: most.")
        {'low': 'smallest one.', 'high': 'most.'}
    """
    helps: dict[str, str] = {}
    name = None
    for line in _section(docstring, "Args"):
        entry = _ENTRY.match(line)
        if entry:
            name = entry.group(1).lstrip("*")
            helps[name] = entry.group(2).strip()
        elif name and line.strip():
            helps[name] = f"{helps[name]} {line.strip()}".strip()
    return helps


def _section(docstring: str, title: str) -> list[str]:
    """The lines of a section, with the indentation of the section taken off."""
    lines = docstring.splitlines()
    if f"{title}:" not in lines:
        return []
    body: list[str] = []
    for line in lines[lines.index(f"{title}:") + 1 :]:
        if _SECTION.match(line) or (line and not line.startswith(" ")):
            break
        body.append(line)
    return inspect.cleandoc("\n" + "\n".join(body)).splitlines()
