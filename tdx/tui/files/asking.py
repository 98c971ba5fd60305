"""A question with a few answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Args:
        id: what is returned.
        text: what stands on it; its first letter chooses it.
        harms: whether something is lost by it.
    """

    id: str
    text: str
    harms: bool = False

    @property
    def key(self) -> str:
        """The letter that chooses it."""
        return self.text[0].lower()


class AskScreen(ModalScreen[str | None]):
    """Returns the id of the answer, or none.

    Args:
        title: the question.
        text: what one should know.
        replies: the answers, each with another first letter; the first one has the focus.
    """

    BINDINGS = [
        Binding("escape", "dismiss(None)", "back", id="ask.back"),
        Binding("left,up", "app.focus_previous", "before", show=False),
        Binding("right,down", "app.focus_next", "after", show=False),
    ]

    def __init__(self, title: str, text: str, replies: Sequence[Reply]) -> None:
        super().__init__()
        self._title, self._text = title, text
        self._replies = list(replies)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -small") as dialog:
            dialog.border_title = Content(self._title)
            dialog.border_subtitle = "Esc goes back"
            yield Static(Content(self._text), classes="ask-text")
            with Horizontal(classes="ask-replies"):
                for reply in self._replies:
                    label = Content.assemble((reply.text[0], "underline"), reply.text[1:])
                    classes = "-harms" if reply.harms else ""
                    yield Button(label, id=f"ask-{reply.id}", classes=classes, compact=True)

    def on_mount(self) -> None:
        self.query(Button).first().focus()

    def on_key(self, event: events.Key) -> None:
        for reply in self._replies:
            if event.key == reply.key:
                event.stop()
                self.dismiss(reply.id)
                return

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss((event.button.id or "").removeprefix("ask-"))
