"""Images drawn in half-cells: the upper half of a cell is one pixel, the lower half another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from tdx.inspection.live.views import ImageView
from tdx.tui.live.line_widgets import RowWidget, truncate

GAP = 2
_MIN_IMAGE_WIDTH = 12


@dataclass(frozen=True, slots=True)
class ImageGrid:
    """Size of the cells of a grid.

    Args:
        columns: Number of images side by side.
        width: Width of an image in cells.
        height: Height of an image in cells, without its title.
    """

    columns: int
    width: int
    height: int


def best_grid(images: Sequence[ImageView], width: int, height: int) -> ImageGrid:
    """Return the grid in which the smallest image is largest.

    Args:
        images: Images; a cell is one pixel wide and two pixels high.
        width: Available width in cells.
        height: Available height in cells.
    """
    count = max(1, len(images))
    grids = [_make_grid(columns, count, width, height) for columns in range(1, count + 1)]
    fitting = [grid for grid in grids if grid.width >= _MIN_IMAGE_WIDTH and grid.height > 0]
    return max(fitting or grids[:1], key=lambda grid: (_smallest_scale(grid, images), grid.columns))


def _make_grid(columns: int, count: int, width: int, height: int) -> ImageGrid:
    rows = -(-count // columns)
    return ImageGrid(columns, (width - GAP * (columns - 1)) // columns, height // rows - 1)


def _smallest_scale(grid: ImageGrid, images: Sequence[ImageView]) -> float:
    return min((image_scale(each, grid.width, grid.height) for each in images), default=0.0)


def image_scale(picture: ImageView, width: int, height: int) -> float:
    """Return the factor by which an image must be scaled to fill a number of cells."""
    return min(width / picture.width, 2 * height / picture.height)


Cell = tuple[int, int]
"""The colors of a cell: of its upper half and of its lower half."""
ImageRow = tuple[str | tuple[Cell, ...], ...]
"""Parts of a line: a text, or cells of an image."""


class ImagePane(RowWidget[ImageRow], can_focus=True):
    """Draws images side by side: the env's image, and one for each stage that changes it."""

    HELP = """## Images

The image of the env, and the image after each stage that writes one, in chain order. If such a
stage is selected, only the images before and after it."""

    DEFAULT_CSS = """
    ImagePane { height: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__(id="live-images")
        self.border_title = "images"
        self.images: tuple[ImageView, ...] = ()
        self.stage: int | None = None

    def show(self, images: Sequence[ImageView]) -> None:
        """Replace the images."""
        if images != self.images:
            self.images = tuple(images)
            self.outdated()

    def set_stage(self, stage: int | None) -> None:
        """Show only the images before and after a stage, if it writes one."""
        self.stage = stage
        self.outdated()

    def row_parts(self, row: ImageRow) -> Sequence[Segment]:
        parts: list[Segment] = []
        for each in row:
            if isinstance(each, str):
                parts.append(Segment(each, self.base))
            else:
                parts += _segments(each)
        return parts

    def max_image_size(self) -> tuple[int, int]:
        """Return the maximum size of an image in pixels."""
        grid = best_grid(self._displayed(), *self.size)
        return grid.width, max(0, grid.height) * 2

    def _displayed(self) -> Sequence[ImageView]:
        """Return all images, or those before and after the selected stage."""
        after = [n for n, each in enumerate(self.images) if each.stage == self.stage]
        if self.stage is None or self.stage < 0 or not after:
            return self.images
        key = _key_name(self.images[after[0]])
        earlier = [each for each in self.images[: after[0]] if _key_name(each) == key]
        return [*earlier[-1:], *(self.images[n] for n in after)]

    def all_rows(self) -> Iterator[ImageRow]:
        if self.size.height < 2:
            return
        shown = self._displayed()
        if not shown:
            yield ("no key contains an image",)
            yield ("set from_pixels of the env to render images",)
            return
        grid = best_grid(shown, *self.size)
        for begin in range(0, len(shown), grid.columns):
            row = shown[begin : begin + grid.columns]
            heads = []
            for number, each in enumerate(row, start=begin):
                heads.append(_image_title(each, number, grid.width).ljust(grid.width + GAP))
            yield tuple(heads)
            images = [list(_half_cells(each, grid.width, grid.height)) for each in row]
            for y in range(max(map(len, images))):
                parts: list[str | tuple[Cell, ...]] = []
                for rows in images:
                    cells = rows[y] if y < len(rows) else ()
                    parts += [cells, " " * (grid.width - len(cells) + GAP)]
                yield tuple(parts)


def _image_title(picture: ImageView, number: int, width: int) -> str:
    """Return the writer and the shape, as far as they fit."""
    place, shape = picture.place, "×".join(map(str, picture.shape))
    texts = (f"{'→ ' if number else ''}{place} {shape}", f"{place} {shape}", place)
    return next((text for text in texts if len(text) <= width), truncate(place, width))


def _half_cells(picture: ImageView, width: int, height: int) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of an image, two pixels per cell, scaled to fit."""
    times = image_scale(picture, width, height)
    times = times if times < 1 else float(int(times))
    wide, tall = max(1, int(picture.width * times)), max(1, int(picture.height * times))
    columns = [x * picture.width // wide for x in range(wide)]
    rgb, stride = picture.rgb, picture.width * 3
    for y in range(0, tall, 2):
        upper = (y * picture.height // tall) * stride
        lower = (min(y + 1, tall - 1) * picture.height // tall) * stride
        above = _pixels(rgb[upper : upper + stride])
        below = _pixels(rgb[lower : lower + stride])
        yield tuple([(above[x], below[x]) for x in columns])


def _pixels(rgb: bytes) -> list[int]:
    """Return each pixel of a row as a number."""
    return [
        red << 16 | green << 8 | blue
        for red, green, blue in zip(rgb[::3], rgb[1::3], rgb[2::3], strict=True)
    ]


def _segments(cells: Sequence[Cell]) -> Iterator[Segment]:
    """Merge neighboring cells of the same colors."""
    begin = 0
    for at in range(1, len(cells) + 1):
        if at == len(cells) or cells[at] != cells[begin]:
            yield Segment("▀" * (at - begin), _style(*cells[begin]))
            begin = at


@lru_cache(maxsize=65_536)
def _style(upper: int, lower: int) -> Style:
    return Style(color=_color(upper), bgcolor=_color(lower))


@lru_cache(maxsize=16_384)
def _color(number: int) -> Color:
    return Color.from_rgb(number >> 16, number >> 8 & 255, number & 255)


def _key_name(picture: ImageView) -> str:
    return picture.version.partition("@")[0]
