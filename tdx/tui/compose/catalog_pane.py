"""The catalog of transforms: search, read the documentation, add."""

from __future__ import annotations

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tdx.pipeline.catalog import TransformInfo, load_catalog, strip_markup
from tdx.tui.screens.dialogs import fuzzy_sort


class CatalogPane(Vertical):
    """The left pane."""

    BINDINGS = [
        Binding("enter", "add", "add", id="catalog.add"),
        Binding("escape", "leave", "back", id="catalog.leave"),
    ]

    class Chosen(Message):
        """A transform was chosen."""

        def __init__(self, info: TransformInfo) -> None:
            super().__init__()
            self.info = info

    class Left(Message):
        """The user has left the catalog."""

    def __init__(self) -> None:
        super().__init__(id="catalog-pane", classes="pane")
        self.border_title = "Catalog"
        self._words = ""

    def compose(self) -> ComposeResult:
        yield Input(placeholder="search …", id="catalog-search", compact=True)
        yield OptionList(id="catalog", compact=True)
        yield Static(id="catalog-doc")

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
        info = self.current_transform
        if info is not None:
            self.post_message(self.Chosen(info))

    def action_leave(self) -> None:
        search = self.query_one("#catalog-search", Input)
        if search.value:
            search.value = ""
        else:
            self.post_message(self.Left())

    def start_search(self) -> None:
        """Focus the search field."""
        # At once, so that keys typed right after this one go into the field.
        self.screen.set_focus(self.query_one("#catalog-search", Input))

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
    def _show_documentation(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        info = self.current_transform
        if info is not None:
            doc = Text(info.name, style="bold")
            doc.append(f"\n{strip_markup(info.summary)}", style="not bold")
            self.query_one("#catalog-doc", Static).update(doc)

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
        options = self.query_one("#catalog", OptionList)
        options.clear_options()
        options.add_options(_search_options(words) if words.strip() else _category_options())
        first = next((n for n, each in enumerate(options.options) if not each.disabled), None)
        options.highlighted = first
        self.border_subtitle = f"{sum(not each.disabled for each in options.options)}"


def _category_options() -> list[Option]:
    found: list[Option] = []
    for category in load_catalog().categories:
        found.append(Option(Text(category.upper(), style="bold dim"), disabled=True))
        found += [
            Option(f"  {info.name}", id=info.name)
            for info in load_catalog().transforms
            if info.category == category
        ]
    return found


def _search_options(words: str) -> list[Option]:
    """Return transforms whose names match, then those whose summaries do."""
    by_name = fuzzy_sort(words, load_catalog().transforms, lambda info: info.name)
    options = []
    for info, positions in by_name:
        text = Text(f"  {info.name}")
        for place in positions:
            text.stylize("bold underline", place + 2, place + 3)
        options.append(Option(text, id=info.name))
    named = {info.name for info, _ in by_name}
    rest = [info for info in load_catalog().search(words) if info.name not in named]
    return [*options, *(Option(f"  {info.name}", id=info.name) for info in rest)]
