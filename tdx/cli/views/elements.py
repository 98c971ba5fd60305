"""Texts and blocks that several views share."""

from __future__ import annotations

from collections.abc import Sequence

from tdx.cli.output.view import Cell, Paragraph, Style

NONE = "–"
"""Text of an empty cell."""

SEVERITY_STYLES: dict[str, Style] = {"error": "bad", "warning": "changed", "suggestion": "dim"}


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> count_text(2000, "step")
        '2,000 steps'
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def change_text(before: str, after: str) -> str:
    """Return ``before → after``, or one of them if they are equal."""
    return before if before == after else f"{before} → {after}"


def fact(title: str, text: str, style: Style = "") -> Paragraph:
    """Return an indented line of a title and a text."""
    return Paragraph([Cell(f"{title}: ", "dim"), Cell(text, style)], indent=2)


def stage_list(calls: Sequence[str]) -> list[Paragraph]:
    """Return the stages of a chain, numbered, one per line."""
    return [
        Paragraph([Cell(f"{index} ", "dim"), Cell(call)], indent=2)
        for index, call in enumerate(calls)
    ]
