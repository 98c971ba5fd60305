"""The panes of the Live tab: which of them have room, and what they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.widget import Widget

from tdx.inspection.live.views import EnvCell, TraceView
from tdx.tui.live.header import LiveHeader
from tdx.tui.live.history import EnvStrip, EpisodeList, Timeline
from tdx.tui.live.images import ImagePane
from tdx.tui.live.layout import Pane, arrange_panes
from tdx.tui.live.manual_action import ManualActionPane
from tdx.tui.live.messages import LiveState, SessionInfo, SetPanes
from tdx.tui.live.plots import PlotPane
from tdx.tui.live.values import ValueTable
from tdx.tui.workspace import ENV

MAX_PLOTS = 4
PLOT_WINDOWS: tuple[int | None, ...] = (None, 1000, 200, 50)
"""Number of latest traces in a plot. ``None``: all of them."""
_MAX_EPISODES = 100
_MAX_ENV_CELLS = 256
_MIN_IMAGE_SIZE = 8
_MAIN_PANES = {"values", "images"}


class LivePanes:
    """The widgets of the Live tab.

    Attributes:
        front: Pane that is visible in any case.
        plot_names: Names of the plots.
        window: Number of latest traces in a plot. ``None``: all of them.
    """

    def __init__(self) -> None:
        self.header, self.envs, self.timeline = LiveHeader(id="live-top"), EnvStrip(), Timeline()
        self.values, self.images, self.plots = ValueTable(), ImagePane(), PlotPane()
        self.episodes, self.manual = EpisodeList(), ManualActionPane()
        self.by_name: dict[Pane, Widget] = {
            "values": self.values,
            "plots": self.plots,
            "images": self.images,
            "episodes": self.episodes,
            "manual": self.manual,
        }
        self.front: Pane = "values"
        self.plot_names: tuple[str, ...] = ("reward", "return")
        self.window: int | None = None
        self._env_cell: EnvCell | None = None
        self._has_images = False

    @property
    def front_widget(self) -> Widget:
        """The widget of the front pane."""
        return self.by_name[self.front]

    # What is shown

    def show_state(self, state: LiveState, num_envs: int) -> None:
        """Show where the session is in its history."""
        self.timeline.show(state)
        self.plots.set_cursor(None if state.follows_latest else state.shown)
        self.envs.set_focus(state.row, num_envs)
        self.manual.set_target(state.row, num_envs)

    def show_header(self, state: LiveState | None, info: SessionInfo | None) -> None:
        """Show the status and the figures of the session."""
        if state is not None and info is not None:
            self.header.show_state(state, self._env_cell, info.max_bytes)

    def show_env_cells(self, cells: Sequence[EnvCell], row: int | None) -> None:
        """Show the envs of a batch.

        Args:
            cells: One cell for each env.
            row: Env in focus. ``None``: all of them.
        """
        row = row or 0
        self._env_cell = cells[row] if row < len(cells) else None
        self.envs.show(cells)

    def show_trace(self, view: TraceView) -> None:
        """Show the values of a trace."""
        self.values.show_view(view)

    def show_images(self, images: Sequence[Any]) -> bool:
        """Show the images of a trace; return True if their pane has appeared or disappeared."""
        self.images.show(images)
        is_changed = bool(images) != self._has_images
        self._has_images = bool(images)
        return is_changed

    def select_stage(self, stage: int | None, *, is_visible: bool) -> None:
        """Scroll to what a stage wrote.

        Args:
            stage: Position of the stage. ``None``: the env.
            is_visible: True if the tab is visible.
        """
        if is_visible:
            self.values.go_to_stage(ENV if stage is None else stage)
        self.images.set_stage(stage)

    def toggle_plot(self, name: str) -> None:
        """Add a plot, or remove it; the oldest one is replaced if there are too many."""
        if name in self.plot_names:
            self.plot_names = tuple(each for each in self.plot_names if each != name)
        else:
            self.plot_names = (*self.plot_names, name)[-MAX_PLOTS:]
        if self.front != "values":
            self.front = "plots"

    def next_window(self) -> None:
        """Use the next plot window."""
        self.window = PLOT_WINDOWS[(PLOT_WINDOWS.index(self.window) + 1) % len(PLOT_WINDOWS)]

    # Layout

    def arrange(self, tab: Widget, *, is_manual: bool, num_envs: int) -> None:
        """Display the panes that have room.

        Args:
            tab: The tab; its size decides.
            is_manual: True if actions are set by hand.
            num_envs: Number of envs in the batch.
        """
        width, height = tab.size
        arrangement = arrange_panes(
            width, height, self.front, has_images=self._has_images, is_manual=is_manual
        )
        for form in ("broad", "middle", "slim"):
            tab.set_class(arrangement.form == form, f"-{form}")
            self.header.set_class(arrangement.form == form, f"-{form}")
        shown = arrangement.shown
        tab.set_class("manual" in shown, "-small-side")
        for name, pane in self.by_name.items():
            pane.display = name in shown
            tab.query_one(f"#show-{name}").set_class(name in shown, "-on")
        tab.query_one("#live-main").display = bool(shown & _MAIN_PANES)
        tab.query_one("#live-side").display = bool(shown - _MAIN_PANES)
        self.envs.display = num_envs > 1

    def required_views(self, num_envs: int) -> SetPanes:
        """Return what the worker should send for the panes that are displayed."""
        shown = {name for name, pane in self.by_name.items() if pane.display}
        smallest = (_MIN_IMAGE_SIZE, _MIN_IMAGE_SIZE)
        width, height = self.images.max_image_size() if "images" in shown else smallest
        return SetPanes(
            plots=self.plot_names if "plots" in shown else (),
            parts=max(2, 2 * self.plots.plot_width),
            window=self.window,
            width=max(width, _MIN_IMAGE_SIZE),
            height=max(height, _MIN_IMAGE_SIZE),
            episodes=_MAX_EPISODES if "episodes" in shown else 0,
            cells=_MAX_ENV_CELLS if num_envs > 1 else 1,
        )
