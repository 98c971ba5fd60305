"""Images in the graphics protocol of the terminal, or in half-cells, two pixels per cell."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.message import Message
from textual.timer import Timer

from tdx.inspection.live.views import ImageView
from tdx.tui.compositor import Graphic, GraphicWidget
from tdx.tui.live.line_widgets import RowWidget, truncate
from tdx.tui.terminal_graphics import Graphics, delete_kitty, encode_kitty, encode_sixel

_GAP = 2
_MIN_IMAGE_WIDTH = 12
"""Minimum width of an image with its title."""
_SECONDS_PER_IMAGE = 1 / 12
"""Minimum time between two images in a graphics protocol."""
_MAX_PIXELS = 640
"""Maximum width and height of an image in a graphics protocol before the terminal scales it."""
_FIRST_ID = 7_464_000


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image with its size on the screen.

    Args:
        image: The image.
        width: Width in cells; a cell is one pixel wide and two pixels high.
        height: Height in cells, without the titles.
    """

    image: ImageView
    width: int
    height: int

    @property
    def room(self) -> int:
        """Width of the image or of its title."""
        return max(self.width, _MIN_IMAGE_WIDTH)


def place_images(images: Sequence[ImageView], width: int, height: int) -> list[list[PlacedImage]]:
    """Place images in lines, with the largest common height that fits.

    Args:
        images: The images, in order.
        width: Available width in cells.
        height: Available height in cells.
    """
    for common in range(height, 0, -1):
        lines = _fill_lines(images, width, common)
        if sum(max(each.height for each in line) + _title_height(line) for line in lines) <= height:
            return lines
    return _fill_lines(images, width, 1)


def _fill_lines(images: Sequence[ImageView], width: int, height: int) -> list[list[PlacedImage]]:
    lines: list[list[PlacedImage]] = []
    left = 0
    for image in images:
        wide = max(1, min(width, round(2 * height * image.ratio)))
        placed = PlacedImage(image, wide, max(1, min(height, round(wide / image.ratio / 2))))
        if not lines or placed.room > left:
            lines.append([])
            left = width
        lines[-1].append(placed)
        left -= placed.room + _GAP
    return lines


def _title_height(line: Sequence[PlacedImage]) -> int:
    return 2 if any(each.image.frames > 1 for each in line) else 1


Cell = tuple[int, int]
"""The colors of a cell: of its upper half and of its lower half."""
ImageRow = tuple[str | tuple[Cell, ...], ...]
"""Parts of a line: a text, or cells of an image."""


