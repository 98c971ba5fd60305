"""What the app overrides of the private parts of Textual; no other module of it does.

**Partial redraws.** Textual renders all lines of every widget between the first and the last
changed line, and then discards what is not needed. If small things change at the top and at the
bottom of the screen, that is the whole screen each time: 23 ms instead of 9 for an update of the
Live tab (docs/decisions/0016-draw-only-what-changes.md).

**No lost events.** After scrolling, or a refresh of a hidden widget, Textual computes its map of
widgets again at the next lookup. If that comes between a change of ``display`` and the layout, the
layout finds nothing new, and the widgets never get ``Show`` and ``Resize``: a tab stays empty.

**Ends after an error.** Textual prints a traceback of many screens. The app keeps the edits and
prints one line.

**All bindings.** The command palette lists the bindings of all widgets; the public list of Textual
has those of the focused one.

Tested with Textual 8.2.8; ``tests/tui/test_private_api.py`` fails if a part changes. Without the
parts of the compositor, Textual draws as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual._compositor import ChopsUpdate, Compositor, CompositorMap, ReflowResult
from textual.app import App, ScreenStackError
from textual.binding import Binding
from textual.css.query import QueryError
from textual.dom import DOMNode, NoScreen
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

Span = tuple[int, int, int]
_REQUIRED = (
    *("cuts", "visible_widgets", "_regions_to_spans"),
    *("render_partial_update", "reflow"),
)


class PartialCompositor(Compositor):
    """Renders the visible lines of each changed region, front to back."""

    def __init__(self) -> None:
        super().__init__()
        self._last_layout: CompositorMap = {}

    def reflow(self, parent: Widget, size: Size) -> ReflowResult:
        # Compare with the last layout, not with what a lookup has found since.
        self._full_map = self._last_layout
        result = super().reflow(parent, size)
        self._last_layout = self._full_map
        return result

    def render_partial_update(self) -> ChopsUpdate | None:
        screen = self.size.region
        regions = [
            region for dirty in self._dirty_regions if (region := dirty.intersection(screen))
        ]
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


_SHUTDOWN_ERRORS = (QueryError, NoScreen, ScreenStackError)


class CrashReportingApp(App[None]):
    """An app that decides how it ends after an error that nobody has handled."""

    def end_without_terminal(self) -> None:
        """End the app: its terminal is gone."""
        raise NotImplementedError

    def report_crash(self) -> None:
        """Record an error that ends the app, before its screens are closed."""
        raise NotImplementedError

    def _handle_exception(self, error: Exception) -> None:
        if isinstance(error, BrokenPipeError):
            self.end_without_terminal()
        elif not (self._exit and isinstance(error, _SHUTDOWN_ERRORS)):
            # The others only show that the app exits, and its page is gone.
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        if self.is_headless:
            super()._fatal_error()
            return
        # Not printed by Textual: closing the screens may raise before it prints.
        self.report_crash()
        self.panic()


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


def bindings_of(node: DOMNode) -> list[Binding]:
    """Return the bindings of a node with the keys of the keymap, whether they apply or not."""
    return [binding for _, binding in node._bindings]


def use_partial_compositor(screen: Screen[None]) -> None:
    """Replace the compositor of a screen, unless this version of Textual differs."""
    known = type(getattr(screen, "_compositor", None)) is Compositor
    if known and all(hasattr(Compositor, name) for name in _REQUIRED):
        screen._compositor = PartialCompositor()
