"""The tab in which an env is stepped, and everything in it looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.timer import Timer
from textual.widget import Widget

from tdx.inspection.live.views import EnvCell, TraceView
from tdx.pipeline.editing import Draft
from tdx.pipeline.model import Pipeline
from tdx.tui.live import keys
from tdx.tui.live.arrangement import PANES, TITLES, Pane, arranged
from tdx.tui.live.curve_pane import CurvePane
from tdx.tui.live.env_strip import EnvStrip
from tdx.tui.live.episode_list import EpisodeList
from tdx.tui.live.hand_pane import HandPane
from tdx.tui.live.lines import Lines
from tdx.tui.live.link import Link
from tdx.tui.live.looking_back import Seen
from tdx.tui.live.picture_pane import PicturePane
from tdx.tui.live.press import Press
from tdx.tui.live.requests import Facts, Focus, LiveState, Panes
from tdx.tui.live.session_tab import SessionTab
from tdx.tui.live.styles import CSS
from tdx.tui.live.timeline import Timeline
from tdx.tui.live.top import LiveTop
from tdx.tui.live.value_table import ValueTable
from tdx.tui.searching import SearchLine, search_keys
from tdx.tui.workspace import ENV, Workspace

_MOST_EPISODES = 100


class LiveTab(SessionTab):
    """Steps the env of the workspace in a worker, and shows what is pushed.

    Args:
        workspace: the state of the app.
    """

    # Those of the search have their own way with a key that comes behind them.
    BINDINGS = [*keys.LIVE[:2], *search_keys("live"), *keys.LIVE[2:]]
    DEFAULT_CSS = CSS
    HELP = """## The live rollout

