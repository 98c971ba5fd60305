"""The catalogue of transforms: search, read, add."""

from __future__ import annotations

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tdx.pipeline.catalog import TransformInfo, load_catalog
from tdx.pipeline.docstrings import strip_markup
from tdx.pipeline.editing.fuzzy import fuzzy_sorted
from tdx.tui import bindings


class CataloguePane(Vertical):
    """The pane on the left."""

    BINDINGS = [*bindings.CATALOGUE]

    class Chosen(Message):
        """A transform is to be added."""

        def __init__(self, info: TransformInfo) -> None:
            super().__init__()
            self.info = info

    class Left(Message):
        """The user is done with the catalogue."""

    def __init__(self) -> None:
        super().__init__(id="catalogue-pane", classes="pane")
        self.border_title = "Catalogue"
        self._words = ""

    def compose(self) -> ComposeResult:
        yield Input(placeholder="search …", id="catalogue-search", compact=True)
        yield OptionList(id="catalogue", compact=True)
        yield Static(id="catalogue-doc")

    def on_mount(self) -> None:
        self._fill("")

    @property
    def highlighted(self) -> TransformInfo | None:
        """The transform under the cursor."""
        options = self.query_one("#catalogue", OptionList)
        at = options.highlighted
        name = None if at is None else options.get_option_at_index(at).id
        return None if name is None else load_catalog().find(name)

    def action_add(self) -> None:
        info = self.highlighted
        if info is not None:
            self.post_message(self.Chosen(info))

    def action_leave(self) -> None:
        search = self.query_one("#catalogue-search", Input)
        if search.value:
            search.value = ""
        else:
            self.post_message(self.Left())

    def begin_search(self) -> None:
        """Put the cursor into the search field."""
        # At once, for what is typed quickly after the key must not be taken for other keys.
        self.screen.set_focus(self.query_one("#catalogue-search", Input))

    @on(Input.Changed, "#catalogue-search")
    def _searched(self, event: Input.Changed) -> None:
        event.stop()
        self._fill(event.value)

    @on(Input.Submitted, "#catalogue-search")
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value != self._words:
            self._fill(event.value)  # a quick Enter overtakes the news of what was typed before it
        self.action_add()

    @on(OptionList.OptionHighlighted, "#catalogue")
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        info = self.highlighted
        if info is not None:
            doc = Text(info.name, style="bold")
            doc.append(f"\n{strip_markup(info.summary)}", style="not bold")
            self.query_one("#catalogue-doc", Static).update(doc)

    @on(OptionList.OptionSelected, "#catalogue")
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_add()

    def on_key(self, event: object) -> None:
        """Let the arrow keys walk through the list while the search field has the focus."""
        key = getattr(event, "key", "")
        if key in ("down", "up") and self.query_one("#catalogue-search", Input).has_focus:
            options = self.query_one("#catalogue", OptionList)
            options.action_cursor_down() if key == "down" else options.action_cursor_up()

    def _fill(self, words: str) -> None:
        self._words = words
        options = self.query_one("#catalogue", OptionList)
        options.clear_options()
        options.add_options(_sorted(words) if words.strip() else _by_category())
        first = next((n for n, each in enumerate(options.options) if not each.disabled), None)
        options.highlighted = first
        self.border_subtitle = f"{sum(not each.disabled for each in options.options)}"


def _by_category() -> list[Option]:
    found: list[Option] = []
    for category in load_catalog().categories:
        found.append(Option(Text(category.upper(), style="bold dim"), disabled=True))
        found += [
            Option(f"  {info.name}", id=info.name)
            for info in load_catalog().transforms
            if info.category == category
        ]
    return found


def _sorted(words: str) -> list[Option]:
    """The transforms whose names match, then those whose summaries do."""
    by_name = fuzzy_sorted(words, load_catalog().transforms, lambda info: info.name)
    options = []
    for info, match in by_name:
        text = Text(f"  {info.name}")
        for place in match.positions:
            text.stylize("bold underline", place + 2, place + 3)
        options.append(Option(text, id=info.name))
    named = {info.name for info, _ in by_name}
    rest = [info for info in load_catalog().search(words) if info.name not in named]
    return [*options, *(Option(f"  {info.name}", id=info.name) for info in rest)]
