"""Below the table: what there is to say of the part under the cursor."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Size
from textual.widgets import Static

from tdx.tui.profile.columns import Line
from tdx.tui.profile.part_text import histogram, operators_text

LOW, HIGH = 20, 30
"""Rows of the tab below which all is short, and from which on there is room."""
_BESIDE = 84
"""Columns from which on the operators stand beside the histogram."""


class PartPane(Container):
    """A histogram of the times of a part, and the operators in it."""

    def __init__(self) -> None:
        super().__init__(id="profile-part")

    def compose(self) -> ComposeResult:
        yield Static("", id="profile-histogram")
        yield Static("", id="profile-operators")

    def show(self, line: Line | None, room: Size) -> None:
        """Show a part.

        Args:
            line: its line; none for no part.
            room: of the whole tab.
        """
        self.display = line is not None
        if line is None:
            return
        row = line.looked_at
        has_operators = row.operators is not None
        bars = 1 if room.height < LOW else 6 if room.height >= HIGH and not has_operators else 3
        beside = has_operators and room.width >= _BESIDE and bars > 1
        self.set_class(beside, "-beside")
        width = max(10, room.width // 2 - 2 if beside else room.width)
        self.query_one("#profile-histogram", Static).update(histogram(line, width, bars))
        operators = self.query_one("#profile-operators", Static)
        operators.display = has_operators
        height = bars + 3 if beside else 1 if bars == 1 else 5
        operators.update(operators_text(row, width, height))
        # The table does not jump as the cursor goes from part to part.
        self.styles.min_height = 1 + bars + (1 if bars == 1 else 3)
