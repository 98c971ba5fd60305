"""Partial redraws, images, and no lost events: extends Textual's compositor.

Textual renders all lines of every widget between the first and the last changed line, and then
discards what is not needed. If small things change at the top and at the bottom of the screen, that
is the whole screen each time.

After scrolling, or a refresh of a hidden widget, Textual computes its map of widgets again at the
next lookup. If that comes between a change of ``display`` and the layout, the layout finds nothing
new, and the widgets never get ``Show`` and ``Resize``: a tab stays empty.

Images of the terminal's graphics protocol are above its text. Their data follows the text of an
update. A widget that is partly covered, or below another screen, draws in cells instead.

This module overrides ``Compositor.render_update``, ``render_partial_update`` and ``reflow``, and
uses ``_dirty_regions``, ``_full_map``, ``cuts``, ``visible_widgets``, ``_regions_to_spans`` and
``App._driver``, which are private to Textual. Tested with Textual 8.2.8;
``tests/tui/test_private_api.py`` fails if they change. If they are missing, Textual draws as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from textual._compositor import (
    ChopsUpdate,
    Compositor,
    CompositorMap,
    CompositorUpdate,
    ReflowResult,
)
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

Span = tuple[int, int, int]
_REQUIRED = (
    *("cuts", "visible_widgets", "_regions_to_spans"),
    *("render_update", "render_partial_update", "reflow"),
)


class Graphic(NamedTuple):
    """An image in the terminal's graphics protocol.

    Args:
        number: Id, unique in the app.
        region: Cells of the image, relative to the content of its widget.
        data: Escape sequence that draws it at the cursor.
        remove: Escape sequence that removes it. Empty: text removes it.
    """

    number: int
    region: Region
    data: str
    remove: str


class GraphicWidget(Widget):
    """A widget that draws images above its cells while nothing covers it."""

    def set_graphics_mode(self, is_on: bool) -> bool:
        """Draw images, or cells only; return True if the cells must be drawn again."""
        raise NotImplementedError

    def graphics(self, changed: Sequence[Region]) -> tuple[set[int], list[Graphic]]:
        """Return the ids of all images, and those images that are in the changed regions.

        Args:
            changed: Regions that are drawn, relative to the content of the widget.
        """
        raise NotImplementedError


class GraphicsUpdate(CompositorUpdate):
    """An update of cells, and of the images above them.

    Args:
        update: Update of the cells.
        before: Escape sequences before it, which remove images.
        after: Escape sequences after it, which draw images.
    """

    def __init__(self, update: CompositorUpdate, before: str, after: str) -> None:
        self.update, self.before, self.after = update, before, after

    def render_segments(self, console: Console) -> str:
        return f"{self.before}{self.update.render_segments(console)}{self.after}"


class PartialCompositor(Compositor):
    """Renders the visible lines of each changed region, front to back."""

    def __init__(self) -> None:
        super().__init__()
        self._last_layout: CompositorMap = {}
        self._drawn: dict[int, str] = {}
        """Escape sequences that remove the images on the screen, by id."""

    def reflow(self, parent: Widget, size: Size) -> ReflowResult:
        # Compare with the last layout, not with what a lookup has found since.
        self._full_map = self._last_layout
        result = super().reflow(parent, size)
        self._last_layout = self._full_map
        return result

    def render_update(
        self,
        full: bool = False,
        screen_stack: list[Screen[Any]] | None = None,
        simplify: bool = False,
    ) -> RenderableType | None:
        widgets = [] if simplify else self._graphic_widgets()
        if not widgets and not self._drawn:
            return super().render_update(full, screen_stack, simplify)
        for widget, region, is_free in widgets:
            if widget.set_graphics_mode(is_free):
                self._dirty_regions.add(region)
        screen = self.size.region
        changed = [screen] if full or screen in self._dirty_regions else [*self._dirty_regions]
        update = super().render_update(full, screen_stack, simplify)
        if not isinstance(update, CompositorUpdate):
            return update
        kept: dict[int, str] = {}
        after = ""
        for widget, region, is_free in widgets:
            if is_free:
                origin = region.offset + widget.gutter.top_left
                parts = [each.translate(-origin) for each in changed if each.overlaps(region)]
                numbers, graphics = widget.graphics(parts)
                kept |= {number: self._drawn.get(number, "") for number in numbers}
                for each in graphics:
                    x, y = origin + each.region.offset
                    kept[each.number] = each.remove
                    after += f"\x1b[{y + 1};{x + 1}H{each.data}"
        before = "".join(self._drawn[number] for number in self._drawn.keys() - kept.keys())
        self._drawn = kept
        return GraphicsUpdate(update, before, after) if before or after else update

    def _graphic_widgets(self) -> list[tuple[GraphicWidget, Region, bool]]:
        """Return widgets with images, their regions, and True if nothing covers them."""
        front: list[Region] = []
        found = []
        for widget, (region, clip) in self.visible_widgets.items():
            if isinstance(widget, GraphicWidget):
                is_free = clip.contains_region(region) and not any(
                    each.overlaps(region) for each in front
                )
                found.append((widget, region, is_free))
            front.append(region.intersection(clip))
        return found

    def remove_graphics(self) -> str:
        """Draw cells instead of images; return the escape sequences that remove them."""
        for widget, _, _ in self._graphic_widgets():
            widget.set_graphics_mode(False)
        removal = "".join(self._drawn.values())
        self._drawn = {}
        return removal

    def render_partial_update(self) -> ChopsUpdate | None:
        screen = self.size.region
        regions = [region for each in self._dirty_regions if (region := each.intersection(screen))]
        self._dirty_regions.clear()
        if not regions:
            return None
        spans = list(self._regions_to_spans(regions))
        chops = self._chops(spans)
        return ChopsUpdate(chops, spans, [cuts[1:] for cuts in self.cuts])

    def _chops(self, spans: Sequence[Span]) -> list[dict[int, Strip | None]]:
        """Return the pieces of each line by their start; ``None`` if not drawn."""
        cuts = self.cuts
        chops: list[dict[int, Strip | None]] = [{} for _ in cuts]
        left: dict[int, set[int]] = {}
        for y, begin, end in spans:
            if not chops[y]:
                chops[y] = dict.fromkeys(cuts[y][:-1])
            ends = zip(cuts[y], cuts[y][1:], strict=False)
            left.setdefault(y, set()).update(at for at, to in ends if at < end and to > begin)
        for widget, (region, clip) in self.visible_widgets.items():
            visible = region.intersection(clip)
            for first, last in _line_ranges(visible, left):
                at = Region(visible.x - region.x, first - region.y, visible.width, last - first)
                for y, strip in zip(range(first, last), widget.render_lines(at), strict=False):
                    inside = [cut for cut in cuts[y] if visible.x <= cut <= visible.right]
                    pieces = strip.divide([cut - visible.x for cut in inside[1:]])
                    for cut, piece in zip(inside, pieces, strict=False):
                        if cut in left[y]:
                            chops[y][cut] = piece
                            left[y].discard(cut)
        return chops


def _line_ranges(visible: Region, left: dict[int, set[int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges of lines of a region in which something is left to draw."""
    x, right, begin = visible.x, visible.right, None
    for y in range(visible.y, visible.bottom):
        is_wanted = any(x <= cut < right for cut in left.get(y, ()))
        if is_wanted and begin is None:
            begin = y
        elif not is_wanted and begin is not None:
            yield begin, y
            begin = None
    if begin is not None:
        yield begin, visible.bottom


def use_partial_compositor(screen: Screen[Any]) -> None:
    """Replace the compositor of a screen, unless this version of Textual differs."""
    known = type(getattr(screen, "_compositor", None)) is Compositor
    if known and all(hasattr(Compositor, name) for name in _REQUIRED):
        screen._compositor = PartialCompositor()


def remove_graphics(screen: Screen[Any]) -> None:
    """Remove the images of a screen, because another screen covers it or the app exits."""
    compositor, driver = screen._compositor, screen.app._driver
    if isinstance(compositor, PartialCompositor):
        removal = compositor.remove_graphics()
        if removal and driver is not None:
            driver.write(removal)
