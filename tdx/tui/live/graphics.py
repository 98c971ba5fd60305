"""Plots drawn in braille, and images drawn in half-cells (two pixels per cell)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import ClassVar

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message

from tdx.inspection.live.views import ImageView, PlotView
from tdx.tui.live.line_widgets import RowWidget, truncate

_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)


def _bits(four: int, dots: Sequence[int]) -> int:
    return sum(dot for n, dot in enumerate(dots) if four >> n & 1)


_CELLS = [chr(0x2800 + _bits(both >> 4, _LEFT) + _bits(both & 15, _RIGHT)) for both in range(256)]
_Numbers = Sequence[float | None]


def draw_braille(
    lows: _Numbers,
    highs: _Numbers,
    width: int,
    height: int,
    bounds: tuple[float, float] | None = None,
) -> list[str]:
    """Draw a band between two curves as lines of braille characters.

    Args:
        lows: Smallest number of each point; ``None`` if there is none.
        highs: Largest number of each point.
        width: Width in cells; a cell is two dots wide.
        height: Height in cells; a cell is four dots high.
        bounds: Numbers at the bottom and at the top. Defaults to the smallest and the largest.

    Example:
        >>> draw_braille([0, 1, 2, 3], [0, 1, 2, 3], 2, 1)
        ['⡠⠊']
    """
    known = [each for each in (*lows, *highs) if each is not None]
    if not known or width < 1 or height < 1:
        return [" " * width for _ in range(height)]
    least, most = bounds or (min(known), max(known))
    tall = height * 4 - 1
    scale = tall / (most - least) if most > least else 0.0
    middle = 0 if scale else tall // 2
    columns: list[int] = []
    before: tuple[int, int] | None = None
    for x in range(width * 2):
        at = x * len(lows) // (width * 2)
        low, high = lows[at], highs[at]
        if low is None or high is None:
            before = None
            columns.append(0)
            continue
        bottom = round((low - least) * scale) + middle
        top = round((high - least) * scale) + middle
        first, last = _connect(bottom, top, before)
        columns.append((1 << last + 1) - (1 << first) if last >= first else 0)
        before = bottom, top
    return [_braille_row(columns, 4 * up) for up in reversed(range(height))]


def _connect(bottom: int, top: int, before: tuple[int, int] | None) -> tuple[int, int]:
    """Extend a column of dots so that it touches the previous one."""
    if before is not None:
        if before[1] < bottom:
            bottom = before[1] + 1
        elif before[0] > top:
            top = before[0] - 1
    return bottom, top


def _braille_row(columns: Sequence[int], bottom: int) -> str:
    """Return a line of cells; the lowest bit of a column is its lowest dot."""
    pairs = zip(columns[::2], columns[1::2], strict=True)
    return "".join(
        _CELLS[(left >> bottom & 15) << 4 | right >> bottom & 15] for left, right in pairs
    )


_COLORS = ("a", "b", "c", "d")
_SCALE_WIDTH = 8
PlotRow = tuple[tuple[str, str, bool], ...]
"""Parts of a line: text, style, and whether it is at the shown trace."""


class PlotPane(RowWidget[PlotRow], can_focus=True):
    """Draws plots; a click shows the step at that point."""

    HELP = """## Plots

