"""A text to read and to scroll: help, details of an error, a pipeline to copy."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Markdown, Static


class ReadScreen(ModalScreen[None]):
    """Shows a text until a key closes it.

    Args:
        title: what it is.
        text: the text.
        markdown: whether it is Markdown.
    """

    BINDINGS = [Binding("escape,q,f1,enter", "dismiss", "back", id="read.back", key_display="esc")]

    def __init__(self, title: str, text: str, *, markdown: bool = False) -> None:
        super().__init__()
        self._title = title
        self.text = text
        self._markdown = markdown

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            dialog.border_subtitle = "Esc closes"
            with VerticalScroll():
                yield Markdown(self.text) if self._markdown else Static(Content(self.text))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
