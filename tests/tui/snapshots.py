"""Compare screens with SVG snapshots.

``TDX_UPDATE_GOLDEN=1 pytest tests/tui -k snapshot`` writes the current screens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from tdx.pipeline.catalog import format_catalog, load_catalog
from tdx.tui.screens.bars import StatusBar
from tests.tui.driving import Driver
from tests.tui.idle import resize

FOLDER = Path(__file__).parent / "golden"
VERSIONS = FOLDER / "versions.txt"
SIZE = (120, 40)
NARROW, WIDE = (80, 24), (200, 60)
"""Sizes with fewer panes, and with more columns."""
THEME = "tdx-dark"

NAMES = FOLDER / "transforms.txt"
"""Names of the transforms in the catalog of the snapshots."""
DOCS = {
    "ActionChunkTransform": "Write the next ``chunk_size`` actions of each step of stored data.",
    "RewardClipping": "Clip every reward into ``[clamp_min, clamp_max]``.",
}
HELPS = {
    "clamp_min": "Lower bound. ``None``: unbounded below.",
    "clamp_max": "Upper bound. ``None``: unbounded above.",
    "in_keys": "Rewards to read; ``reward`` by default.",
    "out_keys": "Keys to write; the in-keys by default.",
}


def write_fixed_catalog(folder: Path) -> Path:
    """Write a catalog with fixed names and fixed documentation; return its file."""
    known = {info.name: info for info in load_catalog().transforms}
    fixed = []
    for name in NAMES.read_text().split():
        info, summary = known[name], DOCS.get(name, f"What {name} does.")
        parameters = tuple(
            replace(each, help=HELPS.get(each.name, f"What {each.name} means."))
            for each in info.parameters
        )
        fixed.append(replace(info, summary=summary, doc=summary, parameters=parameters))
    path = folder / "catalog.json"
    path.write_text(format_catalog(fixed), encoding="utf-8")
    return path


def installed_versions() -> str:
    """Return the versions of the packages that determine the SVG output."""
    return f"textual {version('textual')}, rich {version('rich')}\n"


ATTEMPTS = 40
"""Number of redraws before a screen counts as different."""


def compare(name: str, svg: str, folder: Path) -> str | None:
    """Compare a screen with its snapshot, or write the snapshot.

    Args:
        name: Name of the snapshot.
        svg: Current screen.
        folder: Where to write the current screen if it differs.

    Returns:
        Description of the difference. ``None``: they are equal.
    """
    path = FOLDER / f"{name}.svg"
    if os.environ.get("TDX_UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        VERSIONS.write_text(installed_versions())
        path.write_text(svg)
        return None
    if path.exists() and path.read_text() == svg:
        return None
    (folder / path.name).write_text(svg)
    return f"{name}: {folder / path.name} differs from {path}"


async def _expected_picture(app: Driver, name: str) -> None:
    """Wait until the screen equals the snapshot: a pane may get its values after a resize."""
    path = FOLDER / f"{name}.svg"
    is_update = bool(os.environ.get("TDX_UPDATE_GOLDEN"))
    for _ in range(ATTEMPTS):
        if not is_update and path.exists() and path.read_text() == app.picture():
            return
        await asyncio.sleep(0.05)


async def check_snapshots(
    app: Driver,
    name: str,
    folder: Path,
    sizes: Iterable[tuple[int, int]] = (SIZE,),
    themes: Iterable[str] = (THEME,),
) -> None:
    """Compare the current screen with its snapshots in several sizes and themes."""
    if not os.environ.get("TDX_UPDATE_GOLDEN"):
        found, expected = installed_versions(), VERSIONS.read_text()
        assert found == expected, (
            f"snapshots were written with {expected.strip()}, but {found.strip()} is installed; "
            "install the versions of the test extra, or update both the extra and the snapshots"
        )
    for bar in app.app.screen_stack[0].query(StatusBar):
        bar._since = None  # the elapsed time varies
    differences = []
    for theme in themes:
        app.app.theme = theme
        for width, height in sizes:
            await resize(app.pilot, width, height)
            await app.settle()
            snapshot = f"{name}-{width}x{height}-{theme}"
            await _expected_picture(app, snapshot)
            found_difference = compare(snapshot, app.picture(), folder)
            differences += [found_difference] if found_difference else []
    assert not differences, "\n".join(differences)
