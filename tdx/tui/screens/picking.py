"""Choose some of the keys that are there."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import SelectionList, Static


class PickScreen(ModalScreen[list[str] | None]):
    """Returns what is ticked, or none.

    Args:
        title: what is asked.
        offers: what there is.
        chosen: what is ticked at first; what is not offered is offered too.
    """

    BINDINGS = [
        Binding("escape", "dismiss(None)", "back", id="pick.back"),
        Binding("enter", "accept", "take", id="pick.accept", priority=True),
    ]

    def __init__(self, title: str, offers: Sequence[str], chosen: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._offers = list(dict.fromkeys([*offers, *chosen]))
        self._chosen = set(chosen)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -small") as dialog:
            dialog.border_title = self._title
            yield SelectionList[str](
                *((offer, offer, offer in self._chosen) for offer in self._offers), compact=True
            )
            yield Static("Space ticks, Enter takes, Escape leaves", id="choose-note")

    def on_mount(self) -> None:
        self.query_one(SelectionList).focus()

    def action_accept(self) -> None:
        ticked = self.query_one(SelectionList).selected
        self.dismiss([offer for offer in self._offers if offer in ticked])
