"""Self-contained HTML pages: their template, and shapes and text in SVG."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from tdx.foundation.text import escape_control_characters

_FOLDER = Path(__file__).parent


def render_page(template: str, *stylesheets: str, **values: Any) -> str:
    """Render a template of this folder.

    Args:
        template: File name of the template.
        stylesheets: File names of the stylesheets, which the template gets as ``style``.
        values: Other variables of the template.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = "".join((_FOLDER / name).read_text(encoding="utf-8") for name in stylesheets)
    text = environment.get_template(template).render(style=style, **values)
    return escape_control_characters(text, keep="\n\t")


CHARACTER_WIDTH = 7.3
"""Width of a character in the monospaced font of the page, in user units."""


def text_width(text: str) -> float:
    """Return the width of a text."""
    return len(text) * CHARACTER_WIDTH


def label(x: float, y: float, text: str, kind: str = "") -> str:
    """Return a text.

    Args:
        x: Left end.
        y: Baseline.
        text: Text to draw.
        kind: CSS class.
    """
    css_class = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{css_class}>{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """Return a box with round corners."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" '
        f'class="{kind}"/>'
    )


def arrow(x: float, start: float, end: float) -> str:
    """Return a vertical arrow from ``start`` to ``end``."""
    tip = 6 if end > start else -6
    head = f"{x - 4:.1f},{end - tip:.1f} {x + 4:.1f},{end - tip:.1f} {x:.1f},{end:.1f}"
    line = f'<line x1="{x:.1f}" y1="{start:.1f}" x2="{x:.1f}" y2="{end - tip:.1f}" class="edge"/>'
    return f'{line}<polygon points="{head}" class="head"/>'


def svg_image(width: float, height: float, parts: list[str], title: str) -> str:
    """Return a complete SVG image.

    Args:
        width: Width in user units and in pixels.
        height: Height.
        parts: Shapes and texts.
        title: Description for screen readers.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" '
        f'xml:space="preserve" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
