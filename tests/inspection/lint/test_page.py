"""The page of the documentation says what the rules say."""

from __future__ import annotations

import os
from pathlib import Path

from tdx.inspection.explanations import render_checks_page

PAGE = Path(__file__).parents[3] / "docs" / "checks.md"


def test_page_is_fresh() -> None:
    if os.environ.get("TDX_UPDATE_GOLDEN"):
        PAGE.write_text(render_checks_page(), encoding="utf-8")
    stale = "TDX_UPDATE_GOLDEN=1 writes it anew"
    assert PAGE.read_text(encoding="utf-8") == render_checks_page(), stale
