"""Hold a screen against how it looked when someone last looked at it.

``TDX_UPDATE_GOLDEN=1`` writes what is there now; ``python -m tests.tui.goldens FOLDER`` unpacks all
of them, to be looked at in a browser.
"""

from __future__ import annotations

import gzip
import os
import sys
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"
VERSIONS = FOLDER / "versions.txt"


def drawn_with() -> str:
    """The versions of what draws; other ones draw other screens."""
    return f"textual {version('textual')}, rich {version('rich')}\n"


def check_golden(name: str, svg: str, unpacked: Path) -> str | None:
    """Compare a screen with the one kept under a name, or keep it.

    Args:
        name: what the screen is called.
        svg: the screen.
        unpacked: a folder for both where they differ.

    Returns:
        What to tell whoever reads the failure; none where they are the same.
    """
    path = FOLDER / f"{name}.svg.gz"
    if os.environ.get("TDX_UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        VERSIONS.write_text(drawn_with())
        if not path.exists() or gzip.decompress(path.read_bytes()).decode() != svg:
            path.write_bytes(gzip.compress(svg.encode(), mtime=0))
        return None
    kept = gzip.decompress(path.read_bytes()).decode() if path.exists() else ""
    if kept == svg:
        return None
    (unpacked / f"{name}.svg").write_text(svg)
    (unpacked / f"{name}.kept.svg").write_text(kept)
    return f"{name} looks different: see {unpacked}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for packed in sorted(FOLDER.glob("*.svg.gz")):
        (target / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
