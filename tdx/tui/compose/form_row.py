"""One form field: its name, an input widget and a help line."""

from __future__ import annotations

import re

from textual import events, on
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Button, Input, Select, Static, Switch

from tdx.inspection.leaf import INPUT_PARTS
from tdx.keys import format_key
from tdx.pipeline.catalog import strip_markup
from tdx.pipeline.editing import DraftStage
from tdx.pipeline.editing.forms import FormField
from tdx.tui.workspace import ChainStatus


def available_keys(
    status: ChainStatus, stage: DraftStage, *, inverse: bool = False
) -> tuple[str, ...]:
    """Return the keys that a stage receives, according to the last inspection.

    Args:
        status: What is known of the chain.
        stage: The stage.
        inverse: Put the keys of the inverse path first: actions and states.
    """
    if status.overview is None:
        return ()
    index = status.numbers.index(stage.number) if stage.number in status.numbers else 0
    leaves = status.overview.before(index)
    ranked = sorted(leaves, key=lambda leaf: (leaf.part in INPUT_PARTS) is not inverse)
    return tuple(dict.fromkeys(format_key(leaf.key) for leaf in ranked))


_LAST_WORD = re.compile(r"""(?:^|[,\[("'])\s*([^,\[\]()"']*)$""")


class WordSuggester(Suggester):
    """Completes a word, or the last word of a list.

    Args:
        words: Known words.
        many: True if the field holds a list.
    """

    def __init__(self, words: tuple[str, ...], many: bool = True) -> None:
        super().__init__(case_sensitive=True, use_cache=False)
        self.words = words
        self.many = many

    async def get_suggestion(self, value: str) -> str | None:
        match = _LAST_WORD.search(value) if self.many else None
        start = 0 if match is None else match.start(1)
        word = value[start:].casefold()
        if not word:
            return None
        found = next((each for each in self.words if each.casefold().startswith(word)), None)
        return None if found is None else value[:start] + found


class FormRow(Widget):
    """Form field for one argument.

    Args:
        field: Description of the argument.
        keys: Keys to suggest.
    """

    class Edited(Message):
        """The text was edited."""

        def __init__(self, row: FormRow, text: str) -> None:
            super().__init__()
            self.row = row
            self.text = text

        @property
        def control(self) -> FormRow:
            """The row."""
            return self.row

    class PickKeys(Message):
        """The dialog for keys should open."""

        def __init__(self, row: FormRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, field: FormField, keys: tuple[str, ...] = ()) -> None:
        super().__init__(classes="form-row -keys" if field.kind == "keys" else "form-row")
        self.field = field
        self.keys = keys
        self._text = field.text
        self._chain_text = field.text

    def compose(self) -> ComposeResult:
        star = " *" if self.field.required else ""
        title = Content.assemble((self.field.name, "bold"), (star, "bold $accent"))
        yield Static(title, classes="form-name")
        yield self._widget()
        if self.field.kind == "keys":
            yield Button("▾", classes="form-keys", compact=True)
        yield Static(self._help(), classes="form-help")

    @property
    def text(self) -> str:
        """The current text."""
        return self._text

    def set_field(self, field: FormField, keys: tuple[str, ...]) -> None:
        """Show a new value of the argument that did not come from this row.

        Typed text stays: nothing changes while the field has the focus, holds an uncommitted text,
        or holds an invalid text.
        """
        self.field, self.keys = field, keys
        if not self.query(".form-help"):
            return
        box = self.query(Input)
        if box and self.field.kind == "keys":
            box.first().suggester = WordSuggester(keys, self.field.many)
        is_typed = bool(box) and box.first().value != self._text
        if field.text == self._chain_text or self.has_focus_within or is_typed:
            return
        self._chain_text = field.text
        if field.text != self._text:
            self.set_text(field.text)
        self.show_error(None)

    def accept(self, field: FormField) -> None:
        """Remember the value that the chain has taken from this row."""
        self.field, self._chain_text = field, field.text

    def set_text(self, text: str) -> None:
        """Set the text without posting a message."""
        self._text = text
        if self.field.kind == "flag":
            self.query_one(Switch).value = (text or self.field.default) == "True"
        elif self.field.kind == "choice":
            self.query_one(Select).value = text or Select.NULL
        else:
            self.query_one(Input).value = text

    def enter_text(self, text: str) -> None:
        """Set the text as if it was typed."""
        self.set_text(text)
        self.post_message(self.Edited(self, text))

    def show_error(self, text: str | None) -> None:
        """Show an error instead of the help text. ``None``: show the help text."""
        self.set_class(text is not None, "-wrong")
        content = self._help() if text is None else Content.styled(text, "$error")
        for line in self.query(".form-help").results(Static):  # the row may be about to be removed
            line.update(content)

    def _help(self) -> Content:
        help_, type_ = strip_markup(self.field.help), f"  {self.field.type}"
        return Content.assemble(help_, (type_, "dim italic"))

    def _widget(self) -> Input | Select[str] | Switch:
        field = self.field
        if field.kind == "flag":
            return Switch((field.text or field.default) == "True", animate=False)
        if field.kind == "choice":
            return Select(
                [(choice, choice) for choice in field.choices],
                prompt=_placeholder(field),
                value=field.text or Select.NULL,
                compact=True,
            )
        return Input(
            field.text,
            placeholder=_placeholder(field),
            suggester=WordSuggester(
                self.keys if field.kind == "keys" else field.completions,
                field.kind == "keys" and field.many,
            ),
            compact=True,
        )

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._emit(event.value)

    @on(Select.Changed)
    def _chosen(self, event: Select.Changed) -> None:
        event.stop()
        self._emit("" if event.value is Select.NULL else str(event.value))

    @on(Switch.Changed)
    def _switched(self, event: Switch.Changed) -> None:
        event.stop()
        text = str(event.value)
        if (self._text or self.field.default) != text:
            self._emit("" if text == self.field.default else text)

    @on(Button.Pressed)
    def _keys_requested(self, event: Button.Pressed) -> None:
        event.stop()
        self.post_message(self.PickKeys(self))

    def on_key(self, event: events.Key) -> None:
        """Open the dialog for keys with the down key."""
        asked = event.key == "down" and self.field.kind == "keys"
        if asked and self.query_one(Input).has_focus:
            event.stop()
            self.post_message(self.PickKeys(self))

    def _emit(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.post_message(self.Edited(self, text))


def _placeholder(field: FormField) -> str:
    """Return the placeholder of an empty field."""
    return "required" if field.default is None else field.default
