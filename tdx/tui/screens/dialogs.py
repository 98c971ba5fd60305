"""Generic dialogs: choose one, choose several, answer a question, read a text, jump to a widget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.fuzzy import FuzzySearch
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Button, Input, Label, OptionList, SelectionList, Static
from textual.widgets.option_list import Option

T = TypeVar("T")
_FUZZY_SEARCH = FuzzySearch()
MAX_CHOICES = 400
_DESCRIBE_DELAY = 0.2
"""Seconds on an entry after which it is described."""
_MAX_COMPACT_CHOICES = 8
"""Number of choices up to which the dialog is as high as its list."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of a list."""

    id: str  # returned by the dialog
    text: str  # text that is shown and searched
    note: str = ""  # remark after the text
    is_last: bool = False  # dim it, and list it after all others
    is_first: bool = False  # list it before others if it contains the searched text

    def order(self, typed: str) -> int:
        """Return 0 for an entry that comes first if it contains a text, and 2 for a last one."""
        return 2 if self.is_last else int(not self.is_first or typed not in self.text.casefold())


def fuzzy_sort(
    query: str, items: Iterable[T], text: Callable[[T], str]
) -> list[tuple[T, Sequence[int]]]:
    """Return the items whose text matches a query, the best match first, and the matched places.

    Three or more letters that start a word are the best match, then the initials of a text, any
    letters that start a word, a part of the text, and letters that are scattered over it. Spaces
    are ignored; an empty query matches all items in their own order.

    Example:
        >>> [item for item, _ in fuzzy_sort("cf", ["ToFloat", "CatFrames"], str)]
        ['CatFrames']
    """
    letters = "".join(query.split())
    if not letters:
        return [(item, ()) for item in items]
    ranked = []
    for item in items:
        name = text(item)
        score, positions = _FUZZY_SEARCH.match(letters, name)
        if score > 0:
            initials = "".join(sign for sign in name if sign.isupper()).casefold()
            whole, typed = f" {name.casefold()}", " ".join(query.casefold().split())
            starts_word = f" {typed}" in whole
            how = (
                *(not (starts_word and len(letters) > 2), initials != letters.casefold()),
                *(not starts_word, typed not in whole),
            )
            ranked.append(((*how, -score, len(name)), item, positions))
    ranked.sort(key=lambda match: match[0])
    return [(item, positions) for _, item, positions in ranked]


def walk_options(options: OptionList, by: int) -> None:
    """Move the cursor of a list that has no focus."""
    if options.option_count:
        at = -1 if options.highlighted is None and by > 0 else (options.highlighted or 0)
        options.highlighted = max(0, min(at + by, options.option_count - 1))


def ask(app: App[None], dialog: ModalScreen[T | None], then: Callable[[T], object]) -> None:
    """Show a dialog, and call a function with the answer unless it was cancelled."""

    def answer(value: T | None) -> None:
        if value is not None:
            then(value)

    app.push_screen(dialog, answer)


def ask_to_replace(
    app: App[None], file: Path, title: str, text: str, then: Callable[[bool], object]
) -> None:
    """Call a function with False, or with True after the user agrees to replace a file."""
    if not file.exists():
        then(False)
        return

    def answer(reply: str | None) -> None:
        if reply == "replace":
            then(True)

    replies = [Reply("keep", "Keep it"), Reply("replace", "Replace", is_destructive=True)]
    app.push_screen(QuestionScreen(title, text, replies), answer)


