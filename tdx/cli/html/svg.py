"""Shapes and text in SVG, with the width that a text takes."""

from __future__ import annotations

from html import escape

CHARACTER = 7.3
"""Columns that a sign of the page's monospaced font takes, in user units."""


def text_width(text: str) -> float:
    """The room that a text takes."""
    return len(text) * CHARACTER


def label(x: float, y: float, text: str, kind: str = "") -> str:
    """A text that begins at a point.

    Args:
        x: its left end.
        y: its base line.
        text: what is written.
        kind: the class from which its colour follows.
    """
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """A box with round corners."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" '
        f'class="{kind}"/>'
    )


def arrow(x: float, start: float, end: float) -> str:
    """A vertical arrow from one height to another."""
    tip = 6 if end > start else -6
    head = f"{x - 4:.1f},{end - tip:.1f} {x + 4:.1f},{end - tip:.1f} {x:.1f},{end:.1f}"
    line = f'<line x1="{x:.1f}" y1="{start:.1f}" x2="{x:.1f}" y2="{end - tip:.1f}" class="edge"/>'
    return f'{line}<polygon points="{head}" class="head"/>'


def picture(width: float, height: float, parts: list[str], title: str) -> str:
    """A whole drawing.

    Args:
        width: its width in user units, at which it is also shown.
        height: its height.
        parts: what is in it.
        title: what it shows, for those who cannot see it.
    """
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'xml:space="preserve" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