The env with its chain, stepped in a process of its own. `Space` runs and pauses, `s` makes a step,
`n` so many, `w` runs until a condition: `done`, `truncated`, `nan`, `spec`, or one on a key, such
as `reward > 0.5`. `i` chooses the action. All that happened lately is kept: the left and right keys
go back and on through it, `[` and `]` from episode to episode, `!` to the next trouble; `End`
follows what comes. `m` marks a step to compare others with, `d` shows the differences. `/` searches
the keys and stages; until `Escape` ends that, `n` and `N` go from match to match."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace, id="live-tab")
        self.link = Link(workspace, self._pushed, self.ended)
        self.state: LiveState | None = None
        self.facts: Facts | None = None
        self.rate: float | None = 20
        self.source, self.until = "random", None
        self.front: Pane = "values"
        self.curves: tuple[str, ...] = ("reward", "return")
        self.window: int | None = None
        self.rows = 1
        self._draft: Draft | None = None
        self._has_failed = False
        self._wanted: int | None = None
        self._seen = Seen()
        self._cell: EnvCell | None = None
        self._pipeline: Pipeline | None = None
        self._told = Panes()
        self._pixels = False
        self._said = ""
        self._debounce: Timer | None = None
        self.values, self.curve_pane = ValueTable(), CurvePane()
        self.pictures, self.episodes, self.hand = PicturePane(), EpisodeList(), HandPane()
        self.top, self.strip, self.timeline = LiveTop(id="live-top"), EnvStrip(), Timeline()

    def compose(self) -> ComposeResult:
        yield self.top
        yield self.strip
        yield SearchLine("the keys and stages")
        with Horizontal(id="live-choose"):
            for pane in PANES:
                yield Press(TITLES[pane], f"pane('{pane}')", id=f"show-{pane}", classes="-quiet")
        with Container(id="live-body"):
            with Vertical(id="live-main"):
                yield from (self.values, self.pictures)
            with Vertical(id="live-side"):
                yield from (self.curve_pane, self.episodes, self.hand)
        yield self.timeline

    def on_mount(self) -> None:
        for pane in self._panes.values():
            pane.add_class("live-pane")
        self.workspace.edited.subscribe(self, self.edited)
        self.workspace.selected.subscribe(self, lambda _: self._selected())
        self.set_interval(0.5, self.look_after)
        self.lay_out()

    def on_unmount(self) -> None:
        self.link.end()

    def on_show(self) -> None:
        is_new = self.state is None and not self._has_failed
        if is_new and not self.link.is_open and self.workspace.draft.env is not None:
            self.begin()
        self.call_after_refresh(self.tell_panes)

    def on_hide(self) -> None:
        self.tell_panes()

    def on_resize(self, event: events.Resize) -> None:
        self.lay_out()

    @property
    def _panes(self) -> dict[Pane, Widget]:
        return {
            "values": self.values,
            "curves": self.curve_pane,
            "pictures": self.pictures,
            "episodes": self.episodes,
            "hand": self.hand,
        }

    @property
    def home(self) -> Widget:
        return self._panes[self.front]

    # What comes from it

    def _pushed(self, topic: str, value: Any) -> None:
        if self.is_mounted:
            self._SHOWN[topic](self, value)

    def _show_facts(self, facts: Facts) -> None:
        self.facts, self.rows = facts, facts.rows
        self.hand.offer(facts.fields)
        if self.source == "hand":
            self.tell_action()
        self.lay_out()

    def _show_state(self, state: LiveState) -> None:
        before, self.state = self.state, state
        if state.shown == self._wanted or state.follows:
            self._wanted = None
        self.timeline.show(state)
        self.curve_pane.set_cursor(None if state.follows else state.shown)
        self.strip.set_focus(state.row, self.rows)
        self.hand.aim(state.row, self.rows)
        self.show_top()
        self.report(state.problem)
        if state.problem is not None:
            self.top.complain(state.problem)
        else:
            self.top.say(state.said or self._said)
        if state.doing == "running" and (before is None or before.doing != "running"):
            self._said = ""

    def _show_cells(self, cells: tuple[EnvCell, ...]) -> None:
        row = 0 if self.state is None or self.state.row is None else self.state.row
        self._cell = cells[row] if row < len(cells) else None
        self.strip.show(cells)

    def _show_view(self, view: TraceView) -> None:
        self._seen.add(view)
        self.values.show_view(view)

    def _show_pictures(self, pictures: tuple[Any, ...]) -> None:
        self._seen.add_pictures(pictures)
        self.pictures.show(pictures)
        if bool(pictures) != self._pixels:
            self._pixels = bool(pictures)
            self.lay_out()

    def _show_episodes(self, episodes: tuple[Any, ...]) -> None:
        self.episodes.show_episodes(episodes, batched=self.rows > 1)

    _SHOWN: ClassVar[dict[str, Callable[[LiveTab, Any], None]]] = {
        "facts": _show_facts,
        "state": _show_state,
        "cells": _show_cells,
        "pictures": _show_pictures,
        "episodes": _show_episodes,
        "view": _show_view,
        "curves": lambda self, curves: self.curve_pane.show(curves),
    }

    # How it looks

    def say(self, text: str) -> None:
        """Say something on the line below the head, until something else is to be said."""
        self._said = text
        self.top.say(text)

    def show_top(self) -> None:
        running = self.state is not None and self.state.doing == "running"
        self.top.show_settings(
            running=running, until=self.until, rate=self.rate, source=self.source
        )
        if self.state is not None and self.facts is not None:
            self.top.show_state(self.state, self._cell, self.facts.max_bytes)

    def lay_out(self) -> None:
        """Show what there is room for."""
        if not self.is_mounted:
            return
        width, height = self.size
        by_hand = self.source == "hand"
        found = arranged(width, height, self.front, pixels=self._pixels, by_hand=by_hand)
        for form in ("broad", "middle", "slim"):
            self.set_class(found.form == form, f"-{form}")
            self.top.set_class(found.form == form, f"-{form}")
        self.set_class("hand" in found.shown, "-small-side")
        for name, pane in self._panes.items():
            pane.display = name in found.shown
            self.query_one(f"#show-{name}").set_class(name in found.shown, "-on")
        self.query_one("#live-main").display = bool(found.shown & {"values", "pictures"})
        self.query_one("#live-side").display = bool(found.shown - {"values", "pictures"})
        self.strip.display = self.rows > 1
        self.show_top()
        self.call_after_refresh(self.tell_panes)

    def tell_panes(self) -> None:
        """Tell the worker what there is room for, so that it sends no more."""
        panes = Panes()
        if self.is_on_screen:
            shown = {name for name, pane in self._panes.items() if pane.display}
            width, height = self.pictures.room() if "pictures" in shown else (8, 8)
            panes = Panes(
                curves=self.curves if "curves" in shown else (),
                parts=max(2, 2 * self.curve_pane.plot_width),
                window=self.window,
                width=max(width, 8),
                height=max(height, 8),
                episodes=_MOST_EPISODES if "episodes" in shown else 0,
                cells=256 if self.rows > 1 else 1,
            )
        if panes != self._told and self.link.is_open:
            self._told = panes
            self.link.tell(panes)

    def _selected(self) -> None:
        """Go to what the selected stage did."""
        stage = None if self.workspace.stage is None else self.workspace.place
        if self.is_on_screen:
            self.values.go_to_stage(ENV if stage is None else stage)
        self.pictures.set_stage(stage)

    # What the panes say

    @on(Timeline.Scrubbed)
    def _scrubbed(self, event: Timeline.Scrubbed) -> None:
        event.stop()
        self.scrub_to(event.index)

    @on(CurvePane.Picked)
    def _picked(self, event: CurvePane.Picked) -> None:
        event.stop()
        self.scrub_to(event.index)

    @on(EnvStrip.Picked)
    def _env_picked(self, event: EnvStrip.Picked) -> None:
        event.stop()
        self.link.tell(Focus(event.row))

    @on(HandPane.Changed)
    def _hand_changed(self, event: HandPane.Changed) -> None:
        event.stop()
        if self.source == "hand":
            self.tell_action()
        else:
            self.set_source("hand")

    @on(Lines.Opened)
    def _opened(self, event: Lines.Opened) -> None:
        event.stop()
        if event.lines is self.episodes:
            episode = self.episodes.at(event.at)
            if episode is not None:
                self.scrub_to(episode.first)
        elif event.lines is self.values and self.values.key is not None:
            self.toggle_curve(self.values.key)
