"""Widgets of the Profile tab: the cost table, the details of a part, and the list of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.style import Style
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.widgets import DataTable, OptionList, Static
from textual.widgets.option_list import Option

from tdx.tui.line_widgets import ElidedStatic
from tdx.tui.profile.columns import Column, CostLine, CostSheet, choose_columns
from tdx.tui.profile.messages import CostRow
from tdx.tui.profile.numbers import (
    choose_unit,
    describe_idle,
    draw_bar,
    draw_histogram,
    format_count,
    format_duration,
    format_time,
)
from tdx.tui.profile.runs import ModeSelection, ProfileRun, RunHistory, displayed_mode, history_line

_BAR_WIDTH = 8
_MIN_HISTOGRAM_CALLS = 12
"""Number of calls below which a histogram says no more than the figures."""


def histogram_text(row: CostRow, width: int, height: int) -> Content:
    """Return the histogram of the most expensive calls of a part with percentiles and notes."""
    if not row.calls:
        unit = choose_unit(row.step_us)
        repeats = "  ".join(format_time(us, unit) for us in row.repeats_us)
        note = f"  {unit} per step in each repeat"
        return Content.assemble((row.label, "bold"), (note, "dim"), f"\n{repeats}")
    call, *others = row.calls
    chunk = ""
    if call.steps_per_call >= 1.5:
        chunk = f", one call for {format_count(round(call.steps_per_call))} steps"
    head = Content.assemble(
        (row.label, "bold"),
        f" {call.name}",
        (f"  per call, n {format_count(call.n)}{chunk}", "dim"),
    )
    facts = "  ".join(f"{name} {format_duration(us)}" for name, us in call.figures.items())
    notes = list(_notes(row))
    if row.device_us is not None:
        waits = ", waits for the host" if row.launch_bound else ""
        busy = f"busy {format_duration(row.busy_us or 0.0)} in {format_count(row.kernels or 0.0)}"
        delay = f" kernels, launch delay {format_duration(row.delay_us)}" if row.delay_us else ""
        span = f"GPU per step: span {format_duration(row.device_us)}, {busy}{delay or ' kernels'}"
        on_device = f"{span}, {describe_idle(row.idle_us)}{waits}"
        notes.insert(0, Content(on_device))
    if others:
        listed = ", ".join(f"{other.name} {format_duration(other.step_us)}" for other in others)
        notes.insert(0, Content.styled(f"per step also: {listed}", "dim"))
    low, high = format_duration(call.low_us), f"{format_duration(call.high_us)}+"
    room = width - 1 if height > 1 else width - len(low) - len(high) - 2
    counts: Sequence[int] = call.counts
    while len(counts) > max(room, 1):  # add up neighboring bins until they fit
        counts = [sum(counts[at : at + 2]) for at in range(0, len(counts), 2)]
    wide = max(1, min(6, room // len(counts)))
    if call.n < _MIN_HISTOGRAM_CALLS:
        return Content("\n").join([head, Content(facts), *notes])
    if height == 1:
        half = draw_histogram(counts, max(1, wide // 2), 1)[0]
        bars = Content.assemble((f"{low} ", "dim"), (half, "$primary"), (f" {high}", "dim"))
        return Content("\n").join([head, bars, *notes])
    drawn = draw_histogram(counts, wide, height)
    bars = Content("\n").join(Content.styled(text, "$primary") for text in drawn)
    gap = " " * max(1, wide * len(counts) - len(low) - len(high))
    under = Content.styled(f"{low}{gap}{high}", "dim")
    if width - head.cell_length > len(facts) + 2:
        return Content("\n").join([Content.assemble(head, "  ", facts), bars, under, *notes])
    return Content("\n").join([head, bars, under, Content(facts), *notes])


def _notes(row: CostRow) -> Iterator[Content]:
    """Yield where the host waits, and what the chain saves without the stages of a row."""
    if row.bound_by:
        yield Content.assemble((f"bound by {row.bound_by}: ", "dim"), row.evidence)
    for sync in row.syncs:
        text = f"waits for the GPU {format_count(sync.calls)} × per step"
        text += f" in {sync.call}" if sync.call else ""
        text += f" at {sync.where}" if sync.where else ""
        text += "" if sync.time_us is None else f": {format_duration(sync.time_us)}"
        yield Content.styled(text, "$text-warning")
    for index, saving in sorted(row.marginals.items()):
        name = f"without {row.number(index)} {saving.name}"
        if saving.saved_us is not None:
            verb = "saves" if saving.saved_us >= 0 else "costs"
            size, noise = format_duration(abs(saving.saved_us)), format_duration(saving.noise_us)
            within = "" if abs(saving.saved_us) > saving.noise_us else ", within the noise"
            amount = f"{size} per step ± {noise}"
            yield Content.assemble((f"{name} the chain {verb} ", "dim"), amount, (within, "dim"))
        elif saving.needed is not None:
            yield Content.styled(f"{name} the chain fails: {saving.needed}", "dim")


def operators_text(row: CostRow, width: int, height: int) -> Content:
    """Return the operators of a part, the most expensive first; a single line has no bars."""
    operators = row.operators
    if operators is None:
        return Content("")
    if not operators:
        return Content.styled("no torch operators", "dim")
    unit = choose_unit(operators[0].time_us)
    if height == 1:
        parts: list[Content] = []
        for operator in operators:
            name, calls = operator.name.removeprefix("aten::"), format_count(operator.calls)
            figures = f" {format_time(operator.time_us, unit)} × {calls}"
            part = Content.assemble(name, (figures, "dim"))
            if sum(part.cell_length + 3 for part in [*parts, part]) > width and parts:
                break
            parts.append(part)
        return Content.styled(" · ", "dim").join(parts)
    total = format_count(sum(operator.calls for operator in operators))
    note = f"  {unit} and calls per step, {total} in all; this pass is slower"
    note = note if len(note) + 9 <= width else f"  {unit} × calls, in a slower pass"
    lines = [Content.assemble(("operators", "bold"), (note, "dim"))]
    shown = operators if len(operators) < height else operators[: height - 2]
    most = operators[0].time_us
    for operator in shown:
        bar = draw_bar(operator.time_us / most if most else 0.0, _BAR_WIDTH)
        line = Content.assemble(
            f"{format_time(operator.time_us, unit):>7} ",
            (bar, "$primary"),
            (f" {format_count(operator.calls):>5} × ", "dim"),
            operator.name.removeprefix("aten::"),
        )
        lines.append(line)
    rest = operators[len(shown) :]
    if rest:
        text = f"{len(rest)} more, {format_duration(sum(operator.time_us for operator in rest))}"
        lines.append(Content.styled(text.rjust(len(text) + 8), "dim"))
    return Content("\n").join(lines)


_MIN_HEIGHT, LOW, HIGH = 16, 20, 45
"""Heights of the tab from which details are shown, are longer, and are long."""
_SIDE_BY_SIDE_WIDTH = 84
"""Minimum width for operators next to the histogram."""


class PartPane(Container):
    """Histogram of a part and its operators."""

    def __init__(self) -> None:
        super().__init__(id="profile-part")

    def compose(self) -> ComposeResult:
        yield ElidedStatic("", id="profile-histogram")
        yield Static("", id="profile-operators")

    def show(self, row: CostRow | None, room: Size) -> None:
        """Show a part, or hide the pane; the room is the size of the whole tab."""
        self.display = row is not None and room.height >= _MIN_HEIGHT
        if row is None:
            return
        has_operators = row.operators is not None
        bars = 1 if room.height < LOW else 6 if room.height >= HIGH and not has_operators else 3
        is_side_by_side = has_operators and room.width >= _SIDE_BY_SIDE_WIDTH and bars > 1
        self.set_class(is_side_by_side, "-side-by-side")
        width = max(10, room.width // 2 - 2 if is_side_by_side else room.width)
        self.query_one("#profile-histogram", Static).update(histogram_text(row, width, bars))
        operators = self.query_one("#profile-operators", Static)
        operators.display = has_operators
        height = bars + 3 if is_side_by_side else 1 if bars == 1 else 5
        operators.update(operators_text(row, width, height))
        # Keep the height, so that the table does not move with the cursor.
        self.styles.min_height = 1 + bars + (1 if bars == 1 else 3)


def sort_lines(
    lines: Sequence[CostLine], column: Column, is_inverted: bool = False
) -> list[CostLine]:
    """Sort lines by a column; lines without a value come last, and then the whole step."""
    sign = -1 if column.largest_first != is_inverted else 1

    def key(line: CostLine) -> tuple[bool, bool, float]:
        value = column.value(line)
        return line.is_total, value is None, 0.0 if value is None else sign * value

    return sorted(lines, key=key)


class CostTable(DataTable[Text]):
    """Shows lines, sorted by one column."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"cost--{tone}" for tone in ("dim", "bar", "slower", "faster", "new", "warning", "sorted")
    }
    HELP = """## Costs

The time of each part in the mean step; the parts add up to the whole step. `median` is the time of
a step in which each call takes its median time: other programs that interrupt a few calls hardly
change it. Click a header or press `s` to sort, and `i` to reverse the order."""

    @dataclass
    class CursorMoved(Message):
        """The cursor is on another line."""

        line: CostLine | None

    def __init__(self) -> None:
        super().__init__(
            id="costs", cursor_type="row", cell_padding=1, cursor_foreground_priority="renderable"
        )
        self.display = False
        self.sort_by, self.is_inverted = "step", False
        self.sheet = CostSheet()
        self._shown: list[Column] = []
        self._wanted: str | None = None

    @property
    def selected_line(self) -> CostLine | None:
        """The line under the cursor."""
        lines = self.lines_shown
        return lines[self.cursor_row] if 0 <= self.cursor_row < len(lines) else None

    def show_sheet(self, sheet: CostSheet) -> None:
        """Replace the content; the cursor stays on its part."""
        self.sheet = sheet
        self._draw()

    def on_mount(self) -> None:
        # Cells keep the colors of the theme in which they were created.
        self.app.theme_changed_signal.subscribe(self, lambda _: self.call_later(self._draw))

    def on_resize(self) -> None:
        wanted = [(column.id, column.width) for column in self._columns()]
        if wanted != [(column.id, column.width) for column in self._shown]:
            self._draw()

    def _columns(self) -> list[Column]:
        return choose_columns(self.sheet, self._room)

    def sort_next(self) -> None:
        """Sort by the next column."""
        names = [column.id for column in self._shown if column.id != "bar"]
        at = names.index(self.sort_by) if self.sort_by in names else -1
        if names:
            self.sort(names[(at + 1) % len(names)])

    def sort(self, name: str) -> None:  # type: ignore[override]
        """Sort by a column; if it is the current one, reverse the order."""
        self.is_inverted = not self.is_inverted if name == self.sort_by else False
        self.sort_by = name
        self._draw()

    def invert(self) -> None:
        """Reverse the order."""
        self.sort(self.sort_by)

    @on(DataTable.HeaderSelected)
    def _sort_by_header(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        self.sort(str(event.column_key.value))

    @on(DataTable.RowHighlighted)
    def _handle_row_highlight(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        line = self.selected_line
        if line is not None:
            self._wanted = line.row.label
        self.post_message(self.CursorMoved(line))

    @property
    def _room(self) -> int:
        return self.scrollable_content_region.width or self.size.width

    @property
    def lines_shown(self) -> list[CostLine]:
        """The lines from top to bottom."""
        by = next((each for each in self._shown if each.id == self.sort_by), None)
        if by is None:
            return list(self.sheet.lines)
        return sort_lines(self.sheet.lines, by, self.is_inverted)

    def search_lines(self) -> list[str]:
        """Return the name of each part."""
        return [line.row.label for line in self.lines_shown]

    @property
    def cursor_line(self) -> int:
        """Line of the cursor."""
        return self.cursor_row

    def go_to_line(self, line: int) -> None:
        """Move the cursor to a line."""
        self.move_cursor(row=line, scroll=True)

    def _draw(self) -> None:
        wanted = self._wanted
        self._shown = self._columns()
        with self.prevent(DataTable.RowHighlighted):
            self.clear(columns=True)
            for column in self._shown:
                self.add_column(self._title(column), key=column.id, width=column.width)
            lines = self.lines_shown
            for line in lines:
                self.add_row(*(self._cell(column, line) for column in self._shown), key=line.name)
            places = [line.row.label for line in lines]
            at = places.index(wanted) if wanted in places else 0
            self.move_cursor(row=at, scroll=True)
        self.post_message(self.CursorMoved(self.selected_line))

    def _title(self, column: Column) -> Text:
        if column.id == self.sort_by:
            down = column.largest_first != self.is_inverted
            title = f"{column.title[: column.width - 1]}{'↓' if down else '↑'}"
            return Text(title, style=self._style("sorted"), justify=_alignment(column))
        return Text(column.title, justify=_alignment(column))

    def _cell(self, column: Column, line: CostLine) -> Text:
        tone = column.tone(line)
        style = self._style(tone) if tone else Style()
        return Text(column.text(line), style=style, justify=_alignment(column), no_wrap=True)

    def _style(self, tone: str) -> Style:
        found = self.get_component_rich_style(f"cost--{tone}")
        return Style(color=found.color, bold=found.bold, dim=found.dim)


def _alignment(column: Column) -> Literal["left", "right"]:
    return "left" if column.id in ("part", "bar") else "right"


class RunList(OptionList):
    """Runs, the latest first; the one under the cursor is shown."""

    @dataclass
    class Chosen(Message):
        """A run should be shown."""

        number: int

    def __init__(self) -> None:
        super().__init__(id="profile-runs", compact=True)

    def show_runs(
        self,
        history: RunHistory,
        wanted: ModeSelection,
        shown: ProfileRun | None,
        base: ProfileRun | None,
    ) -> None:
        """Replace the runs."""
        runs = list(reversed(history.runs))
        self.set_class(len(runs) < 2, "-few")
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            for run in runs:
                mode = displayed_mode(run, wanted)
                before = None if mode is None else history.previous(run, mode.mode)
                line = history_line(run, before, wanted, "◆" if run is base else " ")
                self.add_option(Option(line, id=f"run-{run.number}"))
            if shown in runs:
                self.highlighted = runs.index(shown)

    @on(OptionList.OptionSelected)
    @on(OptionList.OptionHighlighted)
    def _run_chosen(self, event: OptionList.OptionMessage) -> None:
        event.stop()
        self.post_message(self.Chosen(int((event.option.id or "run-0").removeprefix("run-"))))
