"""Where pictures stand, so that they are as large as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdx.inspection.live.views import ImageView

GAP = 2
_NARROWEST = 12


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells that each picture has.

    Args:
        columns: how many stand side by side.
        width: of each, in cells.
        height: of each, in cells, without the line above it.
    """

    columns: int
    width: int
    height: int


def best_grid(pictures: Sequence[ImageView], width: int, height: int) -> Grid:
    """The grid in which the smallest picture is largest.

    Args:
        pictures: what is to be drawn; two pixels go into a cell, one above the other.
        width: of the room, in cells.
        height: likewise.
    """
    count = max(1, len(pictures))
    grids = [_grid(columns, count, width, height) for columns in range(1, count + 1)]
    fitting = [grid for grid in grids if grid.width >= _NARROWEST and grid.height > 0]
    return max(fitting or grids[:1], key=lambda grid: (_least(grid, pictures), grid.columns))


def _grid(columns: int, count: int, width: int, height: int) -> Grid:
    rows = -(-count // columns)
    return Grid(columns, (width - GAP * (columns - 1)) // columns, height // rows - 1)


def _least(grid: Grid, pictures: Sequence[ImageView]) -> float:
    return min((scale(each, grid.width, grid.height) for each in pictures), default=0.0)


def scale(picture: ImageView, width: int, height: int) -> float:
    """How many times as large a picture would fill so many cells."""
    return min(width / picture.width, 2 * height / picture.height)
