"""Screenshots as SVG files."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from textual.app import App

from tdx.tui.files.path_screen import suggest_name

_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


def save_screenshot(app: App[object], env: str | None) -> Path:
    """Write what the screen shows to a new file in the current folder; return its absolute path."""
    # Fonts of a web server: a picture asks nobody for them.
    picture = _FONT_FACE.sub("", app.export_screenshot(title="tdx"))
    name = "tdx" if env is None else f"tdx-{suggest_name(env)}"
    for number in count(1):
        path = Path(f"{name}{'' if number == 1 else f'-{number}'}.svg").absolute()
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(picture)
        except FileExistsError:
            continue
        return path
    raise AssertionError
