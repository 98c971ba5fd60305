"""The documentation page about checks."""

from __future__ import annotations

import os
from pathlib import Path

from tdx.inspection.explanations import render_checks_page

PAGE = Path(__file__).parents[3] / "docs" / "checks.md"


def test_page_is_up_to_date() -> None:
    if os.environ.get("TDX_UPDATE_GOLDEN"):
        PAGE.write_text(render_checks_page(), encoding="utf-8")
    hint = "run this test with TDX_UPDATE_GOLDEN=1 to regenerate it"
    assert PAGE.read_text(encoding="utf-8") == render_checks_page(), hint