class ChoiceScreen(ModalScreen[str | None]):
    """Searchable list; returns the id of the chosen entry, or ``None``.

    Without choices, they are loading until :meth:`set_choices`. ``allow_custom`` returns the typed
    text if no entry matches it, ``is_verbatim`` tells which texts are returned as typed even if
    some do. ``describe`` returns a text about an entry, shown below the list. The current entry is
    marked.
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
        choices: Sequence[Choice] | None = (),
        *,
        allow_custom: bool = False,
        is_verbatim: Callable[[str], bool] | None = None,
        describe: Callable[[str], Awaitable[str]] | None = None,
        current: str | None = None,
    ) -> None:
        super().__init__()
        self._describe, self._described = describe, ""
        self._timer: Timer | None = None
        self._is_verbatim = is_verbatim
        self._title = title
        self._is_loading = choices is None
        self._choices = list(choices or ())
        self._allow_custom = allow_custom
        self._words = ""
        self._current = current

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            yield Input(placeholder="search …", id="choose-search", compact=True)
            options = OptionList(id="choose-list", compact=True)
            # The arrow keys reach it from the search, and it has no height without a match.
            options.can_focus = False
            yield options
            if self._describe is not None:
                yield Static("", id="choose-description", markup=False)
            yield Static("", id="choose-note")

    def on_mount(self) -> None:
        self._fill(self._current)
        self.query_one("#choose-search").focus()

    def set_choices(self, choices: Sequence[Choice]) -> None:
        """Replace the entries."""
        self._is_loading = False
        self._choices = list(choices)
        if self.is_mounted:
            options = self.query_one("#choose-list", OptionList)
            at = options.highlighted
            self._fill(None if at is None else options.get_option_at_index(at).id)

    def action_walk(self, by: int) -> None:
        walk_options(self.query_one("#choose-list", OptionList), by)

    @on(Input.Changed, "#choose-search")
    def _update_options(self, event: Input.Changed) -> None:
        event.stop()
        self._fill()

    @on(Input.Submitted, "#choose-search")
    def _accept_input(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value != self._words:
            self._fill()  # Enter may arrive before the change event
        options = self.query_one("#choose-list", OptionList)
        at = options.highlighted
        if at is not None:
            self.dismiss(options.get_option_at_index(at).id)
        elif self._allow_custom and event.value.strip():
            self.dismiss(event.value.strip())

    @on(OptionList.OptionHighlighted, "#choose-list")
    def _describe_soon(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        name = event.option_id
        if self._describe is None or name is None or name == self._described:
            return
        self._described = name
        self._write_description("")
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(
            _DESCRIBE_DELAY, lambda: self.run_worker(self._show_description(name), exclusive=True)
        )

    async def _show_description(self, name: str) -> None:
        assert self._describe is not None
        text = await self._describe(name)
        if name == self._described:
            self._write_description(text)

    def _write_description(self, text: str) -> None:
        # A description may arrive while the screen closes, whose widgets go before it.
        for box in self.query("#choose-description").results(Static):
            box.update(text)

    @on(OptionList.OptionSelected, "#choose-list")
    def _accept_option(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)

    def _fill(self, selected: str | None = None) -> None:
        """Show the entries that match; the cursor is on the best one unless one was selected."""
        words = self._words = self.query_one("#choose-search", Input).value
        choices = self._choices
        if self._is_verbatim is not None and self._is_verbatim(words):
            choices = [Choice(words, words)]
        matches = fuzzy_sort(words, choices, lambda choice: choice.text)
        typed = words.strip().casefold()
        matches.sort(key=lambda match: match[0].order(typed))
        shown = matches[:MAX_CHOICES]
        width = max((len(choice.text) for choice, _ in shown), default=0)
        labelled = []
        for choice, positions in shown:
            label = Content.styled(choice.text, "dim" if choice.is_last else "")
            for place in positions:
                label = label.stylize("bold underline", place, place + 1)
            if choice.id == self._current:
                label = Content.assemble(("● ", "$accent"), label)
            elif self._current is not None:
                label = Content.assemble("  ", label)
            if choice.note:
                pad = " " * (min(width, 40) - len(choice.text) + 2)
                label = Content.assemble(label, pad, (choice.note, "dim"))
            labelled.append(Option(label, id=choice.id))
        options = self.query_one("#choose-list", OptionList)
        options.clear_options()
        options.add_options(labelled)
        places = {choice.id: place for place, (choice, _) in enumerate(shown)}
        options.highlighted = places.get(selected or "", 0) if matches else None
        self.set_class(0 < len(self._choices) <= _MAX_COMPACT_CHOICES, "-few")
        note = f"{len(matches)} of {len(self._choices)}"
        if not matches and self._allow_custom and words:
            note = f"press Enter to use {words}"
        elif not self._choices and not words:
            note = "loading …" if self._is_loading else "nothing found"
        self.query_one("#choose-note", Static).update(note)


class MultiChoiceScreen(ModalScreen[list[str] | None]):
    """List with check boxes; returns the checked entries, or ``None``."""

    BINDINGS = [
        Binding("escape", "dismiss(None)", "back", id="pick.back"),
        Binding("enter", "accept", "accept", id="pick.accept", priority=True),
    ]

    def __init__(self, title: str, options: Sequence[str], chosen: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._options = list(dict.fromkeys([*options, *chosen]))
        self._chosen = set(chosen)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -small") as dialog:
            dialog.border_title = self._title
            yield SelectionList[str](
                *((option, option, option in self._chosen) for option in self._options),
                compact=True,
            )
            yield Static("Space selects · Enter accepts · Esc cancels", id="choose-note")

    def on_mount(self) -> None:
        self.query_one(SelectionList).focus()

    def action_accept(self) -> None:
        selected = self.query_one(SelectionList).selected
        self.dismiss([option for option in self._options if option in selected])


@dataclass(frozen=True, slots=True)
class Reply:
    """A button of a question."""

    id: str  # returned by the dialog
    text: str  # label; its first letter is the key
    is_destructive: bool = False  # true if the choice loses data

    @property
    def key(self) -> str:
        """Key that chooses the reply."""
        return self.text[0].lower()


class QuestionScreen(ModalScreen[str | None]):
    """Question with buttons; returns the id of the reply, or ``None``.

    The replies have different first letters; the first one gets the focus.
    """

    BINDINGS = [
        Binding("escape", "dismiss(None)", "back", id="ask.back"),
        Binding("left,up", "app.focus_previous", "previous", show=False),
        Binding("right,down", "app.focus_next", "next", show=False),
    ]

    def __init__(self, title: str, text: str, replies: Sequence[Reply]) -> None:
        super().__init__()
        self._title, self._text = title, text
        self._replies = list(replies)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -small") as dialog:
            dialog.border_title = Content(self._title)
            dialog.border_subtitle = "Esc cancels"
            yield Static(Content(self._text), classes="ask-text")
            with Horizontal(classes="ask-replies"):
                for reply in self._replies:
                    label = Content.assemble((reply.text[0], "underline"), reply.text[1:])
                    classes = "-destructive" if reply.is_destructive else ""
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
    def _accept_reply(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss((event.button.id or "").removeprefix("ask-"))


class TextScreen(ModalScreen[None]):
    """Shows a text until a key closes it."""

    BINDINGS = [
        Binding(
            "escape,q,f1,question_mark,enter", "dismiss", "back", id="read.back", key_display="esc"
        )
    ]

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
                if self._markdown:
                    from textual.widgets import Markdown  # slow to import, and seldom needed

                    yield Markdown(self.text)
                else:
                    yield Static(Content(self.text))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


LETTERS = "asdfghjklqwertyuiopzxcvbnm"


class JumpScreen(ModalScreen[Widget | None]):
    """Shows a letter on each target; returns the widget whose letter is pressed."""

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
