"""Partial redraws equal full ones, and a tab is notified when it is shown."""

from __future__ import annotations

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.widgets import ContentSwitcher

from tdx.tui.live.live_tab import LiveTab
from tdx.tui.textual_internals import PartialCompositor
from tests.programs import exhaustive
from tests.tui.playing import playing

PARTS = (
    [Region(0, 0, 100, 1), Region(0, 29, 100, 1)],
    [Region(60, 8, 20, 3), Region(45, 12, 50, 1), Region(3, 3, 4, 20)],
    [Region(0, 0, 100, 29)],
    [Region(90, 20, 40, 40)],
)


@exhaustive
async def test_partial_redraw_equals_full_redraw() -> None:
    async with playing("StepCounter(max_steps=20)", whole=True, size=(100, 30)) as app:
        await app.press("s", "s")
        for keys in ((), ("2",), ("ctrl+p",)):
            await app.pilot.press(*keys)
            await app.pilot.pause()
            screen = app.app.screen_stack[0]
            compositor = screen._compositor
            assert isinstance(compositor, PartialCompositor)
            for parts in PARTS:
                compositor._dirty_regions.update(parts)
                found = compositor.render_partial_update()
                compositor._dirty_regions.update(each.intersection(screen.region) for each in parts)
                wanted = Compositor.render_partial_update(compositor)
                assert isinstance(found, ChopsUpdate)
                assert isinstance(wanted, ChopsUpdate)
                console = app.app.console
                assert found.render_segments(console) == wanted.render_segments(console)
        compositor._dirty_regions.clear()
        assert compositor.render_partial_update() is None


@exhaustive
async def test_tab_is_shown_if_a_lookup_precedes_the_layout() -> None:
    async with playing("StepCounter(max_steps=20)", whole=True, size=(100, 30)) as app:
        main = app.app.screen_stack[0]
        tabs, live = main.query_one(ContentSwitcher), main.query_one(LiveTab)
        await app.press("1")
        shown: list[str] = []
        live.connection.start_if_new = lambda: shown.append("live")  # type: ignore[method-assign]
        # After scrolling, or a refresh of a hidden widget, the next lookup computes the map again.
        # Here the lookup comes before the layout that reports what is shown.
        tabs.current = "live"
        main._compositor._full_map_invalidated = True
        assert live.is_on_screen
        await app.settle()
        assert shown == ["live"]