Reward, return of the current episode, and other keys: choose them with `c`, or with `Enter` on a
key in the values. `b` zooms to the latest traces. A click shows the step at that point."""
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"plot--{name}" for name in _COLORS),
        *(f"plot--{name}-name" for name in _COLORS),
        "plot--muted",
        "plot--cursor",
    }
    DEFAULT_CSS = """
    PlotPane {
        height: 1fr;
        & > .plot--a { color: $primary; }
        & > .plot--a-name { color: $primary; text-style: bold; }
        & > .plot--b { color: $success; }
        & > .plot--b-name { color: $success; text-style: bold; }
        & > .plot--c { color: $accent; }
        & > .plot--c-name { color: $accent; text-style: bold; }
        & > .plot--d { color: $secondary; }
        & > .plot--d-name { color: $secondary; text-style: bold; }
        & > .plot--muted { color: $text-muted; }
        & > .plot--cursor { background: $panel-lighten-2; }
    }
    """

    class Picked(Message):
        """A point of a plot was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self) -> None:
        super().__init__(id="live-plots")
        self.border_title = "plots"
        self.curves: tuple[PlotView, ...] = ()
        self.cursor: int | None = None

    def show(self, curves: Sequence[PlotView]) -> None:
        """Replace the plots."""
        self.curves = tuple(curves)
        self.invalidate()

    def set_cursor(self, index: int | None) -> None:
        """Mark a trace. ``None``: the latest one is shown."""
        if index != self.cursor:
            self.cursor = index
            self.invalidate()

    @property
    def plot_width(self) -> int:
        """Width of a plot in cells."""
        return max(1, self.size.width - _SCALE_WIDTH - 1)

    def row_parts(self, row: PlotRow) -> Sequence[Segment]:
        here = self.back("plot--cursor")
        styled = ((text, self.part(f"plot--{name}"), is_here) for text, name, is_here in row)
        return [
            Segment(text, style + here if is_here else style) for text, style, is_here in styled
        ]

    def all_rows(self) -> Iterator[PlotRow]:
        height = self.size.height
        shown = self.curves[: height // 3] or self.curves[: height // 2]
        for number, each in enumerate(shown):
            rows = height // len(shown) + (number < height % len(shown))
            yield from self._plot_rows(each, rows, _COLORS[number % len(_COLORS)])

    def _plot_rows(self, curve: PlotView, height: int, color: str) -> Iterator[PlotRow]:
        earlier = curve.earlier
        both = (curve,) if earlier is None else (curve, earlier)
        known = [n for each in both for n in (*each.low, *each.high) if n is not None]
        name = truncate(curve.name, self.size.width - 12)
        latest = "" if curve.latest is None else f"  {curve.latest:.4g}"
        if earlier is not None and earlier.latest is not None:
            latest += f"  earlier {earlier.latest:.4g}"
        yield (name, f"{color}-name", False), (latest, "muted", False)
        rows = height - 1
        scale = [""] * rows
        if known and rows:
            flat = min(known) == max(known)
            scale[rows // 2 if flat else 0] = f"{max(known):.3g}"
            if rows > 1 and not flat:
                scale[-1] = f"{min(known):.3g}"
        bounds = (min(known), max(known)) if known else None
        drawn = [draw_braille(each.low, each.high, self.plot_width, rows, bounds) for each in both]
        at = self._column(curve)
        for number, mark in enumerate(scale):
            head = (truncate(mark, _SCALE_WIDTH).rjust(_SCALE_WIDTH) + "┤", "muted", False)
            yield head, *_overlay([lines[number] for lines in drawn], (color, "muted"), at)

    def _column(self, curve: PlotView) -> int | None:
        """Return the column of the shown trace."""
        if self.cursor is None or not curve.first <= self.cursor <= curve.last:
            return None
        parts, span = len(curve.low), curve.last - curve.first + 1
        part = (self.cursor - curve.first) * parts // span
        return part * self.plot_width // parts

    def on_click(self, event: events.Click) -> None:
        column = event.get_content_offset(self)
        if column is None or not self.curves:
            return
        each = self.curves[0]
        parts, x = len(each.low), column.x - _SCALE_WIDTH - 1
        if x < 0 or not parts:
            return
        part = min(x * parts // self.plot_width, parts - 1)
        span = each.last - each.first + 1
        self.post_message(self.Picked(each.first + part * span // parts))


def _overlay(
    lines: Sequence[str], colors: Sequence[str], marked: int | None
) -> Iterator[tuple[str, str, bool]]:
    """Yield the parts of a line; the first of several plots is on top.

    Args:
        lines: The same line of each plot.
        colors: Color of each plot.
        marked: Column of the shown trace. ``None``: it is not in the plot.
    """

    def style(column: int) -> tuple[str, bool]:
        drawn = (n for n, line in enumerate(lines) if line[column] not in _BLANK)
        return colors[next(drawn, 0)], column == marked

    for (color, is_here), columns in groupby(range(len(lines[0])), style):
        line = lines[colors.index(color)]
        yield "".join(line[column] for column in columns), color, is_here


_BLANK = (" ", "\u2800")
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


def image_scale(image: ImageView, width: int, height: int) -> float:
    """Return the factor by which an image must be scaled to fill a number of cells."""
    return min(width / image.width, 2 * height / image.height)


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
            self.invalidate()

    def set_stage(self, stage: int | None) -> None:
        """Show only the images before and after a stage, if it writes one."""
        self.stage = stage
        self.invalidate()

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
        grid = best_grid(self._images_to_draw(), *self.size)
        return grid.width, max(0, grid.height) * 2

    def _images_to_draw(self) -> Sequence[ImageView]:
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
        shown = self._images_to_draw()
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


def _image_title(image: ImageView, number: int, width: int) -> str:
    """Return the writer and the shape, as far as they fit."""
    place, shape = image.place, "×".join(map(str, image.shape))
    texts = (f"{'→ ' if number else ''}{place} {shape}", f"{place} {shape}", place)
    return next((text for text in texts if len(text) <= width), truncate(place, width))


def _half_cells(image: ImageView, width: int, height: int) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of an image, two pixels per cell, scaled to fit."""
    times = image_scale(image, width, height)
    times = times if times < 1 else float(int(times))
    wide, tall = max(1, int(image.width * times)), max(1, int(image.height * times))
    columns = [x * image.width // wide for x in range(wide)]
    rgb, stride = image.rgb, image.width * 3
    for y in range(0, tall, 2):
        upper = (y * image.height // tall) * stride
        lower = (min(y + 1, tall - 1) * image.height // tall) * stride
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


def _key_name(image: ImageView) -> str:
    return image.version.partition("@")[0]
