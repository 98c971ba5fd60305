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
from tdx.tui.chain_status import ENV, truncate
from tdx.tui.line_widgets import LINE_BINDINGS, RowWidget

_GAP = 2
_MIN_IMAGE_WIDTH = 12
"""Minimum width of an image with its title."""
_MIN_HEIGHT = 6
"""Height in cells below which fewer images are drawn."""
FIRST_ZOOM = 0.05
"""Zoom until the sizes of the images are known."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image with its size on the screen."""

    image: ImageView
    width: int  # width in cells; a cell is one pixel wide and two pixels high
    height: int  # height in cells, without the titles

    @property
    def room(self) -> int:
        """Width of the image or of its title."""
        return max(self.width, _MIN_IMAGE_WIDTH)


def place_images(
    images: Sequence[ImageView], width: int, height: int
) -> tuple[float, list[list[PlacedImage]]]:
    """Place images in lines, with the largest common zoom at which they fit."""
    tallest = max(image.frame_size[1] for image in images)
    for pixels in range(2 * height, 0, -1):
        zoom = pixels / tallest
        lines = _fill_lines(images, width, zoom)
        needed = sum(_height(line) + _title_height(line) for line in lines)
        is_wide = any(placed.width > width for line in lines for placed in line)
        if needed <= height and not is_wide:
            break
    return zoom, lines


def _fill_lines(images: Sequence[ImageView], width: int, zoom: float) -> list[list[PlacedImage]]:
    lines: list[list[PlacedImage]] = []
    left = 0
    for image in images:
        wide, tall = (max(1, round(side * zoom)) for side in image.frame_size)
        placed = PlacedImage(image, image.frames * (wide + 1) - 1, (tall + 1) // 2)
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

    BINDINGS = [*LINE_BINDINGS[:2]]
    HELP = """## Images

The image of the env, and the image after each stage that writes one, in chain order, all with the
same zoom. `↑` and `↓` go from stage to stage: of the selected one, only the images before and after
it are shown. After an edit, its image in the earlier rollout is between them if it was another one.
`←` and `→` go from step to step."""

    DEFAULT_CSS = """
    ImagePane { height: 1fr; }
    """

    class ZoomChanged(Message):
        """The images need another resolution."""

    @dataclass
    class StagePicked(Message):
        """Another stage was chosen; -1 is the env."""

        stage: int

    def __init__(self) -> None:
        super().__init__(id="live-images")
        self.images: tuple[ImageView, ...] = ()
        self.stage: int | None = None
        self.zoom = FIRST_ZOOM
        self._lines: list[list[PlacedImage]] = []

    def on_resize(self) -> None:
        self._place()
        super().on_resize()

    def show(self, images: Sequence[ImageView]) -> None:
        """Replace the images."""
        if images != self.images:
            self.images = tuple(images)
            self._place()

    def set_stage(self, stage: int | None) -> None:
        """Show only the images before and after a stage, if it writes one."""
        self.stage = stage
        self._place()

    def action_walk(self, by: int) -> None:
        """Choose the next stage that writes an image, or the previous one; the env is first."""
        at = ENV if self.stage is None else self.stage
        stages = sorted({ENV, *(image.stage for image in self.images)}, reverse=by < 0)
        beyond = (stage for stage in stages if (stage - at) * by > 0)
        self.post_message(self.StagePicked(next(beyond, at)))

    def row_parts(self, row: ImageRow) -> Sequence[Segment]:
        parts: list[Segment] = []
        for part in row:
            if isinstance(part, str):
                parts.append(Segment(part, self.base))
            else:
                parts += _segments(part)
        return parts

    def _place(self) -> None:
        """Place the images that fit: all of them, or those before and after a stage."""
        images = [image for image in self.images if not image.is_earlier]
        stages = [image.stage for image in images]
        before, zoom = self.zoom, FIRST_ZOOM
        title, self._lines = "images", []
        if self.stage in stages and self.stage != ENV:
            images = self._images_around(self.stage)
        if images and self.size.height > 1:
            zoom, self._lines = place_images(images, *self.size)
            while len(images) > 2 and max(map(_height, self._lines)) < _MIN_HEIGHT:
                # What the env renders, and what the last stages make of it.
                images = [images[0], *images[2:]]
                zoom, self._lines = place_images(images, *self.size)
        if len(set(stages)) > 1:
            title = "images · ↑ ↓ stages"
        if title != self.border_title:
            self.border_title = title
        self.invalidate()
        if zoom != before:
            self.zoom = zoom
            self.post_message(self.ZoomChanged())

    def _images_around(self, stage: int) -> list[ImageView]:
        """Return the images before and after a stage."""
        after = [image for image in self.images if image.stage == stage]
        before = [
            image
            for image in self.images[: self.images.index(after[0])]
            if image.key == after[0].key and not image.is_earlier
        ]
        return [*before[-1:], *after]

    def all_rows(self) -> Iterator[ImageRow]:
        if not self.images:
            yield ("no key contains an image",)
            yield ("set from_pixels of the env to render images",)
        for line in self._lines:
            yield tuple(_padded(_title(placed), placed) for placed in line)
            if _title_height(line) > 1:
                yield tuple(_padded(_frame_labels(placed), placed) for placed in line)
            images = [list(_half_cells(placed)) for placed in line]
            for y in range(max(map(len, images))):
                parts: list[str | tuple[Cell, ...]] = []
                for placed, rows in zip(line, images, strict=True):
                    cells = rows[y] if y < len(rows) else ()
                    parts += [cells, " " * (placed.room - len(cells) + _GAP)]
                yield tuple(parts)


def _height(line: Sequence[PlacedImage]) -> int:
    return max(placed.height for placed in line)


def _title(placed: PlacedImage) -> str:
    """Return the writer and the shape of an image, as far as they fit."""
    image = placed.image
    place = f"{image.stage} {image.name}" if image.stage >= 0 else image.name
    shape = "×".join(map(str, image.shape))
    if image.is_earlier:
        earlier = f"earlier {place}"
        place = earlier if len(earlier) <= placed.room else "earlier"
    elif image.stage >= 0 and len(place) + len(shape) + 3 <= placed.room:
        place = f"→ {place}"
    return f"{place} {shape}" if len(place) + len(shape) < placed.room else place


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
