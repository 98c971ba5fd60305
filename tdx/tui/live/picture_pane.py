"""Images in half-cells: the upper half of a cell is one pixel, the lower another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from tdx.inspection.live.views import ImageView
from tdx.tui.live.line_widget import RowWidget
from tdx.tui.live.lines import cut
from tdx.tui.live.picture_grid import GAP, best_grid, scale

Cell = tuple[int, int]
"""The colours of a cell: of its upper half and of its lower half."""
Row = tuple[str | tuple[Cell, ...], ...]
"""Parts of a line: a text, or cells of an image."""


class PicturePane(RowWidget[Row], can_focus=True):
    """Draws images side by side: what the env gives, and after each stage that changes it."""

    HELP = """## The pixels

Each image as the env gives it and after each stage that writes it, from left to right, in the order
of the chain. Where a stage is selected in the chain, the image before it and the one after it."""

    DEFAULT_CSS = """
    PicturePane { height: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__(id="live-pictures")
        self.border_title = "pixels"
        self.pictures: tuple[ImageView, ...] = ()
        self.stage: int | None = None

    def show(self, pictures: Sequence[ImageView]) -> None:
        """Draw these from now on."""
        if pictures != self.pictures:
            self.pictures = tuple(pictures)
            self.outdated()

    def set_stage(self, stage: int | None) -> None:
        """Draw the image before a stage and the one after it, where it writes one."""
        self.stage = stage
        self.outdated()

    def row_parts(self, row: Row) -> Sequence[Segment]:
        parts: list[Segment] = []
        for each in row:
            if isinstance(each, str):
                parts.append(Segment(each, self.base))
            else:
                parts += _segments(each)
        return parts

    def room(self) -> tuple[int, int]:
        """The most pixels of an image that there is room for, across and down."""
        grid = best_grid(self._chosen(), *self.size)
        return grid.width, max(0, grid.height) * 2

    def _chosen(self) -> Sequence[ImageView]:
        """What is drawn: all, or before and after a stage."""
        after = [n for n, each in enumerate(self.pictures) if each.stage == self.stage]
        if self.stage is None or self.stage < 0 or not after:
            return self.pictures
        key = _key(self.pictures[after[0]])
        earlier = [each for each in self.pictures[: after[0]] if _key(each) == key]
        return [*earlier[-1:], *(self.pictures[n] for n in after)]

    def all_rows(self) -> Iterator[Row]:
        if self.size.height < 2:
            return
        shown = self._chosen()
        if not shown:
            yield ("no key holds an image",)
            yield ("from_pixels of the env draws it",)
            return
        grid = best_grid(shown, *self.size)
        for begin in range(0, len(shown), grid.columns):
            row = shown[begin : begin + grid.columns]
            heads = []
            for number, each in enumerate(row, start=begin):
                heads.append(_head(each, number, grid.width).ljust(grid.width + GAP))
            yield tuple(heads)
            images = [list(_half_cells(each, grid.width, grid.height)) for each in row]
            for y in range(max(map(len, images))):
                parts: list[str | tuple[Cell, ...]] = []
                for rows in images:
                    cells = rows[y] if y < len(rows) else ()
                    parts += [cells, " " * (grid.width - len(cells) + GAP)]
                yield tuple(parts)


def _head(picture: ImageView, number: int, width: int) -> str:
    """Who wrote it and its shape, as far as there is room."""
    place, shape = picture.place, "×".join(map(str, picture.shape))
    texts = (f"{'→ ' if number else ''}{place} {shape}", f"{place} {shape}", place)
    return next((text for text in texts if len(text) <= width), cut(place, width))


def _half_cells(picture: ImageView, width: int, height: int) -> Iterator[tuple[Cell, ...]]:
    """The rows of a picture, two pixels a cell; pixels left out or doubled to fill the room."""
    times = scale(picture, width, height)
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
    """Each pixel of a row as one number."""
    return [
        red << 16 | green << 8 | blue
        for red, green, blue in zip(rgb[::3], rgb[1::3], rgb[2::3], strict=True)
    ]


def _segments(cells: Sequence[Cell]) -> Iterator[Segment]:
    """Neighbours of the same colours are drawn at once."""
    begin = 0
    for at in range(1, len(cells) + 1):
        if at == len(cells) or cells[at] != cells[begin]:
            yield Segment("▀" * (at - begin), _style(*cells[begin]))
            begin = at


@lru_cache(maxsize=65_536)
def _style(upper: int, lower: int) -> Style:
    return Style(color=_colour(upper), bgcolor=_colour(lower))


@lru_cache(maxsize=16_384)
def _colour(number: int) -> Color:
    return Color.from_rgb(number >> 16, number >> 8 & 255, number & 255)


def _key(picture: ImageView) -> str:
    return picture.version.partition("@")[0]
