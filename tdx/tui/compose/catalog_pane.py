"""The catalog of transforms: search, read the documentation, add."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tdx.foundation.errors import TdxError
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.editing.forms import FormField, fill_arguments, list_stage_fields, split_words
from tdx.pipeline.transform_info import TransformInfo, strip_markup
from tdx.pipeline.values import StageConfig
from tdx.tui.compose.form_row import WordSuggester, available_keys
from tdx.tui.line_widgets import ElidedStatic
from tdx.tui.screens.dialogs import fuzzy_sort
from tdx.tui.workspace import Workspace

_CALL = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)(?P<gap>\s*\(|\s+)(?P<arguments>.*)", re.DOTALL)
_VALUE = re.compile(r"[-+.]?\d|[\"'\[(]|[A-Za-z_]\w*=")
_LAST_WORD = re.compile(r"(?:^|[\s=,\[(\"'])([^\s=,\[(\"']*)$")
_HELP = "Type a name and its arguments, such as catframes 4 -3; Enter adds it, Esc closes."


def split_call(text: str) -> tuple[str, str | None]:
    """Split the text of the add field into a search and the arguments after it.

    ``None`` for the arguments: there are none yet, as in ``clip reward``, which searches two words.

    Example:
        >>> split_call("catframes 4 -3"), split_call("clip reward")
        (('catframes', '4 -3'), ('clip reward', None))
    """
    match = _CALL.fullmatch(text)
    if match is None:
        return text, None
    arguments = match["arguments"]
    if match["gap"].endswith("("):
        return match["name"], arguments.removesuffix(")")
    is_name = match["name"].casefold() in {name.casefold() for name in load_catalog().names}
    if is_name or _VALUE.match(arguments):
        return match["name"], arguments
    return text, None


class TransformList(OptionList):
    """A list in which a click selects, and a double-click or Enter adds."""

    async def on_click(self, event: events.Click) -> None:
        event.prevent_default()
        clicked = event.style.meta.get("option")
        if clicked is not None and not self.options[clicked].disabled:
            self.highlighted = clicked
            if event.chain == 2:
                self.action_select()


class CatalogPane(Vertical):
    """The left pane."""

    BINDINGS = [
        Binding("enter", "add", "add", id="catalog.add"),
        Binding("escape", "leave", "back", id="catalog.leave"),
    ]

    @dataclass
    class Chosen(Message):
        """A transform was chosen."""

        stage: StageConfig

    class Left(Message):
        """The user has left the catalog."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(id="catalog-pane", classes="pane")
        self.border_title = "Catalog"
        self._workspace = workspace
        self._words = ""

    def compose(self) -> ComposeResult:
        completions = WordSuggester(self.list_completions, _LAST_WORD)
        yield Input(placeholder="add …", id="catalog-search", suggester=completions, compact=True)
        yield TransformList(id="catalog", compact=True)
        yield ElidedStatic(id="catalog-doc")

    def on_mount(self) -> None:
        self._fill("")

    @property
    def current_transform(self) -> TransformInfo | None:
        """The transform under the cursor."""
        options = self.query_one("#catalog", OptionList)
        at = options.highlighted
        name = None if at is None else options.get_option_at_index(at).id
        return None if name is None else load_catalog().find(name)

    def action_add(self) -> None:
        """Add the transform under the cursor with the typed arguments; leave an empty catalog.

        One with required arguments is only completed in the field at first, so that they can be
        typed.
        """
        info = self.current_transform
        search = self.query_one("#catalog-search", Input)
        if info is None:
            if not search.value:
                self.post_message(self.Left())
            return
        _, arguments = split_call(search.value)
        is_required = any(field.required for field in list_stage_fields(StageConfig(info.name)))
        if arguments is None and is_required:
            search.value = f"{info.name} "
            search.cursor_position = len(search.value)
            self.screen.set_focus(search)
            return
        try:
            stage = fill_arguments(StageConfig(info.name), arguments or "")
        except TdxError as error:
            self._show_note(Content.styled(f"✕ {error.message}", "$error"))
            return
        self.post_message(self.Chosen(stage))
        search.value = ""

    def action_leave(self) -> None:
        search = self.query_one("#catalog-search", Input)
        if search.value:
            search.value = ""
        else:
            self.post_message(self.Left())

    def start_search(self) -> None:
        """Focus the empty search field."""
        search = self.query_one("#catalog-search", Input)
        search.value = ""
        # At once, so that keys typed right after this one go into the field.
        self.screen.set_focus(search)

    @on(Input.Changed, "#catalog-search")
    def _update_options(self, event: Input.Changed) -> None:
        event.stop()
        self._fill(event.value)

    @on(Input.Submitted, "#catalog-search")
    def _add_first_option(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value != self._words:
            self._fill(event.value)  # Enter may arrive before the change event
        self.action_add()

    @on(OptionList.OptionHighlighted, "#catalog")
    def _show_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self._show_documentation()

    @on(OptionList.OptionSelected, "#catalog")
    def _add_selected_option(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_add()

    def on_key(self, event: object) -> None:
        """Move through the list with the arrow keys while the search field has the focus."""
        key = getattr(event, "key", "")
        if key in ("down", "up") and self.query_one("#catalog-search", Input).has_focus:
            options = self.query_one("#catalog", OptionList)
            options.action_cursor_down() if key == "down" else options.action_cursor_up()

    def _fill(self, words: str) -> None:
        self._words = words
        name, arguments = split_call(words)
        options = self.query_one("#catalog", OptionList)
        before = self.current_transform
        options.clear_options()
        found: list[Option] = []
        if name.strip():
            for info, positions in _search(name):
                text = Text(f"  {info.name}")
                for place in positions:
                    text.stylize("bold underline", place + 2, place + 3)
                found.append(Option(text, id=info.name))
        else:
            for category in load_catalog().categories:
                heading = Text(category.upper(), style="bold dim")
                found.append(Option(heading, disabled=True))
                found += [
                    Option(f"  {info.name}", id=info.name)
                    for info in load_catalog().transforms
                    if info.category == category
                ]
        options.add_options(found or [Option("  no match", disabled=True)])
        enabled = [n for n, option in enumerate(options.options) if not option.disabled]
        # Enter in an empty field adds nothing, unless a transform was selected.
        options.highlighted = enabled[0] if enabled and name.strip() else None
        kept = None if arguments is None or before is None else before.name
        if kept is not None and kept in {option.id for option in options.options}:
            options.highlighted = options.get_option_index(kept)
        self.border_subtitle = str(len(enabled))
        self._show_documentation()

    def list_completions(self, text: str) -> tuple[str, ...]:
        """Return names of transforms; after a name, its arguments and the keys at that place."""
        name, arguments = split_call(text)
        found = [] if arguments is None else _search(name)
        if not found:
            return tuple(load_catalog().names)
        fields = list_stage_fields(StageConfig(found[0][0].name))
        status, stage = self._workspace.status, self._workspace.stage
        words = [*available_keys(status, stage, after=True), *(f"{f.name}=" for f in fields)]
        words += [each for field in fields for each in (*field.choices, *field.completions)]
        return tuple(words)

    def _show_documentation(self) -> None:
        info = self.current_transform
        _, arguments = split_call(self._words)
        if info is None:
            self._show_note(Content(_HELP))
        elif arguments is None:
            summary = strip_markup(info.summary)
            self._show_note(Content.assemble((info.name, "bold"), f"\n{summary}"))
        else:
            self._show_note(_describe_arguments(info, arguments))

    def _show_note(self, note: Content) -> None:
        self.query_one("#catalog-doc", Static).update(note)


def _describe_arguments(info: TransformInfo, text: str) -> Content:
    """Return the arguments of a transform with the typed values, and help for the next one."""
    fields = list_stage_fields(StageConfig(info.name))
    words = split_words(text)
    stage, error = StageConfig(info.name), ""
    try:
        stage = fill_arguments(stage, text)
    except TdxError as problem:
        error = problem.message
    current = _current_field(fields, words, text)
    parts: list[Content] = [Content.styled(info.name, "bold")]
    for field in fields:
        star = "*" if field.required else ""
        style = "bold reverse" if field is current else "" if field.required else "dim"
        value = f"={stage.kwargs[field.name]}" if field.name in stage.kwargs else ""
        parts.append(Content.styled(f"{field.name}{star}{value}", style))
    lines = [Content(" ").join(parts)]
    if error:
        lines.append(Content.styled(f"✕ {error}", "$error"))
    elif current is not None:
        lines.append(Content(f"{current.name}  {current.short_type}  {strip_markup(current.help)}"))
    return Content("\n").join(lines)


def _current_field(fields: tuple[FormField, ...], words: list[str], text: str) -> FormField | None:
    """Return the argument that is being typed, or comes next."""
    is_started = bool(words) and not text[-1:].isspace()
    if is_started and "=" in words[-1]:
        name = words[-1].partition("=")[0]
        return next((field for field in fields if field.name == name), None)
    done = words[:-1] if is_started else words
    named = {word.partition("=")[0] for word in done if "=" in word}
    free = [field for field in fields if field.name not in named]
    at = sum("=" not in word for word in done)
    return free[at] if at < len(free) else None


def _search(words: str) -> list[tuple[TransformInfo, Sequence[int]]]:
    """Return transforms whose names match, with the matched letters, then those whose help does."""
    by_name = fuzzy_sort(words, load_catalog().transforms, lambda info: info.name)
    named = {info.name for info, _ in by_name}
    rest = [(info, ()) for info in load_catalog().search(words) if info.name not in named]
    return [*by_name, *rest]
