"""Help: the keys that work now in two columns, and what the focused widget shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.widget import Widget
from textual.widgets import Static

from tdx.tui.screens.bars import is_listed
from tdx.tui.screens.dialogs import TextScreen

_KEY_WIDTH = 9


class HelpScreen(TextScreen):
    """Shows help for the focused widget."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-normal")]

    def __init__(self, app: App[None], nodes: Sequence[DOMNode], transform: str | None) -> None:
        texts = [node.HELP for node in nodes if isinstance(node, Widget) and node.HELP]
        text = texts[0] if texts else "## Help"
        heading, _, about = text.partition("\n\n")
        super().__init__(heading.removeprefix("## "), about)
        self._transform = transform
        own = set(nodes) - {app, app.screen}
        self._own = list(_key_rows(app, own))
        self._global = list(_key_rows(app, {app, app.screen}))

    def compose(self) -> ComposeResult:
        from textual.widgets import Markdown  # slow to import, and seldom needed

        with Vertical(classes="dialog -help") as dialog:
            dialog.border_title = self._title
            dialog.border_subtitle = "Esc closes"
            with VerticalScroll():
                yield from _columns(self._own)
                if self.text:
                    yield Markdown(self.text)
                if self._global:
                    yield Static("everywhere", classes="help-heading")
                yield from _columns(self._global)
                if self._transform is not None:
                    yield Markdown(self._transform)


def _key_rows(app: App[None], nodes: set[DOMNode]) -> Iterator[Content]:
    """Yield a line for each action, or group of actions, that a key of some nodes runs."""
    rows: dict[object, tuple[list[str], str]] = {}
    active = [key for key in app.screen.active_bindings.values() if key.node in nodes]
    # What the key bar shows comes first.
    for key in sorted(active, key=lambda key: not key.binding.show):
        binding = key.binding
        # Textual's own bindings have no id.
        is_described = binding.description or binding.group
        if not (binding.id and is_described and is_listed(key.node, binding)):
            continue
        group = binding.group
        text = binding.description if group is None else group.description
        keys = rows.setdefault(group or binding.action, ([], text))[0]
        if (shown := app.get_key_display(binding)) not in keys:
            keys.append(shown)
    for keys, text in rows.values():
        shown = ("" if all(len(key) == 1 for key in keys) else " ").join(keys)
        yield Content.assemble((shown.ljust(_KEY_WIDTH), "bold $footer-key-foreground"), f" {text}")


def _columns(rows: Sequence[Content]) -> ComposeResult:
    half = (len(rows) + 1) // 2
    with Horizontal(classes="help-columns"):
        for column in (rows[:half], rows[half:]):
            yield Static(Content("\n").join(column))
