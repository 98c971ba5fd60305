"""Self-contained HTML pages: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tdx.text import escape_control_characters

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
