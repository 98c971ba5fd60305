"""The lines on top of the tab: where the session stands, what can be clicked, what is said."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from tdx.inspection.live.views import EnvCell
from tdx.inspection.overview import Problem
from tdx.tui.live.head import head, problem_note, said_note
from tdx.tui.live.press import Press
from tdx.tui.live.requests import LiveState


class LiveTop(Vertical):
    """Shows what it is told; a click on it runs an action of the tab."""

    DEFAULT_CSS = """
    LiveTop {
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
    _said: object = None

    def compose(self) -> ComposeResult:
        yield Static("", id="live-head")
        with Container(id="live-bars"):
            with Horizontal(classes="live-bar"):
                yield Press("▶ run", "run", id="live-run")
                yield Press("step", "step", id="live-step")
                yield Press("n", "steps", id="live-n")
                yield Press("reset", "reset", id="live-reset")
                yield Press("until …", "until", id="live-until")
            with Horizontal(classes="live-bar"):
                yield Press("-", "rate(-1)", id="live-slower", classes="-joined")
                yield Static("", id="live-rate")
                yield Press("+", "rate(1)", id="live-faster")
                yield Press("", "source", id="live-source")
        yield Static("", id="live-note")

    def show_state(self, state: LiveState, cell: EnvCell | None, max_bytes: int) -> None:
        """Say where the session stands."""
        text = head(state, cell, max_bytes, self.size.width)
        self.query_one("#live-head", Static).update(text, layout=False)

    def show_settings(
        self, *, running: bool, until: str | None, rate: float | None, source: str
    ) -> None:
        """Say how it is set; the words are laid out anew only where they are others."""
        settings = (running, until, rate, source)
        if settings == self._settings:
            return
        self._settings = settings
        run = self.query_one("#live-run", Press)
        run.update("‖ pause" if running else "▶ run")
        run.set_class(running, "-on")
        condition = self.query_one("#live-until", Press)
        condition.update(f"until {until}" if until else "until …")
        condition.set_class(until is not None, "-on")
        speed = "full speed" if rate is None else f"{rate:g} steps/s"
        self.query_one("#live-rate", Static).update(speed)
        self.query_one("#live-source", Press).update(f"action: {source}")

    def say(self, text: str) -> None:
        """Say something, or nothing any more."""
        self._note(text, said_note(text) if text else None)

    def complain(self, problem: Problem) -> None:
        """Say what is wrong."""
        self._note(problem, problem_note(problem))

    def _note(self, said: object, content: Content | None) -> None:
        if said == self._said:
            return
        self._said = said
        note = self.query_one("#live-note", Static)
        note.display = content is not None
        if content is not None:
            note.update(content)
