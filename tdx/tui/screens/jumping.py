"""Jump mode: a letter on everything that can have the focus."""

from __future__ import annotations

from collections.abc import Mapping

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Label

LETTERS = "asdfghjklqwertyuiopzxcvbnm"


class JumpScreen(ModalScreen[Widget | None]):
    """Returns the widget whose letter is pressed.

    Args:
        targets: the widgets.
    """

    def __init__(self, targets: list[Widget]) -> None:
        super().__init__()
        self.targets: Mapping[str, Widget] = dict(zip(LETTERS, targets, strict=False))

    def compose(self) -> ComposeResult:
        for letter, widget in self.targets.items():
            label = Label(f" {letter} ", classes="jump-label")
            label.styles.offset = (widget.region.x, widget.region.y)
            yield label

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss(self.targets.get(event.key))

    def on_click(self) -> None:
        self.dismiss(None)
