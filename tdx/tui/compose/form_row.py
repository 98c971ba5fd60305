"""Rows of a form: one line per argument with its name, value and type."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Button, Checkbox, Input, Select, Static

from tdx.foundation.keys import format_key
from tdx.pipeline.editing import DraftStage
from tdx.pipeline.editing.forms import FormField
from tdx.pipeline.transform_info import strip_markup
from tdx.specs.leaf import INPUT_PARTS
from tdx.tui.chain_status import ChainStatus
from tdx.tui.tab_body import holds_focus

_SLIM = 38
"""Columns below which a row leaves out the type."""
_PICK_KEYS = ("alt+down", "f2")
LAST_KEY = re.compile(r"""(?:^|[,\[("'])\s*([^,\[\]()"']*)$""")


def available_keys(
    status: ChainStatus, stage: DraftStage | None, *, inverse: bool = False, after: bool = False
) -> tuple[str, ...]:
    """Return the keys that a stage (``None``: the output) receives, by the last inspection.

    ``inverse`` puts actions and states first, ``after`` returns the keys after the stage.
    """
    if status.overview is None:
        return ()
    numbers = status.numbers
    index = len(numbers) if stage is None else 0
    if stage is not None and stage.number in numbers:
        index = numbers.index(stage.number) + after
    leaves = status.overview.before(index)
    ranked = sorted(leaves, key=lambda leaf: (leaf.part in INPUT_PARTS) is not inverse)
    return tuple(dict.fromkeys(format_key(leaf.key) for leaf in ranked))


class WordSuggester(Suggester):
    """Completes the word at the end of a text: the first group of a pattern, or the whole text."""

    def __init__(
        self, list_words: Callable[[str], Sequence[str]], last_word: re.Pattern[str] | None = None
    ) -> None:
        super().__init__(case_sensitive=True, use_cache=False)
        self._list_words, self._last_word = list_words, last_word

    async def get_suggestion(self, value: str) -> str | None:
        match = None if self._last_word is None else self._last_word.search(value)
        start = 0 if match is None else match.start(1)
        word = value[start:].casefold()
        known = self._list_words(value) if word else ()
        found = next((name for name in known if name.casefold().startswith(word)), None)
        return None if found is None else value[:start] + found


class FlagBox(Checkbox):
    """A flag whose label says its state."""

    BUTTON_LEFT = BUTTON_INNER = BUTTON_RIGHT = ""

    def __init__(self, is_on: bool) -> None:
        super().__init__(self.label_for(is_on), is_on, compact=True)

    @staticmethod
    def label_for(is_on: bool) -> str:
        """Return the label of a state."""
        return "● on" if is_on else "○ off"


class FormRow(Widget):
    """Form field for one argument.

    ``↑``, ``↓`` and ``Enter`` move between the rows of a form.
    """

    @dataclass
    class Edited(Message):
        """The text was edited."""

        row: FormRow
        text: str

    @dataclass
    class PickKeys(Message):
        """The dialog for keys should open."""

        row: FormRow

    @dataclass
    class Left(Message):
        """The focus should move to the next row (1), or to the previous one (-1)."""

        row: FormRow
        by: int

    def __init__(self, field: FormField, keys: tuple[str, ...] = ()) -> None:
        super().__init__(classes="form-row -keys" if field.kind == "keys" else "form-row")
        self.field = field
        self.keys = keys
        self.text = field.text
        self._chain_text = field.text

    def on_resize(self, event: events.Resize) -> None:
        # Without room for both, the value comes before its type.
        self.set_class(event.size.width < _SLIM, "-slim")

    def compose(self) -> ComposeResult:
        star = " *" if self.field.required else ""
        title = Content.assemble((self.field.name, "bold"), (star, "bold $accent"))
        yield Static(title, classes="form-name")
        yield self._widget()
        if self.field.kind == "keys":
            yield Button("▾", classes="form-keys", compact=True)
        yield Static(Content.styled(self.field.short_type, "dim"), classes="form-type")
        yield Static("", classes="form-error")

    @property
    def input(self) -> Widget:
        """The widget that takes the value."""
        return self.query("Input, Select, Checkbox").first()

    def describe(self) -> Content:
        """Return the help for the argument, its type and the keys that it can name."""
        help_ = strip_markup(self.field.help)
        lines = [Content.assemble((self.field.name, "bold"), f"  {help_}")]
        lines.append(Content.styled(self.field.type, "dim italic"))
        if self.field.kind == "keys" and self.keys:
            lines.append(Content.styled(f"F2 lists {', '.join(self.keys)}", "dim"))
        return Content("\n").join(lines)

    def set_field(self, field: FormField, keys: tuple[str, ...]) -> None:
        """Show a new value of the argument that did not come from this row.

        Typed text stays: nothing changes while the field has the focus, holds an uncommitted text,
        or holds an invalid text.
        """
        self.field, self.keys = field, keys
        if not self.query(".form-error"):
            return
        box = self.query(Input)
        if box and self.field.kind == "keys":
            box.first().suggester = self._suggester()
        is_typed = bool(box) and box.first().value != self.text
        if field.text == self._chain_text or holds_focus(self) or is_typed:
            return
        self._chain_text = field.text
        if field.text != self.text:
            self.set_text(field.text)
        self.show_error(None)

    def accept(self, field: FormField) -> None:
        """Remember the value that the chain has taken from this row."""
        self.field, self._chain_text = field, field.text

    def set_text(self, text: str) -> None:
        """Set the text without posting a message."""
        self.text = text
        if self.field.kind == "flag":
            self.query_one(Checkbox).value = (text or self.field.default) == "True"
        elif self.field.kind == "choice":
            self.query_one(Select).value = text or Select.NULL
        else:
            self.query_one(Input).value = text

    def enter_text(self, text: str) -> None:
        """Set the text as if it was typed."""
        self.set_text(text)
        self.post_message(self.Edited(self, text))

    def show_error(self, text: str | None) -> None:
        """Show an error below the value. ``None``: the value is valid."""
        self.set_class(text is not None, "-wrong")
        for line in self.query(".form-error").results(Static):  # the row may be about to be removed
            line.update(Content.styled(text or "", "$error"))

    def _widget(self) -> Input | Select[str] | Checkbox:
        field = self.field
        if field.kind == "flag":
            return FlagBox((field.text or field.default) == "True")
        if field.kind == "choice":
            return Select(
                [(choice, choice) for choice in field.choices],
                prompt=_placeholder(field),
                value=field.text or Select.NULL,
                compact=True,
            )
        return Input(
            field.text, placeholder=_placeholder(field), suggester=self._suggester(), compact=True
        )

    def _suggester(self) -> Suggester:
        is_keys = self.field.kind == "keys"
        words = self.keys if is_keys else self.field.completions
        return WordSuggester(lambda _: words, LAST_KEY if is_keys and self.field.many else None)

    @on(Input.Changed)
    def _emit_text(self, event: Input.Changed) -> None:
        event.stop()
        self._emit(event.value)

    @on(Input.Submitted)
    def _leave(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Left(self, 1))

    @on(Select.Changed)
    def _emit_choice(self, event: Select.Changed) -> None:
        event.stop()
        self._emit("" if event.value is Select.NULL else str(event.value))

    @on(Checkbox.Changed)
    def _emit_flag(self, event: Checkbox.Changed) -> None:
        event.stop()
        event.checkbox.label = FlagBox.label_for(event.value)
        text = str(event.value)
        if (self.text or self.field.default) != text:
            self._emit("" if text == self.field.default else text)

    @on(Button.Pressed)
    def _request_keys(self, event: Button.Pressed) -> None:
        event.stop()
        self.post_message(self.PickKeys(self))

    def on_key(self, event: events.Key) -> None:
        """Move between the rows, and open the dialog for keys."""
        if event.key in _PICK_KEYS and self.field.kind == "keys":
            event.stop()
            self.post_message(self.PickKeys(self))
        elif event.key in ("up", "down") and not any(
            select.expanded for select in self.query(Select)
        ):
            event.stop()
            event.prevent_default()
            self.post_message(self.Left(self, -1 if event.key == "up" else 1))

    def _emit(self, text: str) -> None:
        if text != self.text:
            self.text = text
            self.post_message(self.Edited(self, text))


def _placeholder(field: FormField) -> str:
    """Return the placeholder of an empty field."""
    return "required" if field.default is None else field.default
