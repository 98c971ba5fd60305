"""The sample pipelines that come with tdx, to begin with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = "sample_pipelines"


@dataclass(frozen=True, slots=True)
class Preset:
    """A sample pipeline.

    Args:
        name: its file without the ending.
        title: the first line of its comment.
        path: the file.
    """

    name: str
    title: str
    path: Path


def presets() -> tuple[Preset, ...]:
    """The sample pipelines, by name; where tdx is installed as well as in its sources.

    Example:
        >>> "pendulum" in [preset.name for preset in presets()]
        True
    """
    package = Path(__file__).parents[2]
    folder = next(
        (each for each in (package / FOLDER, package.parent / FOLDER) if each.is_dir()), None
    )
    paths = sorted(folder.glob("*.yaml")) if folder else []
    return tuple(Preset(path.stem, _title(path), path) for path in paths)


def _title(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip().rstrip(".") if first.startswith("#") else ""
