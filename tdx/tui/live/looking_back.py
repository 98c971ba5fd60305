"""What the app itself remembers of a session: it outlives the worker."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from tdx.inspection.live.views import ImageView, TraceView

MOST = 150


class Seen:
    """The latest traces that were on the screen, with their images.

    Args:
        most: how many are remembered.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._views: OrderedDict[int, TraceView] = OrderedDict()
        self._pictures: dict[int, Sequence[ImageView]] = {}
        self._last = -1

    def forget(self) -> None:
        """Another session begins."""
        self._views.clear()
        self._pictures.clear()

    def add(self, view: TraceView) -> None:
        """Remember a view; the one that was seen longest ago is forgotten."""
        self._last = view.index
        self._views[view.index] = view
        self._views.move_to_end(view.index)
        if len(self._views) > self._most:
            gone, _ = self._views.popitem(last=False)
            self._pictures.pop(gone, None)

    def add_pictures(self, pictures: Sequence[ImageView]) -> None:
        """Remember the images of the view that was added last."""
        if self._last in self._views:
            self._pictures[self._last] = pictures

    def __len__(self) -> int:
        return len(self._views)

    def near(self, index: int, since: int) -> tuple[TraceView, Sequence[ImageView]] | None:
        """What is remembered where one comes to who goes from one trace to another.

        Args:
            index: where to.
            since: where from.
        """
        if not self._views:
            return None
        if index < since:
            before = (each for each in self._views if each <= index)
            at = max(before, default=min(self._views))
        else:
            after = (each for each in self._views if each >= index)
            at = min(after, default=max(self._views))
        return self._views[at], self._pictures.get(at, ())
