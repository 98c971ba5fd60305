"""The line above the table: what is measured, and how."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.widgets import Button, Input, Static

from tdx.tui.profile.asking import Settings
from tdx.tui.profile.lines import TITLES, Shown
from tdx.tui.profile.requests import EXTRAS, Extra

STEPS, REPEATS = 1000, 5


class ProfileBar(Container):
    """Buttons and fields; the tab listens to them."""

    def __init__(self) -> None:
        super().__init__(id="profile-bar")

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Button("Run", "primary", id="profile-run", compact=True)
            yield Button("planned", id="profile-mode", compact=True)
            yield _number_box("profile-steps", STEPS)
            yield Static("×", id="profile-times")
            yield _number_box("profile-repeats", REPEATS)
        with Horizontal():
            for name in EXTRAS:
                button = Button(f"○ {name}", id=f"profile-{name}-too", compact=True)
                button.styles.line_pad = 0
                yield button
            yield Button("advice", id="profile-advice", compact=True)

    def show_running(self, runs: bool) -> None:
        """Let the first button stop what runs."""
        button = self.query_one("#profile-run", Button)
        button.label = "Stop" if runs else "Run"
        button.variant = "error" if runs else "primary"

    def show_mode(self, wanted: Shown) -> None:
        """Say which modes are wanted."""
        self.query_one("#profile-mode", Button).label = TITLES.get(wanted, wanted)

    def show_extra(self, name: Extra, is_on: bool) -> None:
        """Say whether something is measured besides time."""
        button = self.query_one(f"#profile-{name}-too", Button)
        button.label = f"{'●' if is_on else '○'} {name}"
        button.set_class(is_on, "-on")

    @property
    def settings(self) -> Settings:
        """How long is measured."""
        return Settings(self._number("steps", STEPS), self._number("repeats", REPEATS))

    def _number(self, name: str, otherwise: int) -> int:
        text = self.query_one(f"#profile-{name}", Input).value
        return int(text) if text.isdecimal() and int(text) else otherwise


def _number_box(name: str, otherwise: int) -> Input:
    """A field for a number; an empty one stands for the usual number, which is seen in it."""
    return Input(str(otherwise), type="integer", id=name, compact=True, placeholder=str(otherwise))
