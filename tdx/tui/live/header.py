"""Header of the Live tab: session state, clickable commands and messages."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from tdx.inspection.live.views import EnvCell
from tdx.inspection.overview import Problem
from tdx.keys import format_key
from tdx.tui.live.messages import LiveState


class ActionLabel(Static):
    """Clickable text that runs an action of the tab; it takes no focus, as the action has a key.

    Args:
        text: Text.
        action: Action of the tab.
        id: Widget id.
    """

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
        tab = next(each for each in self.ancestors if each.id == "live-tab")
        await self.app.run_action(self._action, tab)


_MEGA = 2**20


def header_text(state: LiveState, cell: EnvCell | None, max_bytes: int, width: int) -> Content:
    """Return the figures of a session, as many as fit."""
    if state.status == "running":
        sign = Content.assemble(("▶ ", "bold $text-success"), f"{state.speed:.0f} steps/s")
    elif state.status == "ended":
        sign = Content.assemble(("■ ", "bold $text-error"), "ended")
    else:
        sign = Content.assemble(("‖ ", "bold $text-accent"), "paused")
    parts = [sign, Content(f"step {state.steps:,}")]
    if state.problem_traces:
        parts.append(Content.styled(f"✕ {len(state.problem_traces)}", "bold $text-error"))
    if state.status != "ended":
        size = f"{_format_size(state.nbytes)} of {_format_size(max_bytes)}"
        parts.append(Content.assemble(("memory ", "dim"), size))
    if cell is not None:
        parts.append(Content.assemble(("return ", "dim"), f"{cell.total:.4g}"))
    if state.status != "ended":
        parts.append(Content.assemble(f"{state.last - state.first + 1:,}", (" traces", "dim")))
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


def problem_text(problem: Problem) -> Content:
    """Return a problem with its hint."""
    stage, name = problem.where.stage, problem.where.transform or problem.where.env
    key = "" if problem.where.key is None else f", {format_key(problem.where.key)}"
    place = "" if name is None else f"{name}: " if stage is None else f"{stage} {name}{key}: "
    origin = f" · {problem.origin}" if problem.origin else ""
    hint = f"\n  → {problem.hint}" if problem.hint else ""
    message = (problem.message, origin, (hint, "dim"))
    return Content.assemble(("✕ ", "bold $error"), (place, "bold"), *message)


def message_text(message: str) -> Content:
    """Return a message, such as why a run has stopped."""
    return Content.assemble(("■ ", "$text-accent"), message)


def _format_size(nbytes: int) -> str:
    if nbytes < _MEGA:
        return f"{nbytes / 1024:.0f} kB"
    return f"{nbytes / _MEGA:.1f} MB" if nbytes < 100 * _MEGA else f"{nbytes // _MEGA} MB"


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
        .-joined { margin-right: 0; }
        &.-broad #live-bars { layout: horizontal; height: 1; }
        &.-broad .live-bar { width: auto; }
    }
    """

    _settings: tuple[object, ...] = ()
    _message: object = None

    def compose(self) -> ComposeResult:
        yield Static("", id="live-head")
        with Container(id="live-bars"):
            with Horizontal(classes="live-bar"):
                yield ActionLabel("▶ run", "run", id="live-run")
                yield ActionLabel("step", "step", id="live-step")
                yield ActionLabel("n", "steps", id="live-n")
                yield ActionLabel("reset", "reset", id="live-reset")
                yield ActionLabel("until …", "until", id="live-until")
            with Horizontal(classes="live-bar"):
                yield ActionLabel("-", "rate(-1)", id="live-slower", classes="-joined")
                yield Static("", id="live-rate")
                yield ActionLabel("+", "rate(1)", id="live-faster")
                yield ActionLabel("", "source", id="live-source")
        yield Static("", id="live-note")

    def show_state(self, state: LiveState, cell: EnvCell | None, max_bytes: int) -> None:
        """Show the figures of the session."""
        text = header_text(state, cell, max_bytes, self.size.width)
        self.query_one("#live-head", Static).update(text, layout=False)

    def show_settings(
        self,
        *,
        is_running: bool,
        stop_condition: str | None,
        rate: float | None,
        action_source: str,
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
        self._show_note(text, message_text(text) if text else None)

    def show_problem(self, problem: Problem) -> None:
        """Show a problem."""
        self._show_note(problem, problem_text(problem))

    def _show_note(self, key: object, content: Content | None) -> None:
        if key == self._message:
            return
        self._message = key
        note = self.query_one("#live-note", Static)
        note.display = content is not None
        if content is not None:
            note.update(content)
