"""Parts of the live tab that need no app."""

from __future__ import annotations

from tdx.inspection.live.views import TraceView
from tdx.tui.live.connection import TraceCache
from tdx.tui.live.graphics import draw_braille


def view(index: int) -> TraceView:
    return TraceView(index, index, 0, "step", None, (), (), 0, 0)


def test_what_was_seen_is_bounded_and_found_again() -> None:
    seen = TraceCache(max_size=3)
    assert seen.nearest(1, 2) is None
    for index in (0, 4, 8, 12):
        seen.add(view(index))
    seen.add_images(())
    assert len(seen) == 3

    def at(index: int, since: int) -> int:
        found = seen.nearest(index, since)
        assert found is not None
        return found[0].index

    assert [at(11, 12), at(7, 8), at(0, 4)] == [8, 4, 4]
    assert [at(5, 4), at(9, 8), at(99, 12)] == [8, 12, 12]
    seen.clear()
    assert len(seen) == 0


def test_curves_fill_what_is_between_two_parts() -> None:
    assert draw_braille([0, 3], [0, 3], 1, 1) == ["⡸"]
    assert draw_braille([0, 0, 7, 7], [7, 7, 7, 7], 2, 2) == ["⣿⠉", "⣿⠀"]
    assert draw_braille([None, 1], [None, 1], 1, 1) == ["⠠"]
    assert draw_braille([], [], 2, 1) == ["  "]
