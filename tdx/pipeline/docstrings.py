"""Parse and render Google-style docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_ENTRY = re.compile(r"(\*{0,2}\w+)(?: \([^)]*\))?:\s*(.*)")
_SECTION = re.compile(r"[A-Z][A-Za-z ]*:$")


def clean_docstring(docstring: str | None) -> str:
    """Return the docstring without indentation."""
    return inspect.cleandoc(docstring) if docstring else ""


def summarize(docstring: str) -> str:
    r"""Return the first paragraph on one line.

    Example:
        >>> summarize("Clip rewards\ninto a range.\n\nMore.")
        'Clip rewards into a range.'
    """
    return " ".join(docstring.partition("\n\n")[0].split())


def strip_markup(text: str) -> str:
    """Remove the markup for code and cross-references from a docstring.

    Example:
        >>> strip_markup("See :class:`~tdx.specs.Bounded` and ``low``.")
        'See Bounded and low.'
    """
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?([^`]+)`", r"\1", text).replace("``", "")


def markdown(docstring: str) -> str:
    r"""Render a docstring as Markdown: headings, a list of arguments, code blocks.

    Example:
        >>> print(markdown("Clip ``x``.\n\nArgs:\n    low: smallest."))
        Clip `x`.
        <BLANKLINE>
        ### Args
        <BLANKLINE>
        - **low**: smallest.
    """
    lines = re.sub(r":\w+:`~?(?:[\w.]+\.)?([^`]+)`", r"`\1`", docstring)
    return "\n".join(_iterate_markdown(lines.replace("``", "`").splitlines()))


def _iterate_markdown(lines: list[str]) -> Iterator[str]:
    section = ""
    for number, line in enumerate(lines):
        if _SECTION.match(line) and lines[number + 1 : number + 2] != [""]:
            section = line[:-1]
            yield from (f"### {section}", "")
            if section.startswith("Example"):
                yield "```python"
        elif section.startswith("Example"):
            yield line.removeprefix("    ")
        elif section and (entry := _ENTRY.fullmatch(line.removeprefix("    "))):
            yield f"- **{entry.group(1)}**: {entry.group(2)}"
        else:
            yield line.strip()
    if section.startswith("Example"):
        yield "```"


def parse_argument_help(docstring: str) -> dict[str, str]:
    r"""Return the description of each argument in the ``Args:`` section, on one line each.

    Example:
        >>> parse_argument_help("Clip.\n\nArgs:\n    low: smallest\n        one.\n    high: most.")
        {'low': 'smallest one.', 'high': 'most.'}
    """
    helps: dict[str, str] = {}
    name = None
    for line in _section_lines(docstring, "Args"):
        entry = _ENTRY.match(line)
        if entry:
            name = entry.group(1).lstrip("*")
            helps[name] = entry.group(2).strip()
        elif name and line.strip():
            helps[name] = f"{helps[name]} {line.strip()}".strip()
    return helps


def _section_lines(docstring: str, title: str) -> list[str]:
    """Return the lines of a section without the indentation of the section."""
    lines = docstring.splitlines()
    if f"{title}:" not in lines:
        return []
    body: list[str] = []
    for line in lines[lines.index(f"{title}:") + 1 :]:
        if _SECTION.match(line) or (line and not line.startswith(" ")):
            break
        body.append(line)
    return inspect.cleandoc("\n" + "\n".join(body)).splitlines()
