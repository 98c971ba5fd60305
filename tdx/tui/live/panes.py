"""The header and the panes of the Live tab: what they show, and which of them have room."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Literal, get_args

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from tdx.foundation.keys import format_key
from tdx.foundation.text import format_bytes
from tdx.inspection.live.views import EnvCell, ImageView
from tdx.inspection.overview import Problem
from tdx.tui.line_widgets import ElidedStatic
from tdx.tui.live.history import EnvStrip, EpisodeList, Timeline
from tdx.tui.live.images import FIRST_ZOOM, ImagePane
from tdx.tui.live.manual_action import ManualActionPane
from tdx.tui.live.messages import LiveState, SessionInfo, SetPanes
from tdx.tui.live.plots import PlotPane
from tdx.tui.live.values import ValueTable

Pane = Literal["values", "plots", "images", "episodes", "manual"]
Form = Literal["broad", "middle", "slim"]
PANES: tuple[Pane, ...] = ("values", "plots", "images", "episodes", "manual")
_BROAD_SIZE = (92, 20)
_PICTURES_WIDTH = 84
"""Width at which images have room beside the values."""
_TALL_HEIGHT = 24
_SHORT_HEIGHT = 16
"""Height at which a pane of a few lines has room below the values."""
_ONE_BAR_WIDTH = 76
_NARROW_WIDTH = 44
_TALL_IMAGES = 32
"""Height at which images have room beside the values and another pane."""


def arrange_panes(
    width: int,
    height: int,
    front: Pane,
    *,
    has_images: bool,
    is_manual: bool,
    is_short: bool = False,
) -> tuple[Form, set[Pane]]:
    """Choose the panes that have room; the one in front is shown in any case.

    The form is ``broad`` with the values next to the others, ``middle`` with one more pane below
    them, the images if there are any, or ``slim`` with one pane. Images in front have all the room.
    ``is_short``: the pane in front needs a few lines only.

    Example:
        >>> sorted(arrange_panes(50, 20, "plots", has_images=False, is_manual=False)[1])
        ['plots']
        >>> sorted(arrange_panes(50, 40, "plots", has_images=False, is_manual=False)[1])
        ['plots', 'values']
        >>> sorted(arrange_panes(50, 40, "values", has_images=True, is_manual=False)[1])
        ['images', 'values']
    """
    if front == "images" and has_images:
        return "slim", {front}
    images: set[Pane] = {"images"} if has_images else set()
    if width >= (_PICTURES_WIDTH if has_images else _BROAD_SIZE[0]) and height >= _BROAD_SIZE[1]:
        shown: set[Pane] = {"values", "plots", "episodes", front}
        shown |= images
        return "broad", shown | {"manual"} if is_manual else shown
    if height >= (_SHORT_HEIGHT if is_short else _TALL_HEIGHT):
        second: Pane = front
        if front == "values":
            second = "images" if has_images else "plots"
        shown = {"values", second}
        return "middle", shown | images if height >= _TALL_IMAGES else shown
    return "slim", {front}


class ActionLabel(Static):
    """Clickable text that runs an action of the tab; it takes no focus, as the action has a key."""

    DEFAULT_CSS = """
    ActionLabel {
        width: auto;
        height: 1;
        padding: 0 1;
        margin-right: 1;
        background: $panel;
        &:hover { background: $primary 40%; }
        &.-on { background: $primary 40%; text-style: bold; }
        &.-quiet { background: transparent; color: $text-muted; padding: 0; }
        &.-quiet.-on { color: $text-primary; text-style: bold underline; }
    }
    """

    def __init__(
        self, text: str, action: str, *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(text, id=id, classes=classes, markup=False)
        self._action = action

    async def on_click(self) -> None:
        tab = next(ancestor for ancestor in self.ancestors if ancestor.id == "live-tab")
        await self.app.run_action(self._action, tab)


def header_text(state: LiveState, cell: EnvCell | None, max_bytes: int, width: int) -> Content:
    """Return the figures of a session, as many as fit."""
    if state.status == "running":
        speed = f"{state.speed:.0f} steps/s" if state.speed else "running"
        sign = Content.assemble(("▶ ", "bold $text-success"), speed)
    elif state.status == "ended":
        sign = Content.assemble(("■ ", "bold $text-error"), "ended")
    else:
        sign = Content.assemble(("‖ ", "bold $text-accent"), "paused")
    parts = [sign, Content(f"step {state.steps:,}")]
    if state.problem_traces:
        parts.append(Content.styled(f"✕ {len(state.problem_traces)}", "bold $text-error"))
    if state.status != "ended":
        size = f"{format_bytes(state.nbytes)} of {format_bytes(max_bytes)}"
        parts.append(Content.assemble(("history ", "dim"), size))
    if cell is not None and cell.total is not None:
        parts.append(Content.assemble(("return ", "dim"), f"{cell.total:.4g}"))
    if state.status != "ended":
        count = state.last - state.first + 1
        parts.append(Content.assemble(f"{count:,}", (" trace" if count == 1 else " traces", "dim")))
    if cell is not None:
        parts.append(Content.assemble(("this episode ", "dim"), f"{cell.steps:,} steps"))
    shown = [parts[0]]
    left = width - parts[0].cell_length
    for part in parts[1:]:
        left -= part.cell_length + 3
        if left < 0:
            break
        shown.append(part)
    return Content.styled(" · ", "dim").join(shown)


class LiveHeader(Vertical):
    """Shows the session; a click on a label runs an action of the tab."""

    DEFAULT_CSS = """
    LiveHeader {
        height: auto;
        #live-head { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        #live-note { height: auto; max-height: 4; display: none; }
        #live-bars { height: auto; layout: vertical; }
        .live-bar { height: 1; width: 1fr; }
        #live-rate { width: auto; padding: 0 1; }
        #live-replay { height: 1; display: none; }
        .-joined { margin-right: 0; }
        &.-one-bar #live-bars { layout: horizontal; height: 1; }
        &.-one-bar .live-bar { width: auto; }
        &.-compared #live-replay { display: block; }
        &.-compared.-short #live-bars { display: none; }
        &.-compared.-short #live-note { max-height: 5; }
    }
    """

    _settings: tuple[object, ...] = ()
    _message: object = None

    def compose(self) -> ComposeResult:
        yield Static("", id="live-head")
        with Container(id="live-bars"):
            with Horizontal(classes="live-bar"):
                yield ActionLabel("▶ run", "run", id="live-run")
                yield ActionLabel("step", "steps(1)", id="live-step")
                yield ActionLabel("n", "steps", id="live-n")
                yield ActionLabel("reset", "reset", id="live-reset")
                yield ActionLabel("until …", "until", id="live-until")
            with Horizontal(classes="live-bar"):
                yield ActionLabel("-", "rate(-1)", id="live-slower", classes="-joined")
                yield Static("", id="live-rate")
                yield ActionLabel("+", "rate(1)", id="live-faster")
                yield ActionLabel("", "source", id="live-source")
        yield ElidedStatic("", id="live-note")
        with Horizontal(id="live-replay"):
            yield ActionLabel("Y keep", "keep")
            yield ActionLabel("u undo", "screen.undo")
            yield ActionLabel("B branch", "branch")

    def show_state(self, state: LiveState, cell: EnvCell | None, max_bytes: int) -> None:
        """Show the figures of the session."""
        text = header_text(state, cell, max_bytes, self.size.width)
        self.query_one("#live-head", Static).update(text, layout=False)

    def show_settings(
        self, is_running: bool, stop_condition: str | None, rate: float | None, action_source: str
    ) -> None:
        """Show the settings; lay out the labels only if they have changed."""
        settings = (is_running, stop_condition, rate, action_source)
        if settings == self._settings:
            return
        self._settings = settings
        run = self.query_one("#live-run", ActionLabel)
        run.update("‖ pause" if is_running else "▶ run")
        run.set_class(is_running, "-on")
        condition = self.query_one("#live-until", ActionLabel)
        condition.update(f"until {stop_condition}" if stop_condition else "until …")
        condition.set_class(stop_condition is not None, "-on")
        speed = "full speed" if rate is None else f"{rate:g} steps/s"
        self.query_one("#live-rate", Static).update(speed)
        self.query_one("#live-source", ActionLabel).update(f"action: {action_source}")

    def show_message(self, text: str) -> None:
        """Show a message. Empty: show none."""
        content = Content.assemble(("■ ", "$text-accent"), text) if text else None
        self._show_note(text, content)

    def show_problem(self, problem: Problem) -> None:
        """Show a problem with its hint."""
        stage, name = problem.where.stage, problem.where.transform or problem.where.env
        key = "" if problem.where.key is None else f", {format_key(problem.where.key)}"
        place = "" if name is None else f"{name}: " if stage is None else f"{stage} {name}{key}: "
        origin = f" · {problem.origin}" if problem.origin else ""
        hint = f"\n  → {problem.hint}" if problem.hint else ""
        message = (problem.message, origin, (hint, "dim"))
        content = Content.assemble(("✕ ", "bold $error"), (place, "bold"), *message)
        self._show_note(problem, content)

    def _show_note(self, key: object, content: Content | None) -> None:
        if key == self._message:
            return
        self._message = key
        note = self.query_one("#live-note", Static)
        note.display = content is not None
        if content is not None:
            note.update(content)


MAX_PLOTS = 4
PLOT_WINDOWS: tuple[int | None, ...] = (None, 1000, 200, 50)
"""Number of latest traces in a plot. ``None``: all of them."""
_MAX_EPISODES = 100
_MAX_ENV_CELLS = 256
_FEW_EPISODES = 5
"""Maximum height of the episodes beside images."""


class LivePanes:
    """The widgets of the Live tab."""

    def __init__(self) -> None:
        self.header, self.envs, self.timeline = LiveHeader(id="live-top"), EnvStrip(), Timeline()
        self.values, self.images, self.plots = ValueTable(), ImagePane(), PlotPane()
        self.episodes, self.manual = EpisodeList(), ManualActionPane()
        widgets = (self.values, self.plots, self.images, self.episodes, self.manual)
        self.by_name: dict[Pane, Widget] = dict(zip(PANES, widgets, strict=True))
        for widget in widgets:
            widget.add_class("live-pane", update=False)
        self.envs.display = False  # until there is a batch
        self.front: Pane = "values"
        self.chosen_plots: tuple[str, ...] | None = None
        self.default_plots: tuple[str, ...] = ()
        self.window: int | None = None
        self._env_cell: EnvCell | None = None
        self._has_images = self._is_compared = False
        self._differing: str | None = None  # the key that differs first

    def show_state(self, state: LiveState, num_envs: int, *, is_edit: bool) -> bool:
        """Show where the session is in its history; return True if a comparison begins or ends.

        ``is_edit``: the earlier rollout is the one before an edit.
        """
        self.timeline.show(state)
        self.values.set_first_differences(dict(state.differences or ()))
        self.plots.set_cursor(None if state.follows_latest else state.shown)
        self.envs.set_focus(state.row, num_envs)
        self.manual.set_target(state.row, num_envs)
        differences = state.differences if is_edit and state.is_earlier else ()
        before = self._is_compared, self._differing
        self._is_compared = bool(differences)
        names = [name for name, _ in sorted(differences or (), key=itemgetter(1))]
        self._differing = next((name for name in names if name in state.plot_names), None)
        if self._is_compared != before[0]:
            self.header.set_class(self._is_compared, "-compared")
            self.values.set_difference(self._is_compared)
        return (self._is_compared, self._differing) != before

    def show_header(self, state: LiveState | None, info: SessionInfo | None) -> None:
        """Show the status and the figures of the session."""
        if state is not None and info is not None:
            self.header.show_state(state, self._env_cell, info.max_bytes)

    def show_env_cells(self, cells: Sequence[EnvCell], row: int | None) -> None:
        """Show the envs of a batch, and the figures of the one in focus."""
        row = row or 0
        self._env_cell = cells[row] if row < len(cells) else None
        self.envs.show(cells)

    def show_images(self, images: Sequence[ImageView]) -> bool:
        """Show the images of a trace; return True if their pane has appeared or disappeared."""
        self.images.show(images)
        is_changed = bool(images) != self._has_images
        self._has_images = bool(images)
        return is_changed

    @property
    def plot_names(self) -> tuple[str, ...]:
        """Names of the plots."""
        return self.default_plots if self.chosen_plots is None else self.chosen_plots

    def toggle_plot(self, name: str) -> None:
        """Add a plot, or remove it; the oldest one is replaced if there are too many."""
        if name in self.plot_names:
            self.chosen_plots = tuple(plot for plot in self.plot_names if plot != name)
        else:
            self.chosen_plots = (*self.plot_names, name)[-MAX_PLOTS:]
        if self.front != "values":
            self.front = "plots"

    def arrange(self, tab: Widget, *, is_manual: bool, num_envs: int) -> None:
        """Display the panes that have room."""
        width, height = tab.size
        front = self.front
        form, shown = arrange_panes(
            width,
            height,
            front,
            has_images=self._has_images,
            is_manual=is_manual,
            is_short=self.plots.is_flat if front == "plots" else front in ("episodes", "manual"),
        )
        has_images = "images" in shown
        forms = {f"-{name}": form == name for name in get_args(Form)}
        # One change of classes: each restyles the whole tab.
        is_narrow = width < _NARROW_WIDTH
        tab.update_classes({**forms, "-pictures": has_images, "-narrow": is_narrow})
        self.header.set_class(width >= _ONE_BAR_WIDTH, "-one-bar")
        self.header.set_class(height < _TALL_HEIGHT, "-short")
        for pane, widget in self.by_name.items():
            widget.display = pane in shown
            tab.query_one(f"#show-{pane}").set_class(pane in shown, "-on")
        tab.query_one("#show-episodes", ActionLabel).update("epis." if is_narrow else "episodes")
        side = tab.query_one("#live-side")
        side.display = bool(shown - {"values"})
        # Plots and episodes leave room that they do not need to images and values.
        is_short = form == "middle" or (form == "broad" and (has_images or self.plots.is_flat))
        self.plots.styles.height = self.plots.wanted_height if is_short else None
        self.episodes.styles.max_height = _FEW_EPISODES if has_images else None
        side.styles.height = "auto" if form == "middle" and not has_images else None
        self.envs.display = num_envs > 1

    def required_views(self, num_envs: int) -> SetPanes:
        """Return what the worker should send for the panes that are displayed."""
        shown = {name for name, pane in self.by_name.items() if pane.display}
        names = self.plot_names
        if self._differing is not None and self._differing not in names:
            names = (self._differing, *names)[:MAX_PLOTS]
        return SetPanes(
            plots=names if "plots" in shown else (),
            parts=max(2, 2 * self.plots.plot_width),
            window=self.window,
            zoom=self.images.zoom if "images" in shown else FIRST_ZOOM,
            episodes=_MAX_EPISODES if "episodes" in shown else 0,
            cells=_MAX_ENV_CELLS if num_envs > 1 else 1,
        )