class ImagePane(RowWidget[ImageRow], GraphicWidget, can_focus=True):
    """Draws images side by side: the env's image, and one for each stage that changes it."""

    HELP = """## Images

The image of the env, and the image after each stage that writes one, in chain order. If such a
stage is selected, only the images before and after it."""

    DEFAULT_CSS = """
    ImagePane { height: 1fr; }
    """

    class Resized(Message):
        """The size of the pane has changed, and so has the size of the images that it needs."""

    def __init__(self) -> None:
        super().__init__(id="live-images")
        self.border_title = "images"
        self.images: tuple[ImageView, ...] = ()
        self.stage: int | None = None
        self._is_graphic = False
        self._placed: list[tuple[Region, ImageView]] = []
        self._drawn_at = 0.0
        self._timer: Timer | None = None

    def on_resize(self) -> None:
        super().on_resize()
        self.post_message(self.Resized())

    def show(self, images: Sequence[ImageView]) -> None:
        """Replace the images; at most a dozen times a second in a graphics protocol."""
        if images == self.images:
            return
        self.images = tuple(images)
        if not self._is_graphic:
            self.invalidate()
        elif self._timer is None:
            wait = self._drawn_at + _SECONDS_PER_IMAGE - time.monotonic()
            if wait > 0:
                self._timer = self.set_timer(wait, self._show_latest)
            else:
                self._show_latest()

    def _show_latest(self) -> None:
        """Draw changed titles, and the images that have changed."""
        self._timer, self._drawn_at = None, time.monotonic()
        before = self._placed
        self.invalidate()
        if [region for region, _ in before] != [region for region, _ in self._placed]:
            self.refresh()
            return
        pairs = zip(before, self._placed, strict=True)
        changed = [Region(new.x, new.y, 1, 1) for (_, old), (new, image) in pairs if old != image]
        if changed:
            self.refresh(*changed)

    def set_stage(self, stage: int | None) -> None:
        """Show only the images before and after a stage, if it writes one."""
        self.stage = stage
        self._show_latest()

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
        width, height = self.size
        lines = place_images(self._images_to_draw(), width, height)
        placed = [each for line in lines for each in line]
        if placed:
            width = max(each.width for each in placed)
            height = max(each.height for each in placed)
        graphics = self._terminal_graphics()
        if graphics is None:
            return width, 2 * height
        # Not the state at this moment: a dialog is closed without another request.
        cell = graphics.cell_size()
        return min(width * cell[0], _MAX_PIXELS), min(height * cell[1], _MAX_PIXELS)

    def _terminal_graphics(self) -> Graphics | None:
        graphics = getattr(self.app, "graphics", None)
        return graphics if isinstance(graphics, Graphics) else None

    def set_graphics_mode(self, is_on: bool) -> bool:
        is_on = is_on and self._terminal_graphics() is not None
        if is_on == self._is_graphic:
            return False
        self._is_graphic, self._rows = is_on, None
        return True

    def graphics(self, changed: Sequence[Region]) -> tuple[set[int], list[Graphic]]:
        terminal = self._terminal_graphics()
        if terminal is None:
            return set(), []
        self.line_key(0)  # places the images
        drawn = [
            _graphic(terminal, _FIRST_ID + number, region, image)
            for number, (region, image) in enumerate(self._placed)
            if any(each.overlaps(region) for each in changed)
        ]
        return {_FIRST_ID + number for number in range(len(self._placed))}, drawn

    def _images_to_draw(self) -> Sequence[ImageView]:
        """Return all images, or those before and after the selected stage."""
        after = [n for n, each in enumerate(self.images) if each.stage == self.stage]
        if self.stage is None or self.stage < 0 or not after:
            return self.images
        key = _key_name(self.images[after[0]])
        earlier = [each for each in self.images[: after[0]] if _key_name(each) == key]
        return [*earlier[-1:], *(self.images[n] for n in after)]

    def all_rows(self) -> Iterator[ImageRow]:
        self._placed = []
        if self.size.height < 2:
            return
        shown = self._images_to_draw()
        if not shown:
            yield ("no key contains an image",)
            yield ("set from_pixels of the env to render images",)
            return
        number = y = 0
        for line in place_images(shown, *self.size):
            yield tuple(
                _padded(_image_title(each, number + n), each) for n, each in enumerate(line)
            )
            number += len(line)
            if _title_height(line) > 1:
                yield tuple(_padded(_frame_labels(each), each) for each in line)
            y += _title_height(line)
            if self._is_graphic:
                yield from self._place_graphics(line, y)
            else:
                yield from _half_cell_rows(line)
            y += max(each.height for each in line)

    def _place_graphics(self, line: Sequence[PlacedImage], y: int) -> Iterator[ImageRow]:
        """Record where the images of a line are drawn; yield blank rows."""
        x = 0
        for each in line:
            self._placed.append((Region(x, y, each.width, each.height), each.image))
            x += each.room + _GAP
        for _ in range(max(each.height for each in line)):
            yield (" " * x,)


def _graphic(terminal: Graphics, number: int, region: Region, image: ImageView) -> Graphic:
    size = image.width, image.height
    if terminal.protocol == "kitty":
        data = encode_kitty(image.rgb, size, region.size, number)
        return Graphic(number, region, data, delete_kitty(number))
    width, height = terminal.cell_size()
    target = region.width * width, max(6, region.height * height // 6 * 6)
    return Graphic(number, region, encode_sixel(image.rgb, size, target), "")


def _half_cell_rows(line: Sequence[PlacedImage]) -> Iterator[ImageRow]:
    """Yield the rows of images side by side."""
    images = [list(_half_cells(each)) for each in line]
    for y in range(max(map(len, images))):
        parts: list[str | tuple[Cell, ...]] = []
        for each, rows in zip(line, images, strict=True):
            cells = rows[y] if y < len(rows) else ()
            parts += [cells, " " * (each.room - len(cells) + _GAP)]
        yield tuple(parts)


def _padded(text: str, placed: PlacedImage) -> str:
    return truncate(text, placed.room).ljust(placed.room + _GAP)


def _image_title(placed: PlacedImage, number: int) -> str:
    """Return the writer and the shape, as far as they fit."""
    place, shape = placed.image.place, "×".join(map(str, placed.image.shape))
    texts = (f"{'→ ' if number else ''}{place} {shape}", f"{place} {shape}")
    return next((text for text in texts if len(text) <= placed.room), place)


def _frame_labels(placed: PlacedImage) -> str:
    """Return the age of each frame of a stack, above the frame."""
    count = placed.image.frames
    if count == 1:
        return ""
    text = ""
    for number in range(count):
        age = count - 1 - number
        start = round(number * placed.width / count)
        text = f"{text.ljust(start)}{f't-{age}' if age else 't'} "
    return text.rstrip()


def _half_cells(placed: PlacedImage) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of an image, two pixels per cell, scaled to its size on the screen."""
    image, wide, tall = placed.image, placed.width, 2 * placed.height
    columns = [x * image.width // wide for x in range(wide)]
    rgb, stride = image.rgb, image.width * 3
    for y in range(0, tall, 2):
        upper = (y * image.height // tall) * stride
        lower = ((y + 1) * image.height // tall) * stride
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
