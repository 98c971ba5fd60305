"""A list to choose one thing from, with a search field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tdx.pipeline.editing.fuzzy import fuzzy_sorted

MOST_SHOWN = 400
_FEW = 8
"""Choices up to which the dialog is no higher than they need."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to choose.

    Args:
        id: what is returned.
        text: what is searched and shown.
        note: what stands behind it.
    """

    id: str
    text: str
    note: str = ""


class ChooseScreen(ModalScreen[str | None]):
    """Returns the id of what is chosen, or none.

    Args:
        title: what is asked.
        choices: what there is; more can be given later by :meth:`offer`.
        free: whether what is typed may be taken as it is, where nothing matches.
        is_whole: says of what is typed whether it is taken as it is, whatever matches.
    """

    BINDINGS = [
        Binding("escape", "dismiss(None)", "back", id="choose.back"),
        Binding("down", "walk(1)", "down", show=False),
        Binding("up", "walk(-1)", "up", show=False),
        Binding("pagedown", "walk(10)", "page down", show=False),
        Binding("pageup", "walk(-10)", "page up", show=False),
    ]

    def __init__(
        self,
        title: str,
        choices: Sequence[Choice] = (),
        *,
        free: bool = False,
        is_whole: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__()
        self._is_whole = is_whole
        self._title = title
        self._choices = list(choices)
        self._free = free
        self._words = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            yield Input(placeholder="search …", id="choose-search", compact=True)
            yield OptionList(id="choose-list", compact=True)
            yield Static("", id="choose-note")

    def on_mount(self) -> None:
        self._fill()
        self.query_one("#choose-search").focus()

    def offer(self, choices: Sequence[Choice]) -> None:
        """Take these choices from now on."""
        self._choices = list(choices)
        if self.is_mounted:
            self._fill()

    def action_walk(self, by: int) -> None:
        options = self.query_one("#choose-list", OptionList)
        if options.option_count:
            at = (options.highlighted or 0) + by
            options.highlighted = max(0, min(at, options.option_count - 1))

    @on(Input.Changed, "#choose-search")
    def _searched(self, event: Input.Changed) -> None:
        event.stop()
        self._fill()

    @on(Input.Submitted, "#choose-search")
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value != self._words:
            self._fill()  # a quick Enter overtakes the news of what was typed before it
        options = self.query_one("#choose-list", OptionList)
        at = options.highlighted
        if at is not None:
            self.dismiss(options.get_option_at_index(at).id)
        elif self._free and event.value.strip():
            self.dismiss(event.value.strip())

    @on(OptionList.OptionSelected, "#choose-list")
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)

    def _fill(self) -> None:
        words = self._words = self.query_one("#choose-search", Input).value
        choices = self._choices
        if self._is_whole is not None and self._is_whole(words):
            choices = [Choice(words, words)]
        found = fuzzy_sorted(words, choices, lambda choice: choice.text)
        options = self.query_one("#choose-list", OptionList)
        width = max((len(choice.text) for choice, _ in found[:MOST_SHOWN]), default=0)
        options.clear_options()
        options.add_options(
            Option(_label(choice, match.positions, width), id=choice.id)
            for choice, match in found[:MOST_SHOWN]
        )
        options.highlighted = 0 if found else None
        self.set_class(0 < len(self._choices) <= _FEW, "-few")
        note = f"{len(found)} of {len(self._choices)}"
        if not found and self._free and words:
            note = f"Enter takes {words} as it is"
        self.query_one("#choose-note", Static).update(note if self._choices else "looking …")


def _label(choice: Choice, positions: Sequence[int], width: int) -> Content:
    text = Content(choice.text)
    for place in positions:
        text = text.stylize("bold underline", place, place + 1)
    if not choice.note:
        return text
    pad = " " * (min(width, 40) - len(choice.text) + 2)
    return Content.assemble(text, pad, (choice.note, "dim"))
