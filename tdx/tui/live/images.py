"""Images in half-cells: each cell of the terminal shows two pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.message import Message

from tdx.inspection.live.views import ImageView
from tdx.tui.chain_status import truncate
from tdx.tui.line_widgets import RowWidget

_GAP = 2
_MIN_IMAGE_WIDTH = 12
"""Minimum width of an image with its title."""


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
        if (
            sum(max(placed.height for placed in line) + _title_height(line) for line in lines)
            <= height
        ):
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
    return 2 if any(placed.image.frames > 1 for placed in line) else 1


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

    class Resized(Message):
        """The size of the pane has changed, and so has the size of the images that it needs."""

    def __init__(self) -> None:
        super().__init__(id="live-images")
        self.border_title = "images"
        self.images: tuple[ImageView, ...] = ()
        self.stage: int | None = None

    def on_resize(self) -> None:
        super().on_resize()
        self.post_message(self.Resized())

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
        for part in row:
            if isinstance(part, str):
                parts.append(Segment(part, self.base))
            else:
                parts += _segments(part)
        return parts

    def max_image_size(self) -> tuple[int, int]:
        """Return the maximum size of an image in pixels."""
        width, height = self.size
        lines = place_images(self._images_to_draw(), width, height)
        placed = [image for line in lines for image in line]
        if placed:
            width = max(image.width for image in placed)
            height = max(image.height for image in placed)
        return width, 2 * height

    def _images_to_draw(self) -> Sequence[ImageView]:
        """Return all images, or those before and after the selected stage."""
        after = [n for n, image in enumerate(self.images) if image.stage == self.stage]
        if self.stage is None or self.stage < 0 or not after:
            return self.images
        key = _key_name(self.images[after[0]])
        earlier = [image for image in self.images[: after[0]] if _key_name(image) == key]
        return [*earlier[-1:], *(self.images[n] for n in after)]

    def all_rows(self) -> Iterator[ImageRow]:
        if self.size.height < 2:
            return
        shown = self._images_to_draw()
        if not shown:
            yield ("no key contains an image",)
            yield ("set from_pixels of the env to render images",)
            return
        number = 0
        for line in place_images(shown, *self.size):
            titles = []
            for placed in line:
                # The writer and the shape, as far as they fit.
                place, shape = placed.image.place, "×".join(map(str, placed.image.shape))
                texts = (f"{'→ ' if number else ''}{place} {shape}", f"{place} {shape}")
                fitting = (text for text in texts if len(text) <= placed.room)
                titles.append(_padded(next(fitting, place), placed))
                number += 1
            yield tuple(titles)
            if _title_height(line) > 1:
                yield tuple(_padded(_frame_labels(placed), placed) for placed in line)
            images = [list(_half_cells(placed)) for placed in line]
            for y in range(max(map(len, images))):
                parts: list[str | tuple[Cell, ...]] = []
                for placed, rows in zip(line, images, strict=True):
                    cells = rows[y] if y < len(rows) else ()
                    parts += [cells, " " * (placed.room - len(cells) + _GAP)]
                yield tuple(parts)


def _padded(text: str, placed: PlacedImage) -> str:
    return truncate(text, placed.room).ljust(placed.room + _GAP)


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
