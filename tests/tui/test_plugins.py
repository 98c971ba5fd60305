"""Transforms of plugins in the app."""

from __future__ import annotations

from pathlib import Path

from tests.plugins.installed import install_example, installed
from tests.programs import exhaustive
from tests.tui.driving import driven


@exhaustive
async def test_transform_of_a_plugin_is_added(tmp_path: Path) -> None:
    install_example(tmp_path)
    with installed(tmp_path):
        async with driven() as app:
            await app.press("a", "text:symlog")
            assert "Compress large values" in app.text("CatalogPane")
            await app.press("enter", "escape")
            assert "SymLog" in app.text("ChainPane")
