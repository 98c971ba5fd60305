"""The advice: what was tried, what it saved, and a key that makes the edit."""

from __future__ import annotations

from textwrap import fill
from typing import Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from tdx.tui.profile.numbers import micros, percent
from tdx.tui.profile.requests import AdviceFound, Tried

_WIDTH = 66
"""Columns that there are on the smallest terminal."""
_VALUES = {
    "same": "the same values",
    "close": "values within 1 %",
    "other": "other values",
}


class AdviceScreen(ModalScreen[Tried | Literal["again"] | None]):
    """Returns the change that is to be made, ``again`` for another try, or none.

    Args:
        found: what was tried.
        is_current: whether the chain is still the one that it was tried with.
    """

    BINDINGS = [
        Binding("escape,q", "dismiss(None)", "back", id="advice.back", key_display="esc"),
        Binding("r", "again", "try again", id="advice.again"),
    ]

    def __init__(self, found: AdviceFound, is_current: bool) -> None:
        super().__init__()
        self._found, self._is_current = found, is_current

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="advice") as dialog:
            dialog.border_title = f"advice, {self._found.mode}" if self._found.mode else "advice"
            dialog.border_subtitle = "Enter makes the edit, r tries again, Esc closes"
            yield Static(_head(self._found, self._is_current), id="advice-head")
            yield OptionList(*self._options(), id="advice-list")
            with Horizontal(id="advice-buttons"):
                yield Button("Make the edit", "primary", id="advice-apply", compact=True)
                yield Button("Try again", id="advice-again", compact=True)
                yield Button("Close", id="advice-close", compact=True)

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        listed.display = bool(listed.option_count)
        first = self._is_current and self._possible
        self.query_one("#advice-apply").display = bool(first)
        if listed.display:
            listed.highlighted = 0
            listed.focus()
        else:
            self.query_one("#advice-close").focus()

    def action_again(self) -> None:
        self.dismiss("again")

    @property
    def _possible(self) -> list[Tried]:
        return [each for each in (*self._found.worth, *self._found.vain) if each.pipeline]

    def _options(self) -> list[Option]:
        tried = [*self._found.worth, *self._found.vain]
        options = [
            Option(_option(each, at < len(self._found.worth)), id=f"tried-{at}")
            for at, each in enumerate(tried)
        ]
        refused = [
            Option(Content(_indented(f"not tried: {why}")), disabled=True)
            for why in self._found.refused
        ]
        return [*options, *refused]

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take(event.option_id)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "advice-again":
            self.action_again()
        elif event.button.id == "advice-close":
            self.dismiss(None)
        else:
            option = self.query_one(OptionList).highlighted_option
            self._take(None if option is None else option.id)

    def _take(self, name: str | None) -> None:
        tried = (*self._found.worth, *self._found.vain)
        at = int((name or "tried--1").removeprefix("tried-"))
        if not 0 <= at < len(tried):
            return
        if not self._is_current:
            self.notify("the chain is another one by now; r tries again", timeout=4)
        elif tried[at].pipeline is None:
            self.notify("that is no edit of the chain: it is done where it is run", timeout=4)
        else:
            self.dismiss(tried[at])


def _head(found: AdviceFound, is_current: bool) -> Content:
    tried = len(found.worth) + len(found.vain)
    lines = []
    if found.error is not None:
        lines.append(Content.styled(f"✕ {found.error}", "$text-error"))
    elif not tried and not found.refused:
        lines.append(Content("Nothing was found that would be worth a try."))
    else:
        word = "change" if tried == 1 else "changes"
        lines.append(
            Content(f"{tried} {word} tried beside the chain as it is, {len(found.worth)} worth it.")
        )
    if not is_current:
        lines.append(Content.styled("The chain was edited since.", "$text-warning"))
    return Content("\n").join(lines)


def _option(tried: Tried, is_worth: bool) -> Content:
    share = -tried.saved_us / tried.before_us if tried.before_us else 0.0
    head = Content.assemble(
        (f"{percent(share) if is_worth else '≈':>6}  ", "bold $text-success" if is_worth else ""),
        (tried.change, "bold" if is_worth else ""),
    )
    after = tried.before_us - tried.saved_us
    measured = f"{micros(tried.before_us)} → {micros(after)} µs a step ± {micros(tried.noise_us)}"
    rest = [f"{measured}, {_VALUES[tried.values]}"]
    if is_worth:
        rest.insert(0, f"because {tried.found}")
    if tried.pipeline is None:
        rest.append("it is done where the chain is run: no edit")
    notes = (Content.styled(_indented(each), "dim") for each in rest)
    return Content("\n").join([head, *notes])


def _indented(text: str) -> str:
    margin = " " * 8
    return fill(text, _WIDTH, initial_indent=margin, subsequent_indent=margin)
