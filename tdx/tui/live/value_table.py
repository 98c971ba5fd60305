"""The table of values: what each stage wrote, with what changed, and what is wrong."""

from __future__ import annotations

from tdx.inspection.live.views import TraceView
from tdx.tui.live.lines import Lines
from tdx.tui.live.value_lines import HEAD, ValueLine, value_lines


class ValueTable(Lines):
    """Draws a view of a trace."""

    HELP = """## The values

What each stage wrote in this step, the env first. The first sign is what the stage did: `+` is a
new key, `●` another value, `·` the value that it was given. The second is what happened since the
step before: `+` was not there, `~` has another value, and `✕` is nan or not what its spec says.

`Enter` draws the key as a chart, `o` shows all that is there after each stage, `d` the differences
to the step before, or to the one that is marked with `m`."""

    def __init__(self) -> None:
        super().__init__(id="live-values")
        self.border_title = "values"
        self.view: TraceView | None = None
        self.difference = False
        self.only_written = True
        self._found: list[ValueLine] = []

    def show_view(self, view: TraceView) -> None:
        """Draw this from now on."""
        self.view = view
        self._fill()

    def set_difference(self, on: bool) -> None:
        """Show what values were beside what they are, or no longer."""
        self.difference = on
        self._fill()

    def set_only_written(self, on: bool) -> None:
        """Leave out what a stage hands on as it was, or no longer."""
        self.only_written = on
        self._fill()

    def on_resize(self) -> None:
        super().on_resize()
        self._fill()

    @property
    def key(self) -> str | None:
        """The key under the cursor."""
        return self._found[self.cursor].key if self.cursor < len(self._found) else None

    @property
    def labels(self) -> list[str]:
        """What each line is found by: a stage, a version of a key, or nothing."""
        return [each.label for each in self._found]

    def go_to_stage(self, stage: int) -> None:
        """Bring the heading of a stage to the top; -1 is the env."""
        at = next((n for n, each in enumerate(self._found) if _heads(each, stage)), None)
        if at is not None:
            self.cursor = at
            self.scroll_to(y=at, animate=False)
            self.refresh()

    def _fill(self) -> None:
        if self.view is None or not self.size.width:
            return
        self._found = value_lines(
            self.view,
            self.size.width,
            difference=self.difference,
            only_written=self.only_written,
        )
        against = self.view.against
        title = "values"
        if self.difference:
            title = "differences" + ("" if against is None else f" to trace {against}")
        if title != self.border_title:
            self.border_title = title
        self.first = int(bool(self._found) and self._found[0].stage == HEAD)
        self.show([each.line for each in self._found])


def _heads(line: ValueLine, stage: int) -> bool:
    return line.key is None and line.stage == stage and line.line[0][1] == "accent"
