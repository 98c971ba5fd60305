"""A word that runs an action of the tab when it is clicked."""

from __future__ import annotations

from textual.widgets import Static


class Press(Static):
    """Something to click; its action has a key as well, so it takes no focus.

    Args:
        text: what stands on it.
        action: what it runs, an action of the tab.
        id: its id.
    """

    DEFAULT_CSS = """
    Press {
        width: auto;
        height: 1;
        padding: 0 1;
        margin-right: 1;
        background: $panel;
        &:hover { background: $primary 40%; }
        &.-on { background: $primary 40%; text-style: bold; }
        &.-quiet { background: transparent; color: $text-muted; padding: 0; }
        &.-quiet.-on { color: $text-primary; text-style: bold underline; }
    }
    """

    def __init__(
        self, text: str, action: str, *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(text, id=id, classes=classes, markup=False)
        self._action = action

    async def on_click(self) -> None:
        tab = next(each for each in self.ancestors if each.id == "live-tab")
        await self.app.run_action(self._action, tab)
